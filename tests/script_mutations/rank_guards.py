"""Conditions on the rank, by the words in them: those that let rank 0 alone through for sure, and whatever may be one."""

from __future__ import annotations

import ast
import re
from typing import Final, NamedTuple

from tests.script_mutations.sources import SourceFile, last_name

_RANKS: Final = frozenset(
    {
        "rank",
        "global_rank",
        "world_rank",
        "dist_rank",
        "ddp_rank",
        "process_index",
        "get_rank",
        "get_global_rank",
        "RANK",
    }
)
_MAIN: Final = frozenset(
    {
        "is_main_process", "is_main", "is_master", "is_master_process", "is_rank_zero", "is_rank0", "is_primary",
        "is_global_zero", "master_process", "main_process", "is_root", "is_chief",
    }
)  # fmt: skip
_MAY_BE: Final = re.compile(
    r"rank|main|master|primary|chief|leader|root|zero|first|gpu|node|proc|writer|logger|tracker|save_on|should_|is_log|"
    r"world|distributed|ddp|parallel|barrier|lock|coord|launch|slurm",
    re.IGNORECASE,
)
_DISTRIBUTED: Final = re.compile(
    r"distributed|is_initialized|dist\.is_available|\bddp\b|use_ddp|is_ddp|world_size|is_dist|use_dist|n_?gpus? > 1",
    re.IGNORECASE,
)


class Guard(NamedTuple):
    """What a condition for rank 0 alone asks besides: "" for nothing."""

    rest: str = ""


def may_ask_for_rank(test: ast.AST) -> bool:
    """Whether the words of a condition may be about ranks, or about how many there are."""
    return _MAY_BE.search(ast.unparse(test)) is not None


def may_keep_ranks_away(test: ast.AST, *, holds: bool) -> bool:
    """Whether it may be that not all ranks of a distributed run come behind a condition.

    Args:
        test: the condition.
        holds: they come there if it is true; else if it is false.
    """
    if holds and _is_distributed(test):
        return False
    if not holds and _is_not_distributed(test):
        return False
    return may_ask_for_rank(test)


def rank_zero_guard(test: ast.expr, file: SourceFile) -> Guard | None:
    """What is left of a condition without its question for rank 0; None where it doesn't ask for that, or not for sure."""
    if _is_rank_zero(test):
        return Guard()
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        others = [part for part in test.values if not _is_rank_zero(part)]
        if len(others) < len(test.values) and not any(map(may_ask_for_rank, others)):
            return Guard(" and ".join(file.text_of(part) for part in others))
    return None


def _is_rank_zero(test: ast.expr) -> bool:
    """Whether it is true on rank 0 alone, or where there is but one process."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        right = test.comparators[0]
        if isinstance(test.ops[0], ast.Eq):
            return _is_rank(test.left) and isinstance(right, ast.Constant) and right.value == 0
        return isinstance(test.ops[0], ast.In) and _is_rank(test.left) and ast.unparse(right) in _ZERO_OR_NONE
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_rank(test.operand)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        asked = [part for part in test.values if _is_rank_zero(part)]
        return bool(asked) and all(part in asked or _is_not_distributed(part) for part in test.values)
    if isinstance(test, ast.BoolOp):
        asked = [part for part in test.values if _is_rank_zero(part)]
        return bool(asked) and all(part in asked or _is_distributed(part) for part in test.values)
    return last_name(test) in _MAIN


_ZERO_OR_NONE: Final = ("[-1, 0]", "(-1, 0)", "{-1, 0}", "[0, -1]", "(0, -1)", "[0]", "(0,)")


def _is_rank(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _is_rank(node.left)
    if isinstance(node, ast.Call) and last_name(node) == "int" and node.args:
        return ast.unparse(node.args[0]) in ("os.environ['RANK']", "os.environ.get('RANK', 0)", "os.getenv('RANK', 0)")
    return last_name(node) in _RANKS


def _is_distributed(test: ast.AST) -> bool:
    if isinstance(test, ast.UnaryOp):
        return False
    if isinstance(test, ast.BoolOp):
        return all(map(_is_distributed, test.values))
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return isinstance(test.ops[0], ast.Gt) and _DISTRIBUTED.search(ast.unparse(test)) is not None
    return "rank" not in ast.unparse(test) and _DISTRIBUTED.search(ast.unparse(test)) is not None


def _is_not_distributed(test: ast.AST) -> bool:
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and _is_distributed(test.operand)
