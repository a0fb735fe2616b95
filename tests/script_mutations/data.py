"""Mistakes with samplers and loaders."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tests.script_mutations.projects import Project
from tests.script_mutations.seeds import Mutator, Seed, SourceRange, at
from tests.script_mutations.sources import Change, SourceFile, keyword_of, last_name, unpacks

_SAMPLERS: Final = ("torch.utils.data.DistributedSampler", "torch.utils.data.distributed.DistributedSampler")
_OTHER_SAMPLERS: Final = tuple(
    f"torch.utils.data.{module}{name}Sampler"
    for module in ("", "sampler.")
    for name in ("Random", "Sequential", "SubsetRandom", "WeightedRandom")
)
_LOADERS: Final = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_DATA_SETS: Final = tuple(
    f"torchvision.datasets.{name}"
    for name in ("CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "KMNIST", "EMNIST", "QMNIST", "SVHN", "STL10", "USPS",
                 "VOCDetection", "VOCSegmentation", "Caltech101", "Caltech256", "CelebA", "Food101", "Flowers102",
                 "OxfordIIITPet", "Omniglot", "DTD", "GTSRB", "Places365", "StanfordCars", "SBDataset")
)  # fmt: skip
_NOT_FOR_TRAINING: Final = re.compile(r"val|test|eval|dev|infer|predict", re.IGNORECASE)
_SEED_OF_RANK: Final = re.compile(r"seed\w*\W[^\n]*rank|rank[^\n]*seed", re.IGNORECASE)

Place = tuple[SourceFile, ast.Call]


def _data_are_its_own(project: Project) -> bool:
    return (
        project.is_distributed
        and not project.is_left_to_framework
        and not project.uses("accelerate", "lightning.fabric", "deepspeed")
    )


def _target(file: SourceFile, call: ast.AST) -> str:
    """The name to which a call's result is bound, be it under a condition; "" if to none."""
    for holder, _ in file.around(call):
        if isinstance(holder, ast.Assign):
            return last_name(holder.targets[0])
        if not isinstance(holder, ast.IfExp):
            return ""
    return ""


def _is_for_training(file: SourceFile, call: ast.Call) -> bool:
    """Whether nothing says that a sampler or loader is for another use: its name, its data, the function."""
    function = getattr(file.scope_of(call), "name", "")
    words = (_target(file, call), function, *(file.text_of(argument) for argument in call.args[:1]))
    dataset = keyword_of(call, "dataset")
    return not any(_NOT_FOR_TRAINING.search(word) for word in (*words, file.text_of(dataset.value) if dataset else ""))


def _shuffling_samplers(project: Project) -> list[Place]:
    """The distributed samplers that give training data in another order each epoch."""
    found = []
    for file, call in project.calls(*_SAMPLERS):
        shuffle = keyword_of(call, "shuffle")
        shuffles = shuffle is None or (isinstance(shuffle.value, ast.Constant) and shuffle.value.value is True)
        if shuffles and len(call.args) < 4 and not unpacks(call) and _is_for_training(file, call):
            found.append((file, call))
    return found


def _sampler_of(project: Project, loader: ast.Call, file: SourceFile, samplers: list[Place]) -> Place | None:
    """The sampler of the list that a loader is given for sure: named in the same function, or made in the call."""
    given = keyword_of(loader, "sampler")
    if given is None or unpacks(loader) or keyword_of(loader, "batch_sampler"):
        return None
    for other, call in samplers:
        if other is file and (call is given.value or (
            isinstance(given.value, ast.Name | ast.Attribute)
            and _target(file, call) == last_name(given.value)
            and file.scope_of(call) is file.scope_of(loader)
        )):  # fmt: skip
            return other, call
    return None


def _loaders(project: Project) -> Iterator[tuple[SourceFile, ast.Call, SourceFile, ast.Call]]:
    """Yield the training loaders that have a distributed sampler, with it."""
    samplers = _shuffling_samplers(project)
    for file, loader in project.calls(*_LOADERS):
        found = _sampler_of(project, loader, file, samplers)
        if found and project.is_for_all(file, loader) and _is_for_training(file, loader):
            yield file, loader, *found


def _told_samplers(project: Project, file: SourceFile, told: ast.Call, samplers: list[Place]) -> list[Place]:
    """The samplers that a set_epoch is for, as far as names say."""
    receiver = told.func.value  # type: ignore[attr-defined]
    if (
        isinstance(receiver, ast.Attribute)
        and receiver.attr in ("sampler", "batch_sampler")
        and last_name(receiver.value) != "self"
    ):
        loader = last_name(receiver.value.value if last_name(receiver.value) == "batch_sampler" else receiver.value)  # type: ignore[attr-defined]
        found = [
            sampler
            for other, call in project.calls(*_LOADERS)
            if _target(other, call) == loader and (sampler := _sampler_of(project, call, other, samplers))
        ]
        name = loader
    else:
        name = last_name(receiver)
        found = [(other, call) for other, call in samplers if _target(other, call) == name]
    if not found and len(samplers) == 1 and not _NOT_FOR_TRAINING.search(name):
        return samplers
    return found


def removed_set_epoch(project: Project) -> Iterator[Seed]:
    """Take all set_epoch of a sampler away."""
    if not _data_are_its_own(project):
        return
    samplers = _shuffling_samplers(project)
    told = [(file, call, _told_samplers(project, file, call, samplers)) for file, call in project.calls(".set_epoch")]
    told = [(file, call, found) for file, call, found in told if not _NOT_FOR_TRAINING.search(file.text_of(call.func))]
    if not all(found for _, _, found in told):
        return
    for sampler in samplers:
        calls = [(file, call) for file, call, found in told if sampler in found]
        statements = [(file, file.statement_of(call)) for file, call in calls]
        if (
            calls
            and all(isinstance(statement, ast.Expr) for _, statement in statements)
            and any(project.is_in_loop(file, call) for file, call in calls)
            and project.is_for_all(*sampler)
        ):
            loops = (holder for file, call in calls for holder, _ in file.around(call) if isinstance(holder, ast.For))
            loop = next(loops, None)
            yield Seed(
                "set_epoch taken away",
                tuple(file.replaced(statement, "pass") for file, statement in statements),
                (
                    at(*sampler),
                    *_loaders_in(project, sampler[0]),
                    *((at(calls[0][0], loop),) if loop else ()),
                ),
            )


def _loaders_in(project: Project, file: SourceFile) -> Iterator[SourceRange]:
    return (at(other, call) for other, call in project.calls(*_LOADERS) if other is file)


def removed_sampler(project: Project) -> Iterator[Seed]:
    """Shuffle all data on each rank instead of giving it a sampler's share."""
    if not _data_are_its_own(project) or _SEED_OF_RANK.search(project.text):
        return
    for file, loader, _, _ in _loaders(project):
        sampler, shuffle = keyword_of(loader, "sampler"), keyword_of(loader, "shuffle")
        assert sampler
        changes = [file.replaced(sampler, "shuffle=True")]
        if shuffle:
            changes.append(file.without_argument(loader, shuffle))
        if not _overlap(changes):
            yield Seed("sampler= of the training loader replaced by shuffle=True", tuple(changes), (at(file, loader),))


def _overlap(changes: list[Change]) -> bool:
    ordered = sorted(changes, key=lambda change: change.start)
    return any(before.end > behind.start for before, behind in pairwise(ordered))


def shuffled_beside_sampler(project: Project) -> Iterator[Seed]:
    """Say shuffle=True to a loader that has a sampler."""
    if not project.is_distributed:
        return
    samplers = list(project.calls(*_SAMPLERS, *_OTHER_SAMPLERS))
    for file, loader in project.calls(*_LOADERS):
        shuffle = keyword_of(loader, "shuffle")
        is_shuffled = shuffle and isinstance(shuffle.value, ast.Constant) and shuffle.value.value is True
        if is_shuffled or len(loader.args) > 2 or not _sampler_of(project, loader, file, samplers):
            continue
        if project.is_for_all(file, loader):
            change = file.replaced(shuffle.value, "True") if shuffle else file.with_argument(loader, "shuffle=True")
            yield Seed("shuffle=True beside sampler=", (change,), (at(file, loader),))


def constant_seed(project: Project) -> Iterator[Seed]:
    """Give a training loader a generator that begins with the same number on all ranks."""
    if not _data_are_its_own(project):
        return
    for file, loader, _, _ in _loaders(project):
        workers = keyword_of(loader, "num_workers")
        has_workers = workers and not (isinstance(workers.value, ast.Constant) and not workers.value.value)
        taken = any(keyword_of(loader, name) for name in ("generator", "worker_init_fn"))
        if has_workers and not taken and file.imports.get("torch") == "torch":
            change = file.with_argument(loader, "generator=torch.Generator().manual_seed(0)")
            yield Seed("a generator with a constant seed for the training loader", (change,), (at(file, loader),))


def download_on_every_rank(project: Project) -> Iterator[Seed]:
    """Let every rank fetch a data set."""
    if not project.is_distributed or project.is_left_to_framework:
        return
    for file, call in project.calls(*_DATA_SETS):
        download = keyword_of(call, "download")
        is_off = download is None or (isinstance(download.value, ast.Constant) and download.value.value is False)
        root = call.args[0] if call.args else keyword_of(call, "root")
        if not is_off or unpacks(call) or root is None or "rank" in file.text_of(root) or len(call.args) > 2:
            continue
        # Where a call of the same set fetches it, somebody has thought of who goes first.
        others = (other for _, other in project.calls(file.full_name(call.func)) if keyword_of(other, "download"))
        if (
            project.is_for_all(file, call)
            and (download or not next(others, None))
            and "barrier" not in _function_text(file, call)
        ):
            change = file.replaced(download.value, "True") if download else file.with_argument(call, "download=True")
            yield Seed("download=True on every rank", (change,), (at(file, call),))


def _function_text(file: SourceFile, node: ast.AST) -> str:
    function = file.scope_of(node)
    return file.text_of(function) if function else file.content.decode()


DATA_MUTATORS: Final = (
    Mutator(
        "sampler-without-set-epoch",
        "nothing else tells the sampler the epoch: it shuffles the training data, several epochs go over it, no framework is there",
        removed_set_epoch,
    ),
    Mutator(
        "loader-without-sampler",
        "the loader is that of a training in DDP, and neither a framework nor a seed with the rank in it keeps the ranks apart",
        removed_sampler,
    ),
    Mutator(
        "shuffle-with-sampler",
        "the sampler is there in a distributed run, and DataLoader refuses both",
        shuffled_beside_sampler,
    ),
    Mutator(
        "same-seed-for-workers",
        "the training loader has workers and a distributed sampler, and nothing seeds the workers anew",
        constant_seed,
    ),
    Mutator(
        "download-by-every-rank",
        "all ranks come there at once, the folder is the same, and no barrier is near",
        download_on_every_rank,
    ),
)
