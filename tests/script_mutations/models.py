"""Mistakes with the wrapped model."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.script_mutations.projects import Project
from tests.script_mutations.seeds import Mutator, Seed, at
from tests.script_mutations.sources import Change, SourceFile, last_name

_DDP: Final = (
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel",
)


def changed_after_wrap(project: Project) -> Iterator[Seed]:
    """Change a model behind DistributedDataParallel: each way in its turn."""
    if project.is_left_to_framework or project.uses("accelerate", "deepspeed"):
        return
    turn = len(project.entry)
    for file, call in project.calls(*_DDP):
        statement = file.statement_of(call)
        if not isinstance(statement, ast.Assign) or statement.value is not call or not project.is_for_all(file, call):
            continue
        target = statement.targets[0]
        if not isinstance(target, ast.Name | ast.Attribute) or "\n" in file.text_of(target):
            continue
        name = file.text_of(target)
        ways = [f"{name} = {name}.half()"]
        if file.imports.get("torch") == "torch":
            ways += [f'{name}.module.add_module("extra", torch.nn.Linear(8, 8))', f"{name}.to(torch.bfloat16)"]
        if any(keyword.arg == "device_ids" and isinstance(keyword.value, ast.List) for keyword in call.keywords):
            ways.append(f'{name}.to("cuda:0")')
        way = ways[turn % len(ways)]
        turn += 1
        yield Seed(
            f"{way} behind the wrap",
            (file.inserted_behind(statement, way),),
            (at(file, statement),),
        )


def removed_no_sync(project: Project) -> Iterator[Seed]:
    """Average the gradients after each micro-batch."""
    if (
        not project.is_distributed
        or project.is_left_to_framework
        or project.uses("accelerate", "deepspeed", "lightning.fabric")
    ):
        return
    if re.search(r"FullyShardedDataParallel|fully_shard|FSDP", project.text):
        return
    changes: list[Change] = []
    places = []
    for file in project.files.values():
        for node in file.nodes if re.search(rb"no_sync|require_backward_grad_sync", file.content) else ():
            for found in _waits(file, node):
                if not project.is_reached(file, node):
                    return
                changes += found
                places.append(at(file, node))
                places += [
                    at(file, holder) for holder, _ in file.around(node) if isinstance(holder, ast.For | ast.While)
                ]
                places += [
                    at(file, other)
                    for other in ast.walk(file.scope_of(node) or file.tree)
                    if isinstance(other, ast.Call) and last_name(other) == "backward"
                ]
    if changes and len(re.findall(r"no_sync\b|require_backward_grad_sync", _code(project))) == len(
        changes_of_words(changes, project)
    ):
        yield Seed("no_sync taken away", tuple(changes), tuple(dict.fromkeys(places)))


def _waits(file: SourceFile, node: ast.AST) -> Iterator[tuple[Change, ...]]:
    """Yield the changes that take one use of no_sync away."""
    if isinstance(node, ast.With) and len(node.items) == 1 and last_name(node.items[0].context_expr) == "no_sync":
        if node.body[0].lineno > node.lineno:
            yield file.without_block(node)
    elif isinstance(node, ast.Assign) and last_name(node.targets[0]) == "require_backward_grad_sync":
        yield (file.replaced(node, "pass"),)
    elif isinstance(node, ast.IfExp) and "no_sync" in ast.unparse(node):
        others = [part for part in (node.body, node.orelse) if "no_sync" not in ast.unparse(part)]
        if len(others) == 1:
            yield (file.replaced(node, file.text_of(others[0])),)


def _code(project: Project) -> str:
    return "\n".join(ast.unparse(file.tree) for file in project.files.values())


def changes_of_words(changes: list[Change], project: Project) -> list[str]:
    """The words that the changes take away."""
    words: list[str] = []
    for change in changes:
        text = project.files[change.file].content[change.start : change.end].decode()
        words += re.findall(r"no_sync\b|require_backward_grad_sync", text)
    return words


MODEL_MUTATORS: Final = (
    Mutator(
        "changed-after-ddp",
        "it is done right behind the wrap, in the same block, and is none of what DistributedDataParallel bears",
        changed_after_wrap,
    ),
    Mutator(
        "accumulation-without-no-sync",
        "the script adds up gradients over micro-batches, and had kept them from being averaged; nothing else does",
        removed_no_sync,
        is_told_once=True,
    ),
)
