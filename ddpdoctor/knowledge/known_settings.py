"""The variables that training reads: who reads each, since when, what took its place, and which values it takes."""

from __future__ import annotations

import re
from functools import cache, lru_cache

import msgspec

from ddpdoctor.base.tables import read_table

FAMILIES = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "TORCHELASTIC_", "TORCH_DISTRIBUTED_", "GLOO_")
"""Prefixes whose readers are known completely, so that a name which isn't in the table is a mistake."""


class KnownSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One variable.

    reader: "NCCL", "torch", "torchrun", "gloo", "CUDA" ...
    since: the reader's first version that knows it; "" as far back as matters.
    replaced_by: the newer name for the same thing, "" if there is none.
    removed: the reader's current version no longer looks at it.
    kind: how the reader parses the value; "" where any text will do.
    across: "equal" where all nodes of a job should have the same value, "per-node" where it has to be right on each by
        itself; "" where it is the node's own affair.
    default: what the reader takes where the variable isn't set: to set it to that changes nothing.
    apart: why ranks that differ in it don't understand each other; "" where they do. apart_source: a file of NCCL 2.30.7, or of torch.
    """

    name: str
    reader: str
    what: str = ""
    since: str = ""
    replaced_by: str = ""
    removed: bool = False
    kind: str = ""
    choices: tuple[str, ...] = ()
    across: str = ""
    default: str = ""
    apart: str = ""
    apart_source: str = ""

    def complaint(self, value: str) -> str:
        """Say what the reader makes of a value that it doesn't understand, as the end of a sentence; "" if it does."""
        # An empty value is as good as none, except to the readers that stop over a bad one.
        if not value.strip() and not self.rejects:
            return ""
        return "" if self._understands(value) else self._reaction(value)

    @property
    def rejects(self) -> bool:
        """Whether the reader stops the program over a bad value instead of passing over it."""
        return self.reader == "torch" or self.kind == "address"

    def _understands(self, value: str) -> bool:
        if matches := _MATCHERS.get(self.kind):
            return matches(value) is not None
        if self.kind == "exact":
            return value in self.choices
        if self.kind == "level":
            return value[:1].isdigit() or value in self.choices or value in _RARE_LEVELS
        if self.kind == "word":
            return value.upper() in self.choices
        if self.kind == "words":
            return _all_words_known(value, self.choices)
        return True

    def _reaction(self, value: str) -> str:
        if self.kind == "nccl-int":
            return f"NCCL takes whole numbers only and reads this as {_as_strtoll(value)}"
        if self.kind == "thread-counts":
            return f"{self.reader} passes over it, and takes one thread a core; it takes {self.takes}"
        if self.rejects:
            return f"{self.reader} stops with an error; it takes {self.takes}"
        return f"{self.reader} doesn't know that word; it takes {self.takes}"

    @property
    def takes(self) -> str:
        """The values as a person reads them: "OFF, INFO or DETAIL"."""
        if self.choices:
            return ", ".join(self.choices[:-1]) + f" or {self.choices[-1]}"
        return {
            "torch-bool": "0 or 1",
            "torch-int": "a whole number",
            "nccl-int": "a whole number",
            "address": "host:port",
            "thread-counts": "a whole number from 1 up",
        }.get(self.kind, "")


class ReadByNothing(msgspec.Struct, frozen=True, kw_only=True):
    """A name that people set and no program reads. `meant`: the real name, where one is known; `harmless`: it only
    describes an installation, and container images set it."""

    name: str
    meant: str = ""
    why: str = ""
    harmless: bool = False


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    variables: tuple[KnownSetting, ...]
    read_by_nothing: tuple[ReadByNothing, ...]
    plugin_prefixes: tuple[str, ...]


_MATCHERS = {
    "nccl-int": re.compile(r"\s*[+-]?(?:0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)\s*").fullmatch,
    "torch-int": re.compile(r"(?s)\s*[+-]?[0-9].*").fullmatch,
    "torch-bool": re.compile(r"(?i)y|yes|1|t|true|n|no|0|f|false").fullmatch,
    "thread-counts": re.compile(r"\s*\+?0*[1-9][0-9]*\s*(?:,\s*\+?0*[1-9][0-9]*\s*)*").fullmatch,
    "address": re.compile(r"\S+:[0-9]{1,5}").fullmatch,
}
"""Values that a reader understands, by kind."""
_RARE_LEVELS = {"NVB", "C2C", "P2C", "PXN"}


def _as_strtoll(value: str) -> int:
    """C's strtoll(value, NULL, 0): whatever number the text begins with, else 0."""
    found = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", value)
    if not found:
        return 0
    digits = found[2]
    base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") else 10
    return int(found[1] + digits, base)


def _all_words_known(value: str, choices: tuple[str, ...]) -> bool:
    """Whether each word of NCCL's comma list is one that it knows. The form per collective ("allreduce:tree") isn't
    judged."""
    if ":" in value or ";" in value:
        return True
    known = {choice.lower() for choice in choices}
    return all(word.strip().lower() in known for word in value.removeprefix("^").split(",") if word.strip())


@cache
def _table() -> _Table:
    return read_table(__name__, "settings.json", _Table)


@cache
def known_settings() -> dict[str, KnownSetting]:
    """Every known variable by its name."""
    return {variable.name: variable for variable in _table().variables}


@cache
def read_by_nothing() -> dict[str, ReadByNothing]:
    """Names that are often set and that nothing reads."""
    return {unread.name: unread for unread in _table().read_by_nothing}


def read_by_a_plugin(name: str) -> bool:
    """Whether a network or tuner plugin may read it, whose settings aren't all known."""
    return name.startswith(_table().plugin_prefixes)


def in_a_known_family(name: str) -> bool:
    """Whether a variable of that name would be in the table if anything read it."""
    return name.startswith(FAMILIES) and not read_by_a_plugin(name)


MAX_REMEMBERED_NAMES = 1000
"""Names of which is kept which known one they are near: the hosts of a fleet have the same."""

SHORTEST_COMPARED = 8
"""Characters of a name that others' names are compared with: a slip makes another word of a shorter one (RANK, BANK)."""

UNTOUCHED = 3
"""Characters at an end that one slip leaves alone, unless it leaves alone as many at the other end."""

OTHERS_PREFIXES = (
    "HCCL_", "MCCL_", "RCCL_", "XCCL_", "UCCL_", "ACCL_", "TCCL_", "PCCL_", "BCCL_", "MSCCL_",
    "KMP_", "GOMP_", "OMPI_", "PMI_", "PMIX_", "MPI_", "I_MPI_", "MV2_", "SLURM_", "OLD_", "SAVED_",
)  # fmt: skip
"""Whose own names may be one letter away from known ones: other makers' collective libraries (Huawei's HCCL, MetaX' MCCL ...),
whose settings are called like NCCL's, launchers, and scripts that keep an earlier value."""


@lru_cache(MAX_REMEMBERED_NAMES)
def one_slip_from(name: str) -> str:
    """The known name that this one becomes by mending one slip, "" if there is none.

    A slip is a character too many, too few or another one, two that changed places, or small letters; anywhere in the name.
    """
    if name in known_settings() or name in read_by_nothing() or name.startswith(OTHERS_PREFIXES):
        return ""
    if name != name.upper():
        # Scripts keep what they work out in small letters (master_addr); no other program's begin as these do.
        right = name.upper()
        return right if right in known_settings() and right.startswith(FAMILIES) else ""
    # An underscore or a number at an end is put there on purpose: what was set before, or that of another job.
    if name.strip("_0123456789") in known_settings():
        return ""
    alike = (*_by_end().get(f"{name[:UNTOUCHED]}*", ()), *_by_end().get(f"*{name[-UNTOUCHED:]}", ()))
    return next((right for right in alike if _is_one_slip(name, right)), "")


@cache
def _by_end() -> dict[str, list[str]]:
    """Known names with which others' are compared, by what they begin with ("NCC*") and by what they end in ("*ORT")."""
    names: dict[str, list[str]] = {}
    for name in known_settings():
        if len(name) >= SHORTEST_COMPARED and "_" in name and name == name.upper():
            for end in (f"{name[:UNTOUCHED]}*", f"*{name[-UNTOUCHED:]}"):
                names.setdefault(end, []).append(name)
    return names


def _is_one_slip(name: str, right: str) -> bool:
    start = 0
    while start < min(len(name), len(right)) and name[start] == right[start]:
        start += 1
    name, right = name[start:], right[start:]
    while name and right and name[-1] == right[-1]:
        name, right = name[:-1], right[:-1]
    return (len(name) <= 1 and len(right) <= 1) or (len(name) == 2 and name == right[::-1])
