"""Which functions and classes of a script can come to a call that has a role, by the words of their source: the others needn't be followed.
And which modules speak of training at all.

A word that may name such a call is enough, be it in a text. A function that calls another one that tells, tells, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from typing import Final, NamedTuple

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.scripts.project_module import ProjectModule
from ddpdoctor.scripts.source_text import SourceText
from ddpdoctor.scripts.vocabulary import frameworks, library_calls

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda

_WORD: Final = compile_lazily(r"\.?[A-Za-z_]\w*")
_OF_ENVIRONMENT: Final = ("environ", "getenv", "putenv")
_IMPORT: Final = "import"
_METHOD: Final = "?."
_TORCH: Final = "torch"


class _Unit(NamedTuple):
    name: str
    node: Definition
    words: frozenset[str]


def telling_functions(
    definitions: Iterable[tuple[str, Definition]], source: SourceText, names: Iterable[str]
) -> frozenset[int]:
    """The ids of the nodes of those that tell.

    Args:
        definitions: by the name to which they are bound.
        source: in which they stand.
        names: of the module that tell, whoever uses them.
    """
    units = [_Unit(name, node, _words(node, source)) for name, node in definitions]
    telling = {*_words_of_roles(), *names}
    found: set[int] = set()
    left = units
    while True:
        told = [unit for unit in left if not telling.isdisjoint(unit.words)]
        if not told:
            return frozenset(found)
        found.update(id(unit.node) for unit in told)
        telling = {unit.name for unit in told}
        left = [unit for unit in left if id(unit.node) not in found]


def speaks_of_training(module: ProjectModule) -> bool:
    """Whether torch or a framework is named in a module, be it in a text."""
    if module.speaks_of_training is None:
        words = _words_of_training()
        module.speaks_of_training = any(words.search(line) for line in module.source.lines)
    return module.speaks_of_training


@cache
def _words_of_training() -> re.Pattern[str]:
    names = {_TORCH, *(name for framework in frameworks().values() for name in framework.modules)}
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b")


def _words(node: Definition, source: SourceText) -> frozenset[str]:
    return frozenset(_WORD.findall("\n".join(source.lines[node.lineno - 1 : node.end_lineno])))


@cache
def _words_of_roles() -> frozenset[str]:
    table = library_calls()
    words = {_IMPORT, *_OF_ENVIRONMENT, *(f".{name}" for name in _OF_ENVIRONMENT)}
    for name in (*table.roles, *table.same):
        last = name.rpartition(".")[2]
        words.add(f".{last}")
        if not name.startswith(_METHOD):
            words.add(last)
    return frozenset(words)
