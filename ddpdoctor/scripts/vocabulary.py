"""Names that mean something in a training: of libraries' calls, of settings, and of what a script calls its ranks."""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import Final

import msgspec

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.tables import read_table
from ddpdoctor.facts.script import OriginKind, Ranks, Role
from ddpdoctor.scripts.abstract_value import AbstractValue
from ddpdoctor.scripts.values import Quantity, RankTest


class LibraryCalls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table of what libraries' names mean.

    Args:
        same: other names of the same function.
        roles: by full name; "?.name" for a method of whatever object.
        quantities: what a function returns.
        settings: what an environment variable holds.
        distributed_tests: functions that say whether the run is distributed.
        harmless: packages whose functions do nothing with what they are handed that a rule asks for.
    """

    same: dict[str, str]
    roles: dict[str, tuple[Role, ...]]
    quantities: dict[str, OriginKind]
    settings: dict[str, OriginKind]
    distributed_tests: frozenset[str]
    harmless: frozenset[str]


class Framework(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A framework. modules: names whose import tells that it is used. does: what nobody has to do who uses it."""

    modules: tuple[str, ...]
    does: tuple[str, ...]


@cache
def library_calls() -> LibraryCalls:
    """The table, read once."""
    return read_table(__package__, "library_calls.json", LibraryCalls)


@cache
def frameworks() -> dict[str, Framework]:
    """The frameworks by name."""
    return read_table(__package__, "frameworks.json", dict[str, Framework])


@cache
def known_packages() -> frozenset[str]:
    """Packages that the tables speak of: what they do needn't be followed, be they a part of the project."""
    names = (*library_calls().roles, *(module for framework in frameworks().values() for module in framework.modules))
    return frozenset(name.partition(".")[0] for name in names) - {"?"}


@cache
def is_known_package(name: str) -> bool:
    """Whether what has that full name is of Python itself, or of a package that the tables speak of: a rank would be known as one."""
    package = name.partition(".")[0]
    return package in library_calls().harmless or package in sys.stdlib_module_names or package in known_packages()


@cache
def frameworks_imported(name: str) -> tuple[str, ...]:
    """Frameworks that the import of that name tells of."""
    return tuple(
        framework
        for framework, facts in frameworks().items()
        if any(name == module or name.startswith(module + ".") for module in facts.modules)
    )


@cache
def roles_of(name: str) -> tuple[str, tuple[Role, ...]] | None:
    """The usual name and the roles of a library's function or method; None for one that has none."""
    table = library_calls()
    name = table.same.get(name, name)
    roles = table.roles.get(name)
    if roles is None and ("()" in name or name.startswith("?")):
        roles = table.roles.get(f"?.{name.rpartition('.')[2]}")
    return (name, roles) if roles else None


@cache
def methods_of(role: Role) -> tuple[str, ...]:
    """Names of the methods that have a role, whatever object they are of."""
    return tuple(
        name.removeprefix("?.") for name, roles in library_calls().roles.items() if name[0] == "?" and role in roles
    )


_ZERO: Final = RankTest((Ranks.ZERO,), (Ranks.NOT_ZERO,))
_LOCAL_ZERO: Final = RankTest((Ranks.LOCAL_ZERO,), (Ranks.NOT_LOCAL_ZERO,))
DISTRIBUTED_TEST: Final = RankTest((Ranks.DISTRIBUTED,), (Ranks.NOT_DISTRIBUTED,))

_MEANINGS: Final[tuple[tuple[re.Pattern[str], AbstractValue], ...]] = (
    (
        compile_lazily(r"(?:global_?|world_?|ddp_?|dist_?|cur_?|this_?|my_?|process_?)?rank|global_rank|process_index"),
        Quantity(OriginKind.RANK),
    ),
    (
        compile_lazily(r"(?:ddp_?|dist_?)?local_?(?:rank|process_index)|(?:node_?)?rank_?local|local_rank_id"),
        Quantity(OriginKind.LOCAL_RANK),
    ),
    (
        compile_lazily(r"(?:ddp_?|dist_?|global_?)?world_?size|num_?(?:processes|replicas|ranks)|n_ranks"),
        Quantity(OriginKind.WORLD_SIZE),
    ),
    (
        compile_lazily(
            r"(?:is_?)?local_?(?:main|master|primary|zero)(?:_?process)?(?:_?zero)?|is_local_(?:main|master|rank_?0|leader)\w*"
        ),
        _LOCAL_ZERO,
    ),
    (
        compile_lazily(
            r"(?:is_?)?(?:main|master|primary|chief|lead|leader)_?(?:process|proc|rank|worker|node|gpu)"
            r"|is_?(?:the_?)?(?:main|master|primary|chief|leader|root|rank_?(?:0|zero)|zero_?rank|global_?zero|world_process_zero|first_worker)"
            r"|is_(?:wandb|log|logging|print|save|saving|write|writing)_rank"
            r"|rank_?zero|should_save|on_(?:main|master)\w*|is_(?:logger|writer|saver)"
        ),
        _ZERO,
    ),
    (
        compile_lazily(
            r"(?:is_?)?(?:use_?|in_?|multiprocessing_?)?(?:distributed|ddp|torch_?ddp)(?:_?(?:run|mode|training|enabled|initialized|available|process))?"
            r"|is_?dist(?:_\w+)?|dist_?(?:enabled|initialized|mode|train(?:ing)?)|multi_?(?:gpu|process)s?|is_parallel|use_dist"
        ),
        DISTRIBUTED_TEST,
    ),
)
"""Names as scripts and their helpers use them, to what they say; "get_" before it and blanks between don't matter."""


_WORD_BREAK: Final = compile_lazily(r"(?<=[a-z0-9])(?=[A-Z])")


@cache
def meaning_of(name: str) -> AbstractValue | None:
    """What a name says of ranks all by itself; None if nothing."""
    words = _WORD_BREAK.sub("_", name).lower().strip("_").removeprefix("get_")
    for pattern, meaning in _MEANINGS:
        if pattern.fullmatch(words):
            return meaning
    return None


_HINTS: Final = compile_lazily(
    r"rank|main|master|primary|chief|leader|local|node|world|dist|ddp|proc|worker|gpu|device|should_|zero|is_root|coordinator|first|writer",
    re.I,
)


_COUNTS: Final = compile_lazily(
    r"(?:n|num|number)_?(?:of_?)?\w*|\w*(?:nodes|gpus|devices|workers|procs|processes|ranks|hosts|world_?size)(?:_per_\w+)?",
    re.I,
)
"""How many there are: the same for all ranks."""


_LOADED: Final = compile_lazily(r"load(?!er)|resum|restor|pre_?train|weight|fine_?tun", re.I)


@cache
def is_loaded(name: str) -> bool:
    """Whether a name is that of what a training begins with: all ranks load it, or none."""
    return _LOADED.search(name) is not None


_SETTINGS: Final = r"(?:self\.)?_?(?:cfg|conf|config|args|opts?|options|flags|hparams)"
_SETTING: Final = compile_lazily(_SETTINGS + r"\.[\w.]+", re.IGNORECASE)
_HOLDER: Final = compile_lazily(_SETTINGS + r"(?:\.\w+)*", re.IGNORECASE)
_TOLD_TO_ONE: Final = compile_lazily(
    r"save|saving|log|writ|print|verbose|quiet|silent|report|dump|output", re.IGNORECASE
)
"""What one rank alone may be told to do, by a setting that the script itself writes."""


@cache
def holds_settings(text: str) -> bool:
    """Whether something holds settings, by its words: `cfg`, `self.args.train`."""
    return _HOLDER.fullmatch(text) is not None


@cache
def is_setting(text: str) -> bool:
    """Whether something is a setting for all ranks by its words, wherever they come from: `cfg.train.resume`."""
    name = text.replace("()", "")
    if _SETTING.fullmatch(name) is None or _HINTS.search(name):
        return False
    return _TOLD_TO_ONE.search(name.partition(".")[2]) is None


@cache
def hints_at_ranks(text: str) -> bool:
    """Whether what is compared in a condition of which nothing else is known may be a rank, by its words."""
    return _HINTS.search(text) is not None and _COUNTS.fullmatch(text) is None
