"""Mistakes with ranks, devices and the place where the ranks meet."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final, TypeGuard

from tests.script_mutations.projects import Project
from tests.script_mutations.seeds import Mutator, Seed, at
from tests.script_mutations.sources import Change, SourceFile, argument_of, keyword_of, last_name, unpacks

_INIT: Final = "torch.distributed.init_process_group"
_SET_DEVICE: Final = "torch.cuda.set_device"
_DDP: Final = (
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel",
)
_SPAWN: Final = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")
_READS: Final = re.compile(r"(int\()?os\.(environ\[|environ\.get\(|getenv\()'LOCAL_RANK'[^()]*[\])]\)?")
_CHOSEN: Final = re.compile(
    r"cuda:\{|cuda:['\"] ?\+|cuda:%|device\(['\"]cuda['\"], ?\w|cuda\(\w|\.to\((args\.)?\w*(rank|gpu)\)"
)
_BARE: Final = re.compile(r"\.cuda\(\)|\.to\(['\"]cuda['\"]\)|device\(['\"]cuda['\"]\)")
_LAUNCHED: Final = re.compile(r"environ[^\n]{0,6}['\"](LOCAL_RANK|RANK|WORLD_SIZE)['\"]")


def _is_started_by_torchrun(project: Project) -> bool:
    return (
        project.is_distributed
        and not project.is_left_to_framework
        and not project.uses("accelerate", "deepspeed")
        and _LAUNCHED.search(project.text) is not None
        and next(project.calls(*_SPAWN), None) is None
        and "mp.spawn" not in project.text
        and "SLURM" not in project.text
        and "OMPI_" not in project.text
    )


def local_rank_from_option(project: Project) -> Iterator[Seed]:
    """Take the local rank from --local_rank alone."""
    if not _is_started_by_torchrun(project) or project.uses("transformers.HfArgumentParser"):
        return
    if not next(project.calls(_SET_DEVICE, *_DDP), None) or "local-rank" in project.text:
        return
    changes: list[Change] = []
    places = []
    options = [call for call in project.calls(".add_argument") if "'--local_rank'" in ast.unparse(call[1])]
    for file, node in _reads_of_local_rank(project):
        option = next((call for other, call in options if other is file and node in ast.walk(call)), None)
        if option:
            changes.append(file.replaced(node, "0"))
            places.append(at(file, option))
        elif _has_args(file, node):
            changes.append(file.replaced(node, "args.local_rank"))
            places.append(at(file, node))
        else:
            return
    if not changes or "LOCAL_RANK" in "".join(_without(project, changes)):
        return
    if not options:
        parsers = [
            (file, file.statement_of(call))
            for file, call in project.calls("argparse.ArgumentParser")
            if isinstance(file.parents[call], ast.Assign)
        ]
        if len(parsers) != 1:
            return
        file, parser = parsers[0]
        assert isinstance(parser, ast.Assign)
        name = last_name(parser.targets[0])
        changes.append(file.inserted_behind(parser, f'{name}.add_argument("--local_rank", type=int, default=0)'))
        places.append(at(file, parser))
    yield Seed("LOCAL_RANK replaced by the option --local_rank", tuple(changes), tuple(places))


def _reads_of_local_rank(project: Project) -> list[tuple[SourceFile, ast.expr]]:
    """The outermost expressions that do nothing but read it."""
    return [
        (file, node)
        for file in project.files.values()
        for node in (file.nodes if b"LOCAL_RANK" in file.content else ())
        if _reads_local_rank(node) and not any(_reads_local_rank(holder) for holder, _ in file.around(node))
    ]


def _reads_local_rank(node: ast.AST) -> TypeGuard[ast.expr]:
    return isinstance(node, ast.Call | ast.Subscript) and _READS.fullmatch(ast.unparse(node)) is not None


def _has_args(file: SourceFile, node: ast.expr) -> bool:
    """Whether `args` are the parsed options, where the node stands."""
    scope = file.scope_of(node)
    parsed = (
        other
        for other in ast.walk(scope or file.tree)
        if isinstance(other, ast.Assign) and file.scope_of(other) is scope and other.lineno < node.lineno
    )
    if any(
        last_name(other.targets[0]) == "args" and re.search(r"parse|get_args", ast.unparse(other.value))
        for other in parsed
    ):
        return True
    return scope is not None and any(
        isinstance(other, ast.arg) and other.arg == "args" for other in ast.walk(scope.args)
    )


def _without(project: Project, changes: list[Change]) -> Iterator[str]:
    """Yield the code of each file without what is changed, and without its comments."""
    for file in project.files.values():
        content = bytearray(file.content)
        for change in changes:
            if change.file == file.path:
                content[change.start : change.end] = b"0" * (change.end - change.start)
        try:
            yield ast.unparse(ast.parse(bytes(content)))
        except SyntaxError:
            yield "LOCAL_RANK"


def rank_chooses_device(project: Project) -> Iterator[Seed]:
    """Choose the GPU by the global rank."""
    if not _is_started_by_torchrun(project):
        return
    for file, call in project.calls(_SET_DEVICE):
        if len(call.args) != 1 or not project.is_for_all(file, call) or file.imports.get("os") != "os":
            continue
        if re.fullmatch(r"(\w+\.)*local_rank|int\(os\.environ\[.LOCAL_RANK.\]\)", file.text_of(call.args[0])):
            text = 'int(os.environ["RANK"])'
            formed = [
                other
                for where, other in project.calls(_INIT)
                if where is file and file.scope_of(other) is file.scope_of(call)
            ]
            if any(other.lineno < call.lineno for other in formed) and file.imports.get("dist") == "torch.distributed":
                text = "dist.get_rank()"
            yield Seed(f"set_device({text})", (file.replaced(call.args[0], text),), (at(file, call),))


def same_device(project: Project) -> Iterator[Seed]:
    """Let all ranks choose GPU 0, or none choose any."""
    if not project.is_distributed or project.is_left_to_framework or project.uses("accelerate", "deepspeed"):
        return
    if "CUDA_VISIBLE_DEVICES" in project.text or _CHOSEN.search(project.text) or not _BARE.search(project.text):
        return
    chosen = [(file, call) for file, call in project.calls(_SET_DEVICE) if len(call.args) == 1]
    if len(chosen) != 1 or project.text.count("set_device") != 1:
        return
    file, call = chosen[0]
    statement = file.statement_of(call)
    if (
        not project.is_for_all(file, call)
        or not isinstance(statement, ast.Expr)
        or isinstance(call.args[0], ast.Constant)
    ):
        return
    moves = [at(other, node) for other in project.files.values() for node in other.nodes if _moves(node)]
    wraps = [(other, wrap) for other, wrap in project.calls(*_DDP)]
    if any(len(wrap.args) > 1 or unpacks(wrap) for _, wrap in wraps) or not wraps:
        return
    yield Seed("set_device(0) on every rank", (file.replaced(call.args[0], "0"),), (at(file, call), *moves))
    if ".device" in project.text.replace("torch.device", "").replace("nn.device", ""):
        return  # Of an option, perhaps, or of another tensor.
    changes = [file.replaced(statement, "pass")]
    for other, wrap in wraps:
        given = [keyword for keyword in wrap.keywords if keyword.arg in ("device_ids", "output_device")]
        for keyword in given:
            changes.append(other.without_argument(wrap, keyword))
    yield Seed("set_device and device_ids taken away", tuple(changes), (at(file, call), *moves))


def _moves(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("cuda", "to")


def literal_rendezvous(project: Project) -> Iterator[Seed]:
    """Say in the script where the ranks meet, although a launcher does."""
    if not _is_started_by_torchrun(project) or re.search(r"MASTER_|tcp://", project.text):
        return
    for file, call in project.calls(_INIT):
        statement = file.statement_of(call)
        if file.imports.get("os") == "os" and isinstance(statement, ast.Expr) and project.is_for_all(file, call):
            lines = ('os.environ["MASTER_ADDR"] = "localhost"', 'os.environ["MASTER_PORT"] = "29501"')
            yield Seed(
                "MASTER_ADDR and MASTER_PORT written", (file.inserted_before(statement, *lines),), (at(file, call),)
            )


def slow_backend(project: Project) -> Iterator[Seed]:
    """Let gloo do what NCCL is for."""
    if not project.is_distributed or project.is_left_to_framework or project.uses("accelerate", "deepspeed"):
        return
    formed = list(project.calls(_INIT))
    wraps = list(project.calls(*_DDP))
    if len(formed) != 1 or "new_group" in project.text or "gloo" in project.text:
        return
    if not wraps or not all(_is_on_gpu(keyword_of(wrap, "device_ids")) for _, wrap in wraps):
        return
    file, call = formed[0]
    backend = argument_of(call, "backend", 0)
    if isinstance(backend, ast.Constant) and backend.value == "nccl" and project.is_for_all(file, call):
        yield Seed("backend gloo", (file.replaced(backend, '"gloo"'),), (at(file, call),))


def _is_on_gpu(devices: ast.keyword | None) -> bool:
    return devices is not None and isinstance(devices.value, ast.List)


PROCESS_MUTATORS: Final = (
    Mutator(
        "local-rank-argument-only",
        "the script is made for torchrun, which passes no option, and reads LOCAL_RANK nowhere any more",
        local_rank_from_option,
        is_told_once=True,
    ),
    Mutator(
        "rank-as-device",
        "the script is made for torchrun, on as many nodes as one likes, and the GPU was chosen by the local rank",
        rank_chooses_device,
    ),
    Mutator(
        "device-not-set",
        "nothing else chooses a GPU by the rank, and the model goes to the current one",
        same_device,
        is_told_once=True,
    ),
    Mutator(
        "rendezvous-overwritten",
        "the script reads what a launcher tells it, and starts no processes itself",
        literal_rendezvous,
        is_told_once=True,
    ),
    Mutator(
        "backend-for-device",
        "the only group is NCCL's by a constant, and the wrapped model is on a GPU in any case",
        slow_backend,
        is_told_once=True,
    ),
)
