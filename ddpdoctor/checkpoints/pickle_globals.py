"""The classes and functions that pickles name: which are torch's own, and what the others are, as pickle_globals.json says. Pure.

In the table stands what a name is in a few words, by full name, or by a module for all in it. Dangerous: known to run
commands or code, or to reach files or the network; of any other that doesn't mean harmless.
"""

from __future__ import annotations

from functools import cache
from sys import stdlib_module_names

import msgspec

from ddpdoctor.base.tables import read_table


class KnownGlobals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table. Source: torch 2.13, torch/_weights_only_unpickler.py; an earlier torch allows fewer.

    allowed_by_weights_only: what torch.load(weights_only=True) accepts after `import torch` and nothing else
    (_get_allowed_globals). needs_import: accepted too, once the module named has been imported. torchscript, python_2:
    what checkpoints are made of besides. renamed_modules, renamed: Python 2's names as torch's unpickler translates them
    (torch/_utils.py: IMPORT_MAPPING, NAME_MAPPING). packages_of_python: modules of the standard library that have modules
    in them; of any other, code.model is somebody's own package. buried: pickles of protocol 4 may name attributes of
    attributes, torch.serialization.os.system; buried_last: functions that any module which uses them hands on under its own
    name. dangerous, others: names by what they are.
    """

    allowed_by_weights_only: frozenset[str]
    needs_import: dict[str, str]
    torchscript: frozenset[str]
    python_2: frozenset[str]
    renamed_modules: dict[str, str]
    renamed: dict[str, str]
    packages_of_python: frozenset[str]
    buried: frozenset[str]
    buried_last: frozenset[str]
    dangerous: dict[str, list[str]]
    others: dict[str, list[str]]


@cache
def known_globals() -> KnownGlobals:
    return read_table(__name__, "pickle_globals.json", KnownGlobals)


@cache
def own_globals() -> frozenset[str]:
    """The globals that checkpoints are made of. These make tensors and containers: none of them runs, opens or imports anything by itself."""
    known = known_globals()
    return known.allowed_by_weights_only.union(known.needs_import, known.torchscript, known.python_2)


@cache
def meanings() -> dict[str, tuple[str, bool]]:
    """The meaning of the classes and functions in the table, and whether they are dangerous, by name or module."""
    known = known_globals()
    return {
        name: (text, dangerous)
        for kinds, dangerous in ((known.others, False), (known.dangerous, True))
        for text, names in kinds.items()
        for name in names
    }


def meaning(name: str) -> tuple[str, bool]:
    """Say in a few words what a class or function is, by its full name, and whether it is known to be dangerous.

    Names that Python 2 used are judged by what Python 3 makes of them, too: below protocol 3 it translates them while it
    loads.
    """
    text, dangerous = _meaning(name)
    if dangerous:
        return text, True
    from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING

    module, _, last = name.rpartition(".")
    module, last = NAME_MAPPING.get((module, last)) or (IMPORT_MAPPING.get(module, module), last)
    return _meaning(f"{module}.{last}")


def is_dangerous(name: str) -> bool:
    """Whether whoever loads a file that names it may run what the file's author wants."""
    return name not in own_globals() and meaning(name)[1]


def _meaning(name: str) -> tuple[str, bool]:
    parts = name.split(".")
    # The longest part of the name that stands in the table.
    starts = [] if _is_of_a_namesake(parts) else [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    known = next((meanings()[start] for start in starts if start in meanings()), None)
    if known and known[1]:
        return known
    buried = [part for part in parts[1:] if part in known_globals().buried]
    buried += [part for part in parts[-1:] if part in known_globals().buried_last]
    if buried:
        return f"reaches {buried[0]} by way of another module", True
    if known:
        return known
    if parts[0] == "__torch__":
        return "a class of the TorchScript code in the file itself", False
    if parts[0] in stdlib_module_names and starts:
        return f"part of Python's standard library ({parts[0]})", False
    return f"from the package {parts[0]}, which we don't know", False


def _is_of_a_namesake(parts: list[str]) -> bool:
    """Whether it is of somebody's own package that is called as one of Python's modules: code.model.Net, trace.models.Net.

    Of code itself there may be a class's method, code.InteractiveConsole.push, or another module that it imports.
    """
    first, *rest = parts
    if first == "sh" and rest:
        # The package makes a command of any name; none begins with a capital, but its own class Command.
        return rest[0] != "Command" and rest[-1][:1].isupper()
    if len(rest) < 2 or first not in stdlib_module_names or first in known_globals().packages_of_python:
        return False
    return rest[0].islower() and not rest[0].startswith("_") and rest[0] not in stdlib_module_names
