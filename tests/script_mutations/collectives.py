"""Mistakes with calls in which all ranks must take part."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.script_mutations.projects import Project
from tests.script_mutations.rank_guards import rank_zero_guard
from tests.script_mutations.seeds import Mutator, Seed, at
from tests.script_mutations.sources import SourceFile, keyword_of, unpacks

_TORCH: Final = tuple(
    f"torch.distributed.{name}"
    for name in (
        "barrier",
        "all_reduce",
        "all_gather",
        "all_gather_object",
        "broadcast",
        "broadcast_object_list",
        "reduce",
    )
)
_COLLECTIVE_SAVES: Final = (".save_state", ".save_checkpoint")
_NOT_ALL: Final = re.compile(r"rank|group|mesh|stage|barrier|first", re.IGNORECASE)


def barrier_on_rank_zero(project: Project) -> Iterator[Seed]:
    """Put a barrier under a condition for rank 0."""
    if not project.is_distributed and not project.uses("accelerate.Accelerator"):
        return
    for file in project.files.values():
        barrier = _barrier(file)
        if not barrier:
            continue
        for block in file.nodes:
            if not isinstance(block, ast.If) or block.orelse or block.body[0].lineno <= block.lineno:
                continue
            if (
                rank_zero_guard(block.test, file)
                and ("accelerator" in ast.unparse(block.test)) == ("accelerator" in barrier)
                and not _has_counterpart(file, block)
                and project.is_reached(file, block)
                and project.is_for_all(file, block, block.test)
            ):
                yield Seed(
                    f"{barrier} under the condition for rank 0",
                    (file.inserted_before(block.body[0], barrier),),
                    (at(file, block), at(file, block.body[0])),
                )


def _barrier(file: SourceFile) -> str:
    if file.imports.get("dist") == "torch.distributed":
        return "dist.barrier()"
    if re.search(
        r"^    *accelerator = Accelerator\(|^accelerator = Accelerator\(", file.content.decode(), re.MULTILINE
    ):
        return "accelerator.wait_for_everyone()"
    if file.imports.get("torch") == "torch" and "torch.distributed." in file.content.decode():
        return "torch.distributed.barrier()"
    return ""


def _has_counterpart(file: SourceFile, block: ast.AST) -> bool:
    """Whether the function does something for the other ranks: it may be that they wait, too."""
    function = file.scope_of(block) or file.tree
    tests = [node.test for node in ast.walk(function) if isinstance(node, ast.If | ast.IfExp)]
    return any(
        re.search(r"rank\w*(\(\))? ?(!=|>|not in)|not \w*\.?is_\w*(main|master)|not in [\[(]-1, 0", ast.unparse(test))
        for test in tests
    )


def guarded_collective(project: Project) -> Iterator[Seed]:
    """Put a condition for rank 0 around a collective."""
    if not project.is_distributed or project.is_left_to_framework:
        return
    for file, call in project.calls(*_TORCH):
        statement = file.statement_of(call)
        if not _is_of_all(file, call, statement) or not project.is_for_all(file, call) or _has_counterpart(file, call):
            continue
        dist = file.text_of(call.func).rpartition(".")[0]
        if not dist or "\n" in file.text_of(statement):
            continue
        text = f"if {dist}.get_rank() == 0:\n{' ' * (statement.col_offset + 4)}{file.text_of(statement)}"
        yield Seed(
            "a condition for rank 0 around a collective", (file.replaced(statement, text),), (at(file, statement),)
        )


def _is_of_all(file: SourceFile, call: ast.Call, statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and statement.value is call
        and not unpacks(call)
        and not keyword_of(call, "group")
        and not _NOT_ALL.search(" ".join(ast.unparse(argument) for argument in (*call.args, *call.keywords)))
        and not file.content[: file.start_of(statement)].rstrip(b" ").endswith((b":", b";"))
    )


def left_before_collective(project: Project) -> Iterator[Seed]:
    """Let all ranks but one leave a function before a collective."""
    if not project.is_distributed or project.is_left_to_framework:
        return
    for file, call in project.calls(*_TORCH):
        statement = file.statement_of(call)
        function = file.scope_of(call)
        if not isinstance(function, ast.FunctionDef) or file.parents[statement] is not function:
            continue
        if _is_of_all(file, call, statement) and project.is_for_all(file, call) and not _has_counterpart(file, call):
            dist = file.text_of(call.func).rpartition(".")[0]
            if dist and not any(isinstance(node, ast.Return) and node.value for node in ast.walk(function)):
                lines = (f"if {dist}.get_rank() != 0:", "    return")
                yield Seed(
                    "all ranks but 0 return before a collective",
                    (file.inserted_before(statement, *lines),),
                    (at(file, statement),),
                )


def guarded_collective_save(project: Project) -> Iterator[Seed]:
    """Put a condition for rank 0 around a save in which every rank has its part."""
    for file, call in project.calls(*_COLLECTIVE_SAVES):
        statement = file.statement_of(call)
        if not isinstance(statement, ast.Expr) or statement.value is not call or "\n" in file.text_of(statement):
            continue
        name = file.text_of(call.func)
        if name == "accelerator.save_state" and _barrier(file).startswith("accelerator"):
            test = "accelerator.is_main_process"
        elif re.fullmatch(r"(model_)?engine\.save_checkpoint|model\.save_checkpoint", name) and project.uses(
            "deepspeed"
        ):
            if file.imports.get("torch") != "torch" or not _is_engine(project, name.partition(".")[0]):
                continue
            test = "torch.distributed.get_rank() == 0"
        else:
            continue
        if project.is_for_all(file, call):
            text = f"if {test}:\n{' ' * (statement.col_offset + 4)}{file.text_of(statement)}"
            yield Seed(
                f"a condition for rank 0 around {name}", (file.replaced(statement, text),), (at(file, statement),)
            )


def _is_engine(project: Project, name: str) -> bool:
    return any(
        isinstance(value, ast.Call)
        and file.full_name(value.func) == "deepspeed.initialize"
        and name in ast.unparse(node.targets[0])
        for file, node, value in project.assignments
    )


def gathered_padding(project: Project) -> Iterator[Seed]:
    """Gather predictions with what was added to fill the last batch."""
    for file, call in project.calls(".gather_for_metrics"):
        words = " ".join(ast.unparse(argument) for argument in call.args)
        loop = next((holder for holder, _ in file.around(call) if isinstance(holder, ast.For)), None)
        if loop and "loss" not in words and project.is_for_all(file, call) and "backward" not in ast.unparse(loop):
            assert isinstance(call.func, ast.Attribute)
            text = f"{file.text_of(call.func.value)}.gather"
            yield Seed("gather_for_metrics replaced by gather", (file.replaced(call.func, text),), (at(file, call),))


def _all_kinds(project: Project) -> Iterator[Seed]:
    """Yield the seeds of each kind by turns."""
    kinds = [
        barrier_on_rank_zero(project),
        guarded_collective(project),
        left_before_collective(project),
        guarded_collective_save(project),
    ]
    while kinds:
        for kind in list(kinds):
            seed = next(kind, None)
            if seed:
                yield seed
            else:
                kinds.remove(kind)


COLLECTIVE_MUTATORS: Final = (
    Mutator(
        "collective-on-some-ranks",
        "all ranks are meant, the condition lets rank 0 alone through, and nothing is done for the others that may answer it",
        _all_kinds,
    ),
    Mutator(
        "gather-with-duplicates",
        "predictions are gathered in a loop of the evaluation, which gather_for_metrics had cut to their number",
        gathered_padding,
    ),
)
