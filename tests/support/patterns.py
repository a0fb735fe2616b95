"""Every regular expression of the project, and texts on which one that isn't linear shows it."""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import msgspec

from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.logs.analyze.error_meanings import packaged_meanings
from ddpdoctor.logs.match.line_judge import MAX_LINE_BYTES
from tests.support.command import ROOT

try:
    from re import _constants as constants  # type: ignore[attr-defined]
    from re import _parser as parser
except ImportError:  # Python 3.10
    import sre_constants as constants
    import sre_parse as parser

SEARCHING = frozenset(("search", "sub", "subn", "findall", "finditer", "split"))
ANCHORED = frozenset(("match", "fullmatch"))
OF_MODULE = SEARCHING | ANCHORED | {"compile"}

PROGRAMMES = ("ddpdoctor/probes/target_python/inquiry.py",)
"""What runs when it is imported."""

LONG = 20_000
"""Characters of a text that may be of any length."""
CHEAP_SECONDS = 0.01
"""Of processor time: what takes less over the whole text needs no second look, whatever its growth."""
MAX_SECONDS = 0.5
"""Of processor time; whatever takes longer isn't linear."""
MAX_GROWTH = 9
"""Times as long for four times the text: a linear pattern takes 4, a quadratic one 16."""
MAX_BOUND = 1000
"""Repetitions; whatever may be repeated more often may be repeated without an end."""
MAX_TEXTS = 120
"""Texts that are tried on one pattern."""


class Expression(NamedTuple):
    """One regular expression, where it stands, how it is used, which is one of the methods of `re.Pattern`, and the characters of the
    longest text that it is given, as far as those are bounded."""

    where: str
    compiled: re.Pattern[Any]
    method: str
    longest: int = LONG


class TooSlow(Exception):
    """The deadline has passed."""


# What is collected


@cache
def modules() -> tuple[tuple[ModuleType, ast.Module, str], ...]:
    """Each module that can be imported, its tree, and its path."""
    found = []
    for path in sorted(chain((ROOT / "ddpdoctor").rglob("*.py"), (ROOT / "checks").rglob("*.py"))):
        file = path.relative_to(ROOT)
        if file.name == "__main__.py" or file.parts[:2] == ("ddpdoctor", "checks"):
            continue
        source = re.sub(r"(?<!def) compile_lazily\(", " re.compile(", path.read_text())
        name = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        name = f"ddpdoctor.{name}" if name.startswith("checks") else name
        if re.search(r"^import re$|import compile_lazily$", source, re.MULTILINE):
            module = ModuleType(name) if str(file) in PROGRAMMES else importlib.import_module(name)
            vars(module).setdefault("re", re)
            found.append((module, ast.parse(source), str(file)))
    return tuple(found)


@cache
def collected() -> tuple[list[Expression], list[str]]:
    """All expressions; and where there are such as can't be told from the source, and how they are written."""
    by_name = _methods_by_name()

    def methods(file: str, name: str) -> set[str]:
        return by_name.get((file, name)) or by_name.get(("", name), set())

    found: list[Expression] = []
    unevaluated: list[str] = []
    for module, tree, file in modules():
        names = _names_of_compiled(tree)
        bound = {id(node.value): node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for call in ast.walk(tree):
            if not (isinstance(call, ast.Call) and _is_of_re(call.func) and call.args):
                continue
            assert isinstance(call.func, ast.Attribute)
            where = f"{file}:{call.lineno}"
            try:
                pattern, flags = _evaluated(call, module)
            except (NameError, TypeError, AttributeError):
                # A loop's own name, as a rule: it stands for one of the texts in a table of its module.
                texts = list(_texts_within([value for name, value in vars(module).items() if name.isupper()]))
                found += [
                    Expression(where, one, call.func.attr if call.func.attr != "compile" else "search")
                    for one in _compilable(texts)
                ]
                if not texts:
                    unevaluated.append(f"{file}: {ast.unparse(call.args[0])}")
                continue
            if call.func.attr != "compile":
                used = {call.func.attr}
            elif bound.get(id(call)) in SEARCHING | ANCHORED:
                used = {bound[id(call)]}
            else:
                used = methods(file, names.get(id(call), ""))
            found.append(Expression(where, re.compile(pattern, flags), _hardest(used)))
        for name, value in vars(module).items():
            found += [Expression(f"{file} {name}", one, _hardest(methods(file, name))) for one in _within(value)]
    magic_numbers = json.loads((ROOT / "ddpdoctor" / "checkpoints" / "kinds" / "magic_numbers.json").read_text())
    found += [
        Expression(
            f"magic number of {number['name']}", re.compile(number["pattern"].encode("ascii"), re.DOTALL), "match"
        )
        for number in magic_numbers
    ]
    for check in all_checks():
        signs = [sign for sign in check.log_signs if sign.pattern]
        found += [
            Expression(f"log sign of {check.slug}", re.compile(sign.pattern), "search", MAX_LINE_BYTES)
            for sign in signs
        ]
    for meaning in packaged_meanings():
        found.append(Expression(f"meaning of {meaning.cause[:40]}", re.compile(meaning.begins), "match"))
        found.append(Expression(f"meaning of {meaning.cause[:40]}", re.compile(meaning.code), "search"))
    return list(
        {(one.compiled.pattern, one.compiled.flags, one.method): one for one in reversed(found)}.values()
    ), unevaluated


def _is_of_re(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "re"
        and function.attr in OF_MODULE
    )


def _hardest(methods: set[str]) -> str:
    return next((method for method in sorted(methods) if method in SEARCHING), next(iter(sorted(methods)), "search"))


def _methods_by_name() -> dict[tuple[str, str], set[str]]:
    """By which methods the patterns of each name are used: in their own file, or anywhere ("")."""
    found: dict[tuple[str, str], set[str]] = {}
    for _, tree, file in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in SEARCHING | ANCHORED:
                name = node.value.id if isinstance(node.value, ast.Name) else getattr(node.value, "attr", "")
                for place in (file, "") if not name.startswith("_") else (file,):
                    found.setdefault((place, name), set()).add(node.attr)
    return found


def _names_of_compiled(tree: ast.Module) -> dict[int, str]:
    """The name that each `re.compile(...)` is given, by the call."""
    targets = [(node.targets[0], node.value) for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    targets += [(node.target, node.value) for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and node.value]
    return {id(value): target.id for target, value in targets if isinstance(target, ast.Name)}


def _evaluated(call: ast.Call, module: ModuleType) -> tuple[Any, int]:
    """Raises NameError where it takes more than the module's own names."""
    assert isinstance(call.func, ast.Attribute)
    at = {"sub": 4, "subn": 4, "compile": 1, "split": 3}.get(call.func.attr, 2)
    flags = [keyword.value for keyword in call.keywords if keyword.arg == "flags"] or call.args[at : at + 1]
    values = []
    for expression in (call.args[0], *flags):
        try:
            values.append(_value(_with_samples(expression, "name7", module), module))
        except TypeError:
            values.append(_value(_with_samples(expression, b"name7", module), module))
    return values[0], int(values[1]) if len(values) > 1 else 0


def _value(expression: ast.expr, module: ModuleType) -> Any:
    return eval(compile(ast.Expression(expression), "pattern", "eval"), dict(vars(module)))


def _with_samples(expression: ast.expr, sample: str | bytes, module: ModuleType) -> ast.expr:
    """The same with the sample in place of what comes from `re.escape`, and of local names in a longer text: any plain text."""

    class Samples(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            if ast.unparse(node.func) == "re.escape":
                return ast.copy_location(ast.Constant(sample), node)
            return self.generic_visit(node)

        def visit_Name(self, node: ast.Name) -> ast.AST:
            return (
                node if node.id in known or hasattr(module, node.id) else ast.copy_location(ast.Constant(sample), node)
            )

    copy = ast.parse(ast.unparse(expression), mode="eval").body
    own = {node.id for node in ast.walk(copy) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    known = own | vars(builtins).keys()
    if isinstance(copy, ast.Name):
        return copy
    return ast.fix_missing_locations(Samples().visit(copy))


def _texts_within(value: Any, depth: int = 4) -> Iterator[str | bytes]:
    """The texts in a container that may be expressions."""
    if isinstance(value, str | bytes):
        letters = value.decode("latin-1") if isinstance(value, bytes) else value
        if re.search(r"[\\*+?(\[{]", letters):
            yield value
    elif depth and isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from _texts_within(one, depth - 1)
    elif depth and isinstance(value, dict):
        yield from _texts_within([*value.keys(), *value.values()], depth - 1)


def _compilable(texts: Iterable[str | bytes]) -> Iterator[re.Pattern[Any]]:
    for text in texts:
        with suppress(re.error):
            yield re.compile(text)


def _within(value: Any, depth: int = 3) -> Iterator[re.Pattern[Any]]:
    """The compiled patterns in a container."""
    if isinstance(value, re.Pattern):
        yield value
    elif depth and isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from _within(one, depth - 1)
    elif depth and isinstance(value, dict):
        yield from _within([*value.keys(), *value.values()], depth - 1)
    elif depth and isinstance(value, msgspec.Struct):
        yield from _within([getattr(value, name) for name in value.__struct_fields__], depth - 1)


# Texts that are made for a pattern


@cache
def _recipes(pattern: Any, flags: int) -> tuple[tuple[str, str, str], ...]:
    parsed = parser.parse(pattern, flags & ~re.UNICODE if isinstance(pattern, bytes) else flags)
    repeated = list(dict.fromkeys(_repeated(parsed)))
    if not repeated:
        return ()
    parts = list(dict.fromkeys(part for part in _parts(parsed) if part))
    starts = ["", *(dict.fromkeys(start for start in _starts(parsed) if start))]
    pairs = [first + second for first in repeated[:8] for second in repeated[:8] if first != second]
    wholes = [(start, part, "") for part in parts for start in ("", starts[-1])]
    runs = [(start, letter, tail) for letter in repeated for start in starts for tail in ("\0", "")]
    recipes = list(dict.fromkeys([*_some(wholes), *_some(runs), *_some([("", pair, "\0") for pair in pairs])]))
    return tuple(recipes)


def _some(recipes: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Where there are too many, every so many: all kinds of them stay."""
    return recipes[:: max(1, -(-len(recipes) // (MAX_TEXTS // 3)))]


def _repeated(items: Iterable[Any]) -> Iterator[str]:
    """Letters that some part of the pattern takes as often as they come."""
    for operation, argument in items:
        endless = operation in (constants.MAX_REPEAT, constants.MIN_REPEAT) and argument[1] >= MAX_BOUND
        for inner in _inside(operation, argument):
            yield from _letters(inner) if endless else _repeated(inner)


def _letters(items: Iterable[Any]) -> Iterator[str]:
    for operation, argument in items:
        if operation in (constants.LITERAL, constants.NOT_LITERAL):
            yield chr(argument) if operation is constants.LITERAL else _other(argument)
        elif operation is constants.IN:
            yield from _of_class(argument)
        elif operation is constants.ANY:
            yield "x"
        else:
            for inner in _inside(operation, argument):
                yield from _letters(inner)


def _other(letter: int) -> str:
    return "x" if letter != ord("x") else "y"


_OF_CATEGORY = {
    "CATEGORY_DIGIT": "7",
    "CATEGORY_NOT_DIGIT": "x",
    "CATEGORY_SPACE": " \t\n",
    "CATEGORY_NOT_SPACE": "x",
    "CATEGORY_WORD": "xX7_",
    "CATEGORY_NOT_WORD": " -",
}


def _of_class(items: Iterable[Any]) -> Iterator[str]:
    items = list(items)
    if items[0][0] is constants.NEGATE:
        shut = re.compile("".join(["[", *(_written(item) for item in items[1:]), "]"]))
        yield from [one for one in "x7 \n-+=./:,\"'[({X_@\r\\" if not shut.match(one)][:8]
        return
    for operation, argument in items:
        if operation is constants.LITERAL:
            yield chr(argument)
        elif operation is constants.RANGE:
            yield chr(argument[0])
            yield chr(min(argument[1], argument[0] + 1))
        elif operation is constants.CATEGORY:
            yield from _OF_CATEGORY[str(argument)]


def _written(item: Any) -> str:
    operation, argument = item
    if operation is constants.LITERAL:
        return re.escape(chr(argument))
    if operation is constants.RANGE:
        return f"{re.escape(chr(argument[0]))}-{re.escape(chr(argument[1]))}"
    kinds = {"DIGIT": r"\d", "NOT_DIGIT": r"\D", "SPACE": r"\s", "NOT_SPACE": r"\S", "WORD": r"\w", "NOT_WORD": r"\W"}
    return kinds[str(argument).removeprefix("CATEGORY_")]


def _inside(operation: Any, argument: Any) -> list[Any]:
    """The sequences within one item."""
    if operation is constants.BRANCH:
        return list(argument[1])
    if operation is constants.SUBPATTERN:
        return [argument[3]]
    if operation in (constants.MAX_REPEAT, constants.MIN_REPEAT, getattr(constants, "POSSESSIVE_REPEAT", None)):
        return [argument[2]]
    if operation in (constants.ASSERT, constants.ASSERT_NOT):
        return [argument[1]]
    if operation is getattr(constants, "ATOMIC_GROUP", None):
        return [argument]
    if operation is constants.GROUPREF_EXISTS:
        return [one for one in argument[1:] if one]
    return []


def _parts(items: Iterable[Any]) -> Iterator[str]:
    """A sample of each beginning of each sequence, and of each branch and repeated part."""
    items = list(items)
    for end in range(1, len(items) + 1):
        yield _sample(items[:end])
    for operation, argument in items:
        for inner in _inside(operation, argument):
            yield from _parts(inner)


def _starts(items: Iterable[Any]) -> Iterator[str]:
    """Samples of what stands before each repeated part."""
    items = list(items)
    for at, (operation, argument) in enumerate(items):
        before = _sample(items[:at])
        if operation in (constants.MAX_REPEAT, constants.MIN_REPEAT):
            yield before
        for inner in _inside(operation, argument):
            for start in _starts(inner):
                yield before + start


def _sample(items: Iterable[Any]) -> str:
    """A short text that the sequence matches, as a rule."""
    text = ""
    for operation, argument in items:
        if operation is constants.LITERAL:
            text += chr(argument)
        elif operation in (constants.IN, constants.NOT_LITERAL, constants.ANY):
            text += next(_letters([(operation, argument)]), "x")
        elif operation in (constants.MAX_REPEAT, constants.MIN_REPEAT):
            text += _sample(argument[2]) * max(1, min(argument[0], 100))
        elif operation in (constants.BRANCH, constants.SUBPATTERN, getattr(constants, "ATOMIC_GROUP", None)):
            text += _sample(_inside(operation, argument)[0])
        elif operation is constants.ASSERT and argument[0] < 0:
            text += _sample(argument[1])
    return text


# What is measured


def worst_growth(expression: Expression) -> str:
    """Says on which text the expression takes more than proportionally longer; "" where there is none."""
    recipes = _recipes(expression.compiled.pattern, expression.compiled.flags)
    for recipe in recipes:
        text = _text(expression, recipe, expression.longest)
        try:
            if _seconds(expression, text) < CHEAP_SECONDS:
                continue
            shorter = _text(expression, recipe, expression.longest // 4)
            # What a busy machine does to a figure it doesn't do to each.
            if all((growth := _growth(expression, shorter, text)) > MAX_GROWTH for _ in range(3)):
                return f"{text[:60]!r}: four times the text takes {growth:.0f} times as long"
        except TooSlow:
            return f"{text[:60]!r}: {len(text)} characters take more than {MAX_SECONDS} s"
    return ""


def _growth(expression: Expression, shorter: Any, text: Any) -> float:
    return _seconds(expression, text) / min(_seconds(expression, shorter) for _ in range(3))


def _text(expression: Expression, recipe: tuple[str, str, str], size: int) -> Any:
    """What begins a match, then something over and over, then an end by which it may fail."""
    prefix, pump, tail = recipe
    text = (prefix + pump * (size // len(pump) + 1))[: size - len(tail)] + tail
    return text.encode("latin-1", "replace") if isinstance(expression.compiled.pattern, bytes) else text


def _seconds(expression: Expression, text: Any) -> float:
    use: Callable[[Any], object] = getattr(
        expression.compiled, "finditer" if expression.method in SEARCHING else expression.method
    )
    with _deadline(MAX_SECONDS):
        start = time.thread_time()
        found = use(text)
        if expression.method in SEARCHING:
            for _ in found:  # type: ignore[attr-defined]
                pass
        return time.thread_time() - start


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raises TooSlow after so many seconds of processor time."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
