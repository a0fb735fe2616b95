"""Decides as whom a program is run that the environment names: root runs nothing that another user could have put there.

An interpreter, compiler or library of another user's is run as that user, with settings that hold no secrets of root's. What
several users could have put there isn't run at all. What root itself runs gets neither settings nor a working folder by which
others could have it load their code.
"""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.ownership import EVERYBODY, ROOT, Foothold, foothold_on, user_name, writers_of_folder
from ddpdoctor.engine.redaction import is_secret_name, redact_text
from ddpdoctor.probes.files import working_folder

OPTION: Final = "--as-root"
PATH_LIST: Final = re.compile(r"PATH$|^LD_(?:PRELOAD|AUDIT)$")
"""Names of settings that hold lists of folders or files, of which relative and empty ones count from the working folder."""
NO_GROUP: Final = 65534
NO_HOME: Final = "/"
OF_A_SESSION: Final = compile_lazily(r"^(?:SUDO_|SSH_|XDG_|DBUS_|GPG_|KRB5)|^(?:MAIL|XAUTHORITY|DISPLAY|OLDPWD)$")
"""Settings of a login, which are of no use to another user."""
LEADS_TO_CODE: Final = re.compile(r"^(?:LD_|PYTHON|NCCL_|CUDA_|HOME$)")

NOT_IMPORTED: Final = "nothing is imported from this folder, since others could have put modules here"

_SEPARATORS: Final = re.compile(r"[:;,=\s]+")
_FOLDERS: Final = re.compile("[:;]")
_PRELOADED: Final = re.compile(r"[:\s]")


JUDGED_SECONDS: Final = 0.25
"""As long at most holds what was found out of who may write where the settings lead."""
INQUIRY_MARK: Final = {"DDPDOCTOR_INQUIRY": "1"}
"""In the settings of all that ddpdoctor starts on its own account, and so of what that starts: none of it is part of a job, though
a launcher's settings are inherited."""


class NotRunError(Exception):
    """Root doesn't run it; the text says why, and what to do instead."""


class RunAsUser(NamedTuple):
    """A user as whom something is run, with all that counts for the kernel and for programs."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str


class LeftOut(NamedTuple):
    """A setting, or a part of one, by which another user could have root load code."""

    setting: str
    part: str
    foothold: Foothold

    @property
    def words(self) -> str:
        return f"{self.setting} ({self.foothold.words})"


class _Trust:
    """Whether the caller said that root may run what other users could have put there."""

    everybody = False


def trust_everybody() -> None:
    """From now on root runs whatever the environment names."""
    _Trust.everybody = True


def options_again() -> tuple[str, ...]:
    """Options that a ddpdoctor which we start ourselves gets before its command."""
    return (OPTION,) if _Trust.everybody else ()


def is_wary() -> bool:
    """Whether we are root, and weren't told to trust everybody."""
    return os.geteuid() == ROOT and not _Trust.everybody


def identity_for(code: Iterable[str | os.PathLike[str]]) -> RunAsUser | None:
    """Decide as whom to run these files: None for who we are.

    Args:
        code: the program, and what else it will run or load by its arguments.
    Raises:
        NotRunError: several users could replace them.
    """
    if not is_wary():
        return None
    files = [os.fspath(file) for file in code]
    found = next((foothold for file in files if (foothold := _foothold(file))), None)
    if found is None:
        return None
    others = [found] if found.writers else [other for file in files if (other := _foothold(file, found.uid))]
    if others:
        words = " and ".join(dict.fromkeys(foothold.words for foothold in (found, *others)))
        raise NotRunError(
            f"root does not run {files[0]}, since {words}; run ddpdoctor as the user who trains with it (sudo -u USER), or, "
            f"if you trust all who may write there, as ddpdoctor {OPTION} COMMAND"
        )
    return identity_of(found.uid)


def code_of(python: str) -> tuple[str, ...]:
    """An interpreter, and what it loads from its environment, and from the one that this was made from, before it is asked
    anything, and torch: each may be another user's where the interpreter is root's."""
    if not os.path.isabs(python):  # noqa: PTH117 (There is no such command on PATH.)
        return (python,)
    # Not resolved: a virtual environment is found by the link that its interpreter is.
    prefixes = dict.fromkeys(os.fspath(Path(path).parent.parent) for path in (python, os.path.realpath(python)))
    # Links count that lead nowhere, too: whoever owns the folder where they end can put code there.
    return (python, *(loaded for prefix in prefixes for loaded in _loaded(prefix) if os.path.lexists(loaded)))


def _loaded(prefix: str) -> Iterator[str]:
    """Find what an interpreter loads, below its prefix. Not by patterns, which go through the same folders again and again."""
    yield f"{prefix}/pyvenv.cfg"
    yield from (
        f"{folder}/dist-packages" for folder in (f"{prefix}/lib/python3", *_pythons(f"{prefix}/local/lib"))
    )  # Debian's
    for folder in (folder for lib in _names(prefix) if lib.startswith("lib") for folder in _pythons(f"{prefix}/{lib}")):
        site_packages = f"{folder}/site-packages"
        yield from (folder, site_packages, f"{site_packages}/torch")
        for name in _names(site_packages):
            if name.endswith(".pth") or name.startswith(("sitecustomize", "usercustomize")):
                yield f"{site_packages}/{name}"


def _pythons(lib: str) -> list[str]:
    return [f"{lib}/{name}" for name in _names(lib) if name.startswith("python3")]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208
    except OSError:  # It may not be looked into; then nothing can be run there either.
        return []


def _foothold(path: str, *trusted: int) -> Foothold | None:
    """For a folder also who may put new names there, be it a sticky one, as /tmp: modules and libraries are found by name."""
    found = _foothold_on_way(path, *trusted)
    return found or (writers_of_folder(path, trusted) if os.path.isdir(path) else None)  # noqa: PTH112 (also of a name that is none)


def _foothold_on_way(path: str, *trusted: int) -> Foothold | None:
    try:
        return foothold_on(path, trusted, may_be_missing=True)
    except NotADirectoryError:
        return None
    except OSError as error:
        raise NotRunError(f"root does not run {path}: whose it is can't be found out ({error.strerror})") from error


def identity_of(uid: int) -> RunAsUser:
    """That user, with the groups of a login."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return RunAsUser(uid, NO_GROUP, (), user_name(uid), NO_HOME)
    return RunAsUser(
        uid, entry.pw_gid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)), entry.pw_name, entry.pw_dir
    )


def sudo(identity: RunAsUser) -> str:
    """The start of a command that runs as that user."""
    return f"sudo -H -u {identity.name}" if identity.home != NO_HOME else f"sudo -H -u '#{identity.uid}'"


def remarks(python: str, chosen_by: str, environ: Mapping[str, str]) -> list[str]:
    """Say what is to be known of what the environment has led to: sentences, none where all of it is root's, or the user's own."""
    if not is_wary():
        return [NOT_IMPORTED] if working_folder_for(None) and working_folder() else []
    try:
        identity = identity_for(code_of(python))
    except NotRunError as error:
        return [f"{chosen_by} led to {python}: {error}"]
    found = []
    if identity is not None:
        which = "which belongs to" if _foothold(python) else "which loads what belongs to"
        found.append(f"{chosen_by} led to {python}, {which} {identity.name}: it is run as {identity.name}, not as root")
    trusted = (identity.uid,) if identity else ()
    left_out = dict.fromkeys(
        setting.words
        for setting in clean_environ(environ, *trusted)[1]
        if LEADS_TO_CODE.search(setting.setting) and os.path.exists(setting.part)  # noqa: PTH110 (also of a name that is too long)
    )
    if left_out:
        whom = f"what runs as root or {identity.name}" if identity else "what runs as root"
        found.append(f"left out of the settings of {whom}, though a job would have them: {', '.join(left_out)}")
    if working_folder_for(identity) and working_folder():
        found.append(NOT_IMPORTED)
    return found


def environ_for(identity: RunAsUser | None, environ: Mapping[str, str]) -> dict[str, str]:
    """The settings that are handed to what runs as that user: unchanged for who we are, unless we are root."""
    if not is_wary():
        return dict(environ)
    # A dozen programs are started at once, with the same settings.
    return dict(_environ_at(identity, tuple(environ.items()), int(time.monotonic() / JUDGED_SECONDS)))


@lru_cache(maxsize=4)
def _environ_at(identity: RunAsUser | None, settings: tuple[tuple[str, str], ...], _moment: int) -> dict[str, str]:
    environ = dict(settings)
    if identity is None:
        return clean_environ(environ)[0]
    theirs = {"HOME": identity.home, "USER": identity.name, "LOGNAME": identity.name}
    kept = {
        name: value
        for name, value in environ.items()
        if not is_secret_name(name) and not OF_A_SESSION.search(name) and redact_text(value) == value
    }
    return clean_environ(kept | theirs, identity.uid)[0]


def clean_environ(environ: Mapping[str, str], *trusted: int) -> tuple[dict[str, str], tuple[LeftOut, ...]]:
    """Leave out of the settings all by which users other than root and the trusted could have code loaded.

    Returns:
        What is left, with the trusted user's or root's own HOME, and what was left out.
    """
    kept: dict[str, str] = {}
    left_out: list[LeftOut] = []
    for name, value in environ.items():
        is_list = PATH_LIST.search(name) is not None
        parts = (_PRELOADED if name == "LD_PRELOAD" else _FOLDERS if is_list else _SEPARATORS).split(value)
        suspects = {part: foothold for part in parts if (foothold := _suspect(name, part, is_list, trusted))}
        left_out += [LeftOut(name, part, foothold) for part, foothold in suspects.items()]
        good = [part for part in parts if part not in suspects and (name != "PATH" or part.startswith("/"))]
        if len(good) == len(parts):
            kept[name] = value
        elif good and is_list:
            kept[name] = ":".join(good)
    if "HOME" in environ:
        kept.setdefault("HOME", identity_of(trusted[0] if trusted else ROOT).home)
    return kept, tuple(left_out)


def _suspect(name: str, part: str, is_list: bool, trusted: Sequence[int]) -> Foothold | None:
    """Find who else decides what lies there. Programs are never looked for in relative folders; the loader looks for libraries
    without a "/" elsewhere."""
    is_elsewhere = name == "PATH" or not is_list or (name in ("LD_PRELOAD", "LD_AUDIT") and "/" not in part)
    if is_elsewhere and not part.startswith("/"):
        return None
    is_looked_in = is_list or LEADS_TO_CODE.search(name) is not None
    find = _foothold if is_looked_in else _foothold_on_way
    try:
        return find(part or ".", *trusted)
    except (NotRunError, ValueError):
        return Foothold(part, -1, "users that can't be found out")


def working_folder_for(identity: RunAsUser | None) -> str | None:
    """The folder to run in: None for the current one, / where others could have put something there.

    For root whoever could; for an ordinary user everybody and its owner. Those of a group that share a folder run each other's
    code there anyway.
    """
    if _Trust.everybody:
        return None
    try:
        if os.geteuid() != ROOT:
            found = writers_of_folder(".")
            return "/" if found and found.writers in ("", EVERYBODY) else None
        trusted = (identity.uid,) if identity else ()
        return "/" if _foothold(".", *trusted) else None
    except (NotRunError, OSError):
        return "/"
