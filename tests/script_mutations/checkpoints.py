"""Mistakes with checkpoints, and with other files that a script writes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.script_mutations.projects import Project
from tests.script_mutations.rank_guards import may_ask_for_rank, rank_zero_guard
from tests.script_mutations.seeds import Mutator, Seed, SourceRange, at
from tests.script_mutations.sources import SourceFile, argument_of, keyword_of, last_name, unpacks

_PATH_OF_RANK: Final = re.compile(r"rank|tmp|temp|BytesIO|buffer|pid|uuid|process_index|stream", re.IGNORECASE)
_DDP: Final = (
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel",
)
_LOGGERS: Final = ("wandb.init", "mlflow.start_run", "swanlab.init", "comet_ml.Experiment", "neptune.init_run")


def _saves_are_its_own(project: Project) -> bool:
    is_distributed = project.is_distributed or project.uses("accelerate.Accelerator")
    return is_distributed and not project.is_left_to_framework


def _guards(project: Project) -> Iterator[tuple[SourceFile, ast.If, str]]:
    """Yield the blocks for rank 0 alone to which all ranks come, with what else they ask."""
    for file in project.files.values():
        for block in file.nodes:
            if not isinstance(block, ast.If) or block.orelse or block.body[0].lineno <= block.lineno:
                continue
            guard = rank_zero_guard(block.test, file)
            is_elif = file.content[file.start_of(block) :].startswith(b"elif")
            if (
                guard
                and not is_elif
                and project.is_reached(file, block)
                and project.is_for_all(file, block, block.test)
            ):
                yield file, block, guard.rest


def _calls_of_all(file: SourceFile, block: ast.If) -> Iterator[ast.Call]:
    """Yield the calls in a block under no further condition that may be about ranks."""
    for node in ast.walk(ast.Module(block.body, [])):
        if not isinstance(node, ast.Call):
            continue
        for holder, _ in file.around(node):
            if holder is block:
                yield node
                break
            if isinstance(holder, ast.If | ast.IfExp) and may_ask_for_rank(holder.test):
                break
            if isinstance(holder, ast.FunctionDef | ast.Lambda | ast.Try):
                break


def _writes_same_file(project: Project, file: SourceFile, call: ast.Call) -> bool:
    """Whether a call writes a file whose name is the same on all ranks, as far as words tell."""
    name = file.full_name(call.func)
    if name in ("torch.save", "safetensors.torch.save_file"):
        path = argument_of(call, "f", 1) or argument_of(call, "filename", 1)
    elif last_name(call) == "save_pretrained" and not keyword_of(call, "is_main_process"):
        path = argument_of(call, "save_directory", 0)
    else:
        return False
    if path is None or unpacks(call):
        return False
    words = [ast.unparse(path)]
    for node in ast.walk(path):
        if isinstance(node, ast.Name | ast.Attribute):
            words += [ast.unparse(value) for other, _, value in project.assigned(last_name(node)) if other is file]
    return not any(_PATH_OF_RANK.search(word) for word in words)


def unguarded_save(project: Project) -> Iterator[Seed]:
    """Let all ranks come to a save that was for rank 0 alone."""
    if not _saves_are_its_own(project):
        return
    for file, block, rest in _guards(project):
        places: list[SourceRange] = []
        for call in _calls_of_all(file, block):
            if _writes_same_file(project, file, call):
                places.append(at(file, call))
            else:
                places += _saves_within(project, file, call)
        if places:
            yield Seed(
                "the condition for rank 0 around a save taken away", file.without_block(block, rest), tuple(places)
            )


def _saves_within(project: Project, file: SourceFile, call: ast.Call) -> Iterator[SourceRange]:
    """Yield the place of a call, and those of the saves in the function of the project that it calls."""
    if not isinstance(call.func, ast.Name):
        return
    for other, function in project.functions.get(call.func.id, ()):
        if not any(site is call.func for _, site in project.sites(function)):
            continue
        for inner in ast.walk(function):
            if (
                isinstance(inner, ast.Call)
                and _writes_same_file(project, other, inner)
                and _is_plain(other, inner, function)
            ):
                yield at(other, inner)
                yield at(file, call)


def _is_plain(file: SourceFile, node: ast.AST, function: ast.AST) -> bool:
    """Whether no condition within the function may be about ranks."""
    text = "\n".join(ast.unparse(node.test) for node in ast.walk(function) if isinstance(node, ast.If | ast.IfExp))
    is_own = file.scope_of(node) is function
    return is_own and not may_ask_for_rank(ast.Name(text)) and not getattr(function, "decorator_list", ())


def logger_on_every_rank(project: Project) -> Iterator[Seed]:
    """Let all ranks come to a run that was opened on rank 0 alone."""
    if not _saves_are_its_own(project):
        return
    for file, block, rest in _guards(project):
        for call in _calls_of_all(file, block):
            told = {"group", "mode", "disabled"}.intersection(keyword.arg or "**" for keyword in call.keywords)
            words = ast.unparse(call)
            if file.full_name(call.func) in _LOGGERS and not told and not unpacks(call) and "rank" not in words:
                yield Seed(
                    f"the condition for rank 0 around {file.full_name(call.func)} taken away",
                    file.without_block(block, rest),
                    (at(file, call),),
                )


def loaded_without_map_location(project: Project) -> Iterator[Seed]:
    """Load a checkpoint to where it was saved from."""
    if not _saves_are_its_own(project) or not _uses_gpus(project) or not next(project.calls("torch.save"), None):
        return
    for file, call in project.calls("torch.load"):
        keyword = keyword_of(call, "map_location")
        if keyword is None or unpacks(call) or not project.is_for_all(file, call) or not _is_restored(file, call):
            continue
        yield Seed("map_location taken away", (file.without_argument(call, keyword),), (at(file, call),))


def _uses_gpus(project: Project) -> bool:
    return "cuda" in project.text or "nccl" in project.text


_OF_OTHERS: Final = re.compile(r"pretrain|finetune|url|hub|vgg|lpips|teacher|backbone|init_|weight", re.IGNORECASE)
"""Words of files that the script didn't write itself."""


def _is_restored(file: SourceFile, load: ast.Call) -> bool:
    """Whether what is loaded goes into load_state_dict in the same function, and is the script's own."""
    tests = (holder.test for holder, _ in file.around(load) if isinstance(holder, ast.If | ast.IfExp))
    function_name = getattr(file.scope_of(load), "name", "")
    if any(_OF_OTHERS.search(word) for word in (function_name, *map(ast.unparse, (load, *tests)))):
        return False
    function = file.scope_of(load) or file.tree
    holder = file.parents[load]
    name = ""
    if isinstance(holder, ast.Assign):
        name = last_name(holder.targets[0])
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Call)
            and last_name(node) == "load_state_dict"
            and node.args
            and node.lineno >= load.lineno
        ):
            inner = list(ast.walk(node.args[0]))
            if load in inner or (name and any(isinstance(part, ast.Name) and part.id == name for part in inner)):
                return True
    return False


def wrapped_state_saved(project: Project) -> Iterator[Seed]:
    """Save the keys of the wrapped model, where the script loads into the bare one."""
    if not project.is_distributed or project.is_left_to_framework or project.uses("deepspeed", "accelerate"):
        return
    if next(
        project.calls("torch.distributed.fsdp.FullyShardedDataParallel", "torch.distributed.fsdp.fully_shard"), None
    ):
        return
    if re.search(r"consume_prefix|[\"']module\.[\"']|hasattr\(\w+, ?[\"']module[\"']", project.text):
        return
    loads = [call.func.value for _, call in project.calls(".load_state_dict") if isinstance(call.func, ast.Attribute)]
    for wrapped, bare in _wrapped_names(project):
        if any(last_name(loaded) == wrapped and loaded in _before_wrap(project, wrapped, loads) for loaded in loads):
            loaded_bare = True
        else:
            loaded_bare = any(
                last_name(loaded) in (bare, "module") and _root(loaded) in (wrapped, bare) for loaded in loads
            )
        if not loaded_bare:
            continue
        for file, state in project.calls(".state_dict"):
            receiver = state.func.value  # type: ignore[attr-defined]
            is_module = last_name(receiver) == "module" and last_name(getattr(receiver, "value", receiver)) == wrapped
            is_saved = any(
                isinstance(other, ast.Call) and file.full_name(other.func) == "torch.save"
                for other, _ in file.around(state)
            ) or _is_saved_later(file, state)
            if (
                is_saved
                and (is_module or (bare and last_name(receiver) == bare))
                and _binds(project, file, wrapped, state)
            ):
                text = file.text_of(receiver.value) if is_module else wrapped
                yield Seed(
                    "the state of the wrapped model saved instead of the bare one's",
                    (file.replaced(receiver, text),),
                    (at(file, state), at(file, file.statement_of(state)), *_torch_saves(project, file)),
                )


def _wrapped_names(project: Project) -> Iterator[tuple[str, str]]:
    """Yield the names of wrapped models, each with that of its bare one: "" where it has none."""
    for file, call in project.calls(*_DDP):
        holder = file.parents[call]
        if isinstance(holder, ast.Assign):
            wrapped = last_name(holder.targets[0])
            bare = next(
                (
                    last_name(node.targets[0])
                    for _, node, value in project.assignments
                    if isinstance(value, ast.Attribute) and value.attr == "module" and last_name(value.value) == wrapped
                    and last_name(node.targets[0]) != wrapped
                ),
                "",
            )  # fmt: skip
            yield wrapped, bare


def _before_wrap(project: Project, wrapped: str, loads: list[ast.expr]) -> list[ast.expr]:
    """What is loaded into in the function of the wrap, before it."""
    before = []
    for file, call in project.calls(*_DDP):
        nodes = list(ast.walk(file.scope_of(call) or file.tree))
        before += [loaded for loaded in loads if loaded in nodes and loaded.lineno < call.lineno]
    return before


def _root(node: ast.expr) -> str:
    return last_name(node.value) if isinstance(node, ast.Attribute) and node.attr == "module" else last_name(node)


def _binds(project: Project, file: SourceFile, name: str, node: ast.AST) -> bool:
    """Whether a name means something where the node stands: bound in its function, or handed to it."""
    scope = file.scope_of(node) or file.tree
    names = {other.id for other in ast.walk(scope) if isinstance(other, ast.Name) and isinstance(other.ctx, ast.Store)}
    arguments = {other.arg for other in ast.walk(scope) if isinstance(other, ast.arg)}
    return name in names | arguments or name in {
        last_name(target)
        for statement in file.tree.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
    }


def _is_saved_later(file: SourceFile, state: ast.Call) -> bool:
    """Whether it is put into a dict or a name that torch.save gets in the same function."""
    statement = file.statement_of(state)
    if not isinstance(statement, ast.Assign):
        return False
    target = statement.targets[0]
    name = last_name(target.value if isinstance(target, ast.Subscript) else target)
    return any(
        isinstance(node, ast.Call)
        and file.full_name(node.func) == "torch.save"
        and any(
            isinstance(part, ast.Name) and part.id == name for argument in node.args[:1] for part in ast.walk(argument)
        )
        for node in ast.walk(file.scope_of(state) or file.tree)
    )


def _torch_saves(project: Project, file: SourceFile) -> Iterator[SourceRange]:
    return (at(other, call) for other, call in project.calls("torch.save") if other is file)


CHECKPOINT_MUTATORS: Final = (
    Mutator(
        "save-by-every-rank",
        "all ranks come there, and the words of the path don't tell them apart",
        unguarded_save,
    ),
    Mutator(
        "logger-on-every-rank",
        "all ranks come there, and no group or mode tells the service of them",
        logger_on_every_rank,
    ),
    Mutator(
        "load-without-map-location",
        "a checkpoint of the script's own, of a model on a GPU, is loaded by all ranks and restored in the same function",
        loaded_without_map_location,
    ),
    Mutator(
        "wrapper-in-checkpoint",
        "the script loads into the bare model, and takes the prefix from no key",
        wrapped_state_saved,
        is_told_once=True,
    ),
)
