"""Findings with their evidence and fixes: the results of a check."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

import msgspec

from ddpdoctor.base.shell import is_typeable

NOT_TYPEABLE: Final = "the command is not shown: a name in it holds characters that no terminal can be given safely"


class Severity(str, Enum):
    """Degree of a finding. `fail`: training will not run, or not correctly. `warn`: it may not. `info`: good to know."""

    FAIL = "fail"
    WARN = "warn"
    INFO = "info"

    @property
    def rank(self) -> int:
        """0 for the worst, so that sorting by it puts the worst first."""
        return list(Severity).index(self)


FAIL, WARN, INFO = Severity


class Owner(str, Enum):
    """Whose it is to mend a finding. A scheduler takes a node out of use for `node` alone, never for what a user has set or written."""

    USER = "user"
    """Who starts the training: the script, its settings, its Python and its packages, its container."""
    NODE = "node"
    """Who runs this host: its hardware, its driver, its kernel, its limits and file systems, its packet filter."""
    FABRIC = "fabric"
    """Who runs the network between the hosts."""
    UNKNOWN = "unknown"
    """What was seen doesn't say."""


class SourcePlace(msgspec.Struct, frozen=True):
    """A place in source code.

    Args:
        file: its path, as the user named it or seen from there.
        line: from 1.
        column: from 1, in characters.
        text: the line without blanks at its ends; of a long one its beginning.
    """

    file: str
    line: int
    column: int = 1
    text: str = ""

    def __str__(self) -> str:
        """ "train.py:41", for a sentence."""
        return f"{self.file}:{self.line}"


class EditKind(str, Enum):
    """Changes to source code."""

    SET_ARGUMENT = "set-argument"
    """The call at the place is given an argument by its name, or another value for one; "0", "1" for those without a name."""
    REMOVE_ARGUMENT = "remove-argument"
    FIRST_IN_LOOP = "first-in-loop"
    """Lines at the beginning of the loop at the place."""
    IMPORT = "import"
    """The file imports a module, unless it does."""


class SourceEdit(msgspec.Struct, frozen=True, kw_only=True):
    """A change to source code that certainly is right where it can be made.

    Args:
        kind: of it.
        place: of the call or loop.
        name: of the argument or module; in a loop of the variable that must mean there what it means at `used_at`.
        text: the argument's value, or the lines, in which {turn} stands for the loop's variable, and {indent} for an indentation.
        used_at: a place at which that variable is used.
        called: the last part of what is called there, where several calls begin at the place: a().b().
    """

    kind: EditKind
    place: SourcePlace
    name: str
    text: str = ""
    used_at: SourcePlace | None = None
    called: str = ""


class Evidence(msgspec.Struct, frozen=True):
    """One fact that a finding rests on, and where it was read."""

    text: str
    source: str = ""


class Fix(msgspec.Struct, frozen=True):
    """A remedy as data: what to do, the exact commands, and whether the tool may safely run them itself.

    `proven_by` is the slug of the check that will pass once the fix has worked; empty means the check that found it.
    """

    text: str
    commands: tuple[str, ...] = ()
    appliable: bool = False
    proven_by: str = ""

    def __post_init__(self) -> None:
        """Leave out commands that can't be typed, such as one that names a file with a line break in its name."""
        typeable = tuple(filter(is_typeable, self.commands))
        if len(typeable) < len(self.commands):
            msgspec.structs.force_setattr(self, "text", f"{self.text} ({NOT_TYPEABLE})")
            # What is left over may be half of what was meant.
            msgspec.structs.force_setattr(self, "commands", ())
            msgspec.structs.force_setattr(self, "appliable", False)


class Finding(msgspec.Struct, frozen=True):
    """One thing that a check found wrong.

    Args:
        summary: one line, plain words, with the figures.
        cause: why it is so here; empty means the "Why" of the check's own page.
        severity: None means the check's own.
        owner: whose it is to mend it; None means the check's own.
        rank: of a finding about one rank.
        said: words of a program that failed, if the finding rests on such. Checks that know them by their log signs are
            named with it.
        place: of a finding about source code.
        edits: that mend it there, if it is certain which.
    """

    summary: str
    cause: str = ""
    evidence: tuple[Evidence, ...] = ()
    fixes: tuple[Fix, ...] = ()
    severity: Severity | None = None
    rank: int | None = None
    said: str = ""
    owner: Owner | None = None
    place: SourcePlace | None = None
    edits: tuple[SourceEdit, ...] = ()

    @classmethod
    def of(
        cls,
        summary: str,
        *parts: Evidence | Fix | Iterable[Evidence | Fix] | None,
        cause: str = "",
        severity: Severity | None = None,
        rank: int | None = None,
        owner: Owner | None = None,
        place: SourcePlace | None = None,
        edits: tuple[SourceEdit, ...] = (),
    ) -> Finding:
        """A finding of its parts: evidence and fixes, each kind in the order in which it is given; None stands for none."""
        given = [part for part in parts if part is not None]
        flat = [part for several in given for part in ((several,) if isinstance(several, Evidence | Fix) else several)]
        evidence = tuple(part for part in flat if isinstance(part, Evidence))
        fixes = tuple(part for part in flat if isinstance(part, Fix))
        return cls(summary, cause, evidence, fixes, severity, rank, owner=owner, place=place, edits=edits)
