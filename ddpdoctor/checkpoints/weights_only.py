"""The globals at which torch.load(weights_only=True) stops, and the ways to load such a checkpoint, from the least that is given away to the most.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ddpdoctor.checkpoints.pickle_globals import known_globals

if TYPE_CHECKING:
    from ddpdoctor.checkpoints.pickles.machine import Program

NEVER_ALLOWED = frozenset({"sys", "os", "posix", "nt"})
"""Modules of which nothing is accepted, not even after add_safe_globals (_blocklisted_modules)."""

_KNOWN_OPCODES = frozenset({"EMPTY_SET", "SHORT_BINSTRING"})
"""Of the opcodes that plain protocol 2 doesn't have, those that the weights_only unpickler knows nevertheless."""

DO_NOT_LOAD = "Do not load this file, on any machine and with any option"
"""Said of a file that names something dangerous, without any command that loads it."""

IMPORT = "Import this before torch.load, which then accepts it"
ALLOW = "If you know these classes and what they do: allow exactly them before torch.load, in Python"
ALL = "for a file whose origin you trust as you would a program's: load all that is in it"


def weights_only_blockers(program: Program) -> tuple[str, ...]:
    """List where torch.load(weights_only=True) of torch 2.13 would stop: globals by name, then "the opcode MEMOIZE" ..."""
    known = known_globals()
    blocking: dict[str, None] = {}
    for named in program.globals.values():
        # As torch's unpickler looks it up.
        name = f"{known.renamed_modules.get(named.module, named.module)}.{named.name}"
        name = known.renamed.get(named.full_name, name)
        if name not in known.allowed_by_weights_only:
            blocking.setdefault(name)
    opcodes = sorted(program.opcodes - _KNOWN_OPCODES)
    return (*blocking, *(f"the opcode {name}" for name in opcodes))


def needed_import(name: str) -> str:
    """The module that has to be imported before weights_only=True accepts this global; "" where that doesn't help."""
    return known_globals().needs_import.get(name, "")


class Preparation(NamedTuple):
    """Words and the lines of Python after which torch.load(weights_only=True) goes through."""

    text: str
    lines: tuple[str, ...]


_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
"""A full name as Python writes it: a file may hold any text in its place, and this one goes into commands."""


_NEVER_FILLED = frozenset({"addict.addict.Dict", "collections.defaultdict", "collections.deque", "easydict.EasyDict"})
"""Dicts and lists of a kind of their own: allowed, they are made, but weights_only puts nothing into them."""


def preparation(blockers: Sequence[str]) -> Preparation | None:
    """The lines that let weights_only=True pass these globals; None where nothing does: an opcode that it doesn't know, no
    proper name, a class that it doesn't fill, or a module of which it takes nothing."""
    imports = tuple(dict.fromkeys(f"import {module}" for name in blockers if (module := needed_import(name))))
    others = [name for name in blockers if not needed_import(name)]
    if not others:
        return Preparation(IMPORT, imports)
    if _NEVER_FILLED.isdisjoint(others) and all(
        _NAME.fullmatch(name) and name.partition(".")[0] not in NEVER_ALLOWED for name in others
    ):
        return Preparation(ALLOW, (*imports, *allowing(others)))
    return None


def allowing(names: Sequence[str]) -> tuple[str, ...]:
    """The lines of Python that allow these classes and functions to torch.load."""
    modules = dict.fromkeys(name.rpartition(".")[0] for name in names)
    # NumPy 2 knows its core by another name, so the one in the file must be given, too.
    entries = [
        f'({name}, "{name}")' if name.startswith("numpy.core.") else name.removeprefix("__main__.") for name in names
    ]
    imports = f"import {', '.join(['torch', *(module for module in modules if module != '__main__')])}"
    lines = [imports, f"torch.serialization.add_safe_globals([{', '.join(entries)}])"]
    if "numpy.dtype" in names:
        # Each type of number has a class of its own, which is made without being named in the file.
        codes = '"?" + numpy.typecodes["AllInteger"] + numpy.typecodes["AllFloat"]'
        lines.append(f"torch.serialization.add_safe_globals([type(numpy.dtype(code)) for code in {codes}])")
    return tuple(lines)
