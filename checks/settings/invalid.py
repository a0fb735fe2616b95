"""Settings that nothing reads, that their reader rejects, that are out of date, or that are left over from debugging."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import lru_cache

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import capital, dotted, quoted
from ddpdoctor.base.unknown import Maybe, known
from ddpdoctor.checks.settings.debugging_settings import dangerous_here, harms
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.engine.registry import LogTraits, check, requires
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.facts.snapshot import Gpus, Nccl, Pci, Torch
from ddpdoctor.knowledge.evidence import told, torch_version
from ddpdoctor.knowledge.known_settings import (
    MAX_REMEMBERED_NAMES,
    KnownSetting,
    in_a_known_family,
    known_settings,
    one_slip_from,
    read_by_nothing,
)
from ddpdoctor.knowledge.privileges import NEEDS_ROOT
from ddpdoctor.knowledge.wheels import numbers


def evidence_of(*settings: Setting) -> tuple[Evidence, ...]:
    return tuple(Evidence(f"{setting.name}={setting.value[:200]}", setting.origin) for setting in settings)


def plain(name: str) -> str:
    """A name in a summary: one line, and short; the environment may hold any bytes."""
    return " ".join(name.split())[:60]


def take_away(setting: Setting, *, certain: bool = True) -> Fix:
    """The fix that takes a setting away, wherever it is set; `certain`: it can't be meant, so that ddpdoctor may do it."""
    name, pattern = plain(setting.name), shlex.quote(f"/^{re.escape(setting.name)}=/d")
    edit = f"sed -i {pattern} {shlex.quote(setting.origin)}"
    if setting.origin == "environment":
        text = f"Unset {name}, also in the script or start-up file that sets it"
        return Fix(text, (f"unset {shlex.quote(setting.name)}",), appliable=certain)
    if of_the_system(setting):
        needed = f"{NEEDS_ROOT}; a value of your own in the environment overrides it"
        return Fix(f"Take {name} out of {setting.origin} {needed}", (f"sudo {edit}",))
    return Fix(f"Take {name} out of {setting.origin}", (edit,))


def of_the_system(setting: Setting) -> bool:
    """Whether it stands in a file that only root may change. NCCL_CONF_FILE takes the place of ~/.nccl.conf alone;
    /etc/nccl.conf is read all the same, but never goes before the environment."""
    return setting.origin.startswith("/etc/")


def set_instead(name: str, value: str, old: Setting) -> Fix:
    """The fix that sets another name or value in the place of the old one, or in one that overrides it."""
    if old.origin == "environment" or of_the_system(old):
        unset = f"unset {shlex.quote(old.name)}; " if name != old.name and not of_the_system(old) else ""
        text = f"Set {name} to {value}" if name == old.name else f"Set {name} instead"
        where = f" in your environment, which overrides {old.origin}" if of_the_system(old) else ""
        return Fix(f"{text}{where}", (f"{unset}export {name}={shlex.quote(value)}",), appliable=True)
    line = f"{name}={value}"
    if shlex.quote(line) != line:
        # It is no line for a shell, and would be another one there.
        return Fix(f'Write "{line}" into {old.origin}, in place of the old line')
    return Fix(f"Write this line into {old.origin}, in place of the old one", (line,))


@check("setting-misspelt", severity=WARN, owner=Owner.USER)
def setting_misspelt(environment: Environment, gpus: Maybe[Gpus], pci: Maybe[Pci]) -> Iterator[Finding]:
    """A setting has a name that nothing reads.

    ## What breaks
    It has no effect, and no warning says so: the interface isn't chosen, the timeout isn't raised, InfiniBand isn't off.

    ## Why
    NCCL, gloo and torch look for exact names and ignore all others.

    ## Fix
    Use the right name. A timeout is no setting, but an argument of `init_process_group`.
    """
    strange: list[Setting] = []
    for setting in environment.effective:
        nothing = read_by_nothing().get(setting.name)
        if nothing is not None and not nothing.harmless:
            yield misspelt(setting, nothing.meant, nothing.why, gpus, pci)
        elif nothing is not None or setting.name in known_settings():
            continue
        elif meant := one_slip_from(setting.name):
            yield misspelt(setting, meant, "", gpus, pci)
        elif in_a_known_family(setting.name):
            strange.append(setting)
    for setting in strange[:MAX_COMPARED_NAMES]:
        if meant := nearest(setting.name):
            yield misspelt(setting, meant, "", gpus, pci)
    if more := len(strange[MAX_COMPARED_NAMES:]):
        yield Finding.of(
            f"{len(strange)} settings have unknown names; {more} of them were not compared with the known ones",
            evidence_of(strange[MAX_COMPARED_NAMES]),
            Fix("See them all", ("env | grep -E '^(NCCL|TORCH|GLOO)'",)),
            severity=INFO,
        )


MKL_LAYER = "MKL_THREADING_LAYER"

MAX_COMPARED_NAMES = 50
"""Names compared with all known ones, which takes about a millisecond each."""


@lru_cache(MAX_REMEMBERED_NAMES)
def nearest(name: str) -> str:
    """The known name that this one is most likely meant to be, "" if none is near.

    A name with a part that no known one has is another program's own (NCCL_TESTS_SPLIT), so it must be really close.
    """
    readers = ("NCCL", "torch", "torchrun", "gloo")
    candidates = [candidate.name for candidate in known_settings().values() if candidate.reader in readers]
    close = difflib.get_close_matches(name.upper(), candidates, n=1, cutoff=0.88)
    return close[0] if close else ""


def misspelt(setting: Setting, meant: str, why: str, gpus: Maybe[Gpus], pci: Maybe[Pci]) -> Finding:
    hint = f"; the right name is {meant}" if meant else ""
    renamed = meant and not dangerous_here(meant, setting.value, gpus, pci)
    what = known_settings()[meant].what if meant in known_settings() else ""
    return Finding.of(
        f"{plain(setting.name)} is set, but nothing reads it{hint}",
        evidence_of(setting),
        set_instead(meant, setting.value, setting) if renamed else None,
        take_away(setting),
        cause=f"{capital(why)}." if why else f"{meant}: {what}." if what else "",
    )


def version_of(reader: str, torch: Maybe[Torch], nccl: Maybe[Nccl]) -> tuple[int, ...]:
    """The version of the reader that the target Python has; () where that isn't known."""
    if reader == "NCCL" and isinstance(torch, Torch) and isinstance(torch.nccl_version, tuple):
        return torch.nccl_version
    source = {"torch": torch, "NCCL": nccl}.get(reader)
    text = source.version if isinstance(source, (Torch, Nccl)) else None
    return numbers(text) if isinstance(text, str) else ()


def uses_rccl(torch: Maybe[Torch]) -> bool:
    """ROCm's RCCL takes NCCL's settings, but keeps old ones that NCCL gave up."""
    return isinstance(torch, Torch) and torch.hip is not None


def knows(setting: KnownSetting, version: tuple[int, ...]) -> bool:
    """Whether that version of the reader knows the variable; an unknown version is taken for a current one."""
    return not version or version >= numbers(setting.since)


@check("setting-deprecated", severity=INFO, owner=Owner.USER)
def setting_deprecated(environment: Environment, torch: Maybe[Torch], nccl: Maybe[Nccl]) -> Iterator[Finding]:
    """A setting has a newer name.

    ## What breaks
    Nothing yet: the old name is still read, sometimes with a warning in every rank's log.

    ## Why
    torch moved its own settings from NCCL_ to TORCH_NCCL_, and later to TORCH_FR_; NCCL renamed some of its own.

    ## Fix
    Set the new name instead.
    """
    for setting, old in outdated(environment, torch):
        new = known_settings().get(old.replaced_by)
        # A value that does harm is setting-dangerous's matter: nobody should set it by any name.
        if old.removed or new is None or new.name in environment or harms(new.name, setting.value):
            continue
        if knows(new, version_of(new.reader, torch, nccl)):
            yield Finding.of(
                f"{setting.name} is an old name; today it is {new.name}",
                evidence_of(setting),
                set_instead(new.name, setting.value, setting),
            )


@check("setting-removed", severity=WARN, owner=Owner.USER)
def setting_removed(environment: Environment, torch: Maybe[Torch]) -> Iterator[Finding]:
    """A setting is no longer read by any current version.

    ## What breaks
    It has no effect. For what it once did there is another way, or it needs no setting any more.

    ## Why
    It was copied from an old recipe; NCCL no longer has it.

    ## Fix
    Unset it, or use the setting that replaced it.
    """
    for setting, old in outdated(environment, torch):
        if old.removed:
            instead = f" ({old.replaced_by} replaced it)" if old.replaced_by else ""
            yield Finding.of(
                f"{setting.name} has no effect: {old.reader} no longer reads it{instead}",
                evidence_of(setting),
                take_away(setting),
            )


def outdated(environment: Environment, torch: Maybe[Torch]) -> Iterator[tuple[Setting, KnownSetting]]:
    for setting in environment.effective:
        entry = known_settings().get(setting.name)
        if entry and (entry.removed or entry.replaced_by) and not (entry.reader == "NCCL" and uses_rccl(torch)):
            yield setting, entry


@check("setting-too-new", severity=INFO, owner=Owner.USER)
def setting_too_new(environment: Environment, torch: Torch, nccl: Maybe[Nccl]) -> Iterator[Finding]:
    """A setting is newer than the installed torch or NCCL.

    ## What breaks
    It has no effect.

    ## Why
    It was copied from a newer recipe; this version doesn't know the name.

    ## Fix
    Use the name that this version reads, or a newer torch.
    """
    requires(torch.installed, "torch is not installed")
    older = {entry.replaced_by: entry for entry in reversed(known_settings().values()) if not entry.removed}
    for setting in environment.effective:
        entry = known_settings().get(setting.name)
        if entry is None or not setting.name.startswith(("NCCL_", "TORCH_")) or set_by_torchrun(setting, environment):
            continue
        version = version_of(entry.reader, torch, nccl)
        if knows(entry, version) or (entry.reader == "NCCL" and uses_rccl(torch)):
            continue
        fix, old = take_away(setting), older.get(setting.name)
        if old and knows(old, version) and not harms(setting.name, setting.value):
            fix = set_instead(old.name, setting.value, setting)
        yield Finding.of(
            f"{setting.name} has no effect on {entry.reader} {dotted(version)}: it needs {entry.reader} {entry.since} or later",
            evidence_of(setting),
            torch_version(torch),
            fix,
        )


def set_by_torchrun(setting: Setting, environment: Environment) -> bool:
    """torchrun sets this one whatever the version."""
    return setting.name == "TORCH_NCCL_ASYNC_ERROR_HANDLING" and "TORCHELASTIC_RUN_ID" in environment


def _of_mkl(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Tell of MKL, which nobody may have told what it takes to be told."""
    if not any(match.words.get("name") == MKL_LAYER for match in seen):
        return Particulars()
    return Particulars(
        "MKL was to take Intel's OpenMP, and another package has loaded GNU's into the process before",
        (
            Fix("Let MKL take the one that is there", (f"export {MKL_LAYER}=GNU",)),
            Fix(
                "Or import numpy first, before torch and whatever else brings libgomp",
                ("import numpy   # as the script's first line",),
            ),
        ),
        f"Where {MKL_LAYER} isn't set, mkl-service takes INTEL. Two kinds of OpenMP in one process may crash it, so that it ends the process at once.",
    )


@check("setting-invalid", severity=WARN, owner=Owner.USER, log=LogTraits(particulars=_of_mkl))
def setting_invalid(environment: Environment) -> Iterator[Finding]:
    """A setting has a value that its reader doesn't understand.

    ## What breaks
    NCCL reads `true` as 0, so a switch that should be on stays off; torch stops with "Invalid value for environment variable".
    OpenMP prints the same and goes on, with as many threads as there are cores.

    ## Why
    NCCL's switches are whole numbers and it doesn't complain about words. A few settings know certain words only, some of
    them in capital letters only.

    ## Fix
    Set 0 or 1, or a word that its reader knows: the message names them, or `ddpdoctor check --select settings` does.
    """
    for setting in environment.effective:
        entry = known_settings().get(setting.name)
        complaint = entry.complaint(setting.value) if entry else ""
        if entry and complaint:
            yield Finding.of(
                f"{setting.name}={quoted(setting.value)}: {complaint}",
                evidence_of(setting),
                likely_value(setting, entry),
                take_away(setting),
                severity=FAIL if entry.rejects else WARN,
            )


def likely_value(setting: Setting, entry: KnownSetting) -> Iterator[Fix]:
    """The value that was most likely meant, where that is plain."""
    word = setting.value.strip().strip("'\"").lower()
    if entry.kind in ("nccl-int", "torch-bool", "torch-int"):
        meant = {"true": "1", "yes": "1", "on": "1", "y": "1", "enable": "1", "enabled": "1"}.get(word) or {
            "false": "0", "no": "0", "off": "0", "n": "0", "disable": "0", "disabled": "0",
        }.get(word, "")  # fmt: skip
        if not meant and re.fullmatch(r"\d+", word):
            meant = word
    else:
        meant = next((choice for choice in entry.choices if choice.lower() == word), "")
        meant = meant or {"ipv4": "AF_INET", "inet": "AF_INET", "ipv6": "AF_INET6", "debug": "INFO"}.get(word, "")
        meant = meant if meant in entry.choices else ""
    if meant:
        yield set_instead(setting.name, meant, setting)


@check("setting-undecodable", severity=WARN, owner=Owner.USER)
def setting_undecodable(environment: Environment) -> Iterator[Finding]:
    """A setting holds bytes that aren't UTF-8.

    ## What breaks
    A path or name with such bytes isn't found, and Python programs that print or log it stop with UnicodeEncodeError.

    ## Why
    The text came from a file or terminal with another encoding, or the value was cut in the middle of a character.

    ## Fix
    Type the value again.
    """
    for name in environment.undecodable:
        found = environment.setting(name)
        text = f"{plain(name)} holds bytes that aren't UTF-8"
        yield Finding.of(
            text,
            evidence_of(found) if found else told(environment, "undecodable", f"bytes that aren't UTF-8: {name}"),
            # What it was meant to be only the user knows; without it something else may break.
            take_away(found or Setting(name, ""), certain=False),
            Fix("Set it again, in UTF-8, where your job script or start-up file sets it"),
        )


@check("nccl-conf-unreadable", severity=WARN, owner=Owner.USER)
def nccl_conf_unreadable(environment: Environment) -> Iterator[Finding]:
    """A configuration file of NCCL's is there or was named, but can't be read.

    ## What breaks
    NCCL ignores it silently: the settings in it don't count.

    ## Why
    The path in NCCL_CONF_FILE is wrong on this node, this user may not read the file, or it isn't a list of settings.

    ## Fix
    Correct the path or the permissions. The file holds lines `NAME=VALUE`, and comments that begin with "#".
    """
    requires(environment.unreadable_files or known(environment.configuration_files), "no configuration file of NCCL's")
    without = Fix("Or do without the file", ("unset NCCL_CONF_FILE",), appliable=True)
    for file in environment.unreadable_files:
        look = f"ls -l {shlex.quote(file.path)}"
        yield Finding.of(
            f"NCCL can't read its configuration file {file.path[-70:]}: {file.reason[:60]}",
            told(environment, "unreadable_files", f"{file.path}: {file.reason}"),
            Fix("Correct the path or the permissions; this shows what is there", (look,)),
            without if environment.get("NCCL_CONF_FILE") == file.path else None,
            owner=_owner_of(file.path),
        )


def _owner_of(path: str) -> Owner:
    return Owner.NODE if path.startswith("/etc/") else Owner.USER


@check("nccl-conf-ignored-line", severity=WARN, owner=Owner.USER)
def nccl_conf_ignored_line(environment: Environment) -> Iterator[Finding]:
    """NCCL doesn't read a line of its configuration file as it was meant.

    ## What breaks
    The setting doesn't count, or its value has quotes in it and so names an interface that doesn't exist.

    ## Why
    The file isn't a shell script: NCCL takes all that is before the first "=" as the name, with spaces and "export", and all
    behind it as the value, with quotes. It reads the file when the first communicator is made, too late for what torch reads itself.

    ## Fix
    Write `NAME=VALUE` without spaces, quotes or "export"; put the settings of torch and gloo into the environment.
    """
    requires(known(environment.configuration_files), "no configuration file of NCCL's")
    for line in environment.ignored_lines:
        yield Finding.of(
            f"NCCL doesn't read line {line.number} of {line.path[-60:]} as it was meant: {line.why}",
            told(environment, "ignored_lines", f"{line.path}, line {line.number}: {line.text}"),
            Fix("Correct the line", (f"${{EDITOR:-vi}} +{line.number} {shlex.quote(line.path)}",)),
            owner=_owner_of(line.path),
        )
