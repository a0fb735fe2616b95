"""Each mutator makes its mistake where it is one, and lint's answer to it is told rightly."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

import pytest

from tests.script_mutations.rank_guards import may_keep_ranks_away, rank_zero_guard
from tests.script_mutations.running import MUTATORS, SeededScript
from tests.script_mutations.sources import Change, SourceFile, changed_text, moved_line

GOOD = """\
import argparse
import os

import torch
import torch.distributed as dist
import wandb
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from torchvision.datasets import CIFAR10


def build():
    train_set = CIFAR10("data", train=True)
    sampler = DistributedSampler(train_set)
    return DataLoader(train_set, 32, sampler=sampler, num_workers=4), sampler


def save(model, path):
    torch.save({"model": model.module.state_dict()}, path)


def main():
    parser = argparse.ArgumentParser()
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl")
    torch.cuda.set_device(local_rank)
    loader, sampler = build()
    model = torch.nn.Linear(8, 8).cuda()
    checkpoint = torch.load("last.pt", map_location="cpu")
    model.load_state_dict(checkpoint["model"])
    model = DDP(model, device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if dist.get_rank() == 0:
        wandb.init(project="p")
    for epoch in range(9):
        sampler.set_epoch(epoch)
        for inputs, _ in loader:
            with model.no_sync():
                for micro in inputs.cuda().chunk(4):
                    model(micro).sum().backward()
            optimizer.step()
        dist.barrier()
        if dist.get_rank() == 0:
            save(model, "last.pt")


if __name__ == "__main__":
    main()
"""

SEEDS = {
    "sampler-without-set-epoch": ["-        sampler.set_epoch(epoch)", "+        pass"],
    "loader-without-sampler": [
        "-    return DataLoader(train_set, 32, sampler=sampler, num_workers=4), sampler",
        "+    return DataLoader(train_set, 32, shuffle=True, num_workers=4), sampler",
    ],
    "shuffle-with-sampler": [
        "-    return DataLoader(train_set, 32, sampler=sampler, num_workers=4), sampler",
        "+    return DataLoader(train_set, 32, sampler=sampler, num_workers=4, shuffle=True), sampler",
    ],
    "same-seed-for-workers": [
        "-    return DataLoader(train_set, 32, sampler=sampler, num_workers=4), sampler",
        "+    return DataLoader(train_set, 32, sampler=sampler, num_workers=4, generator=torch.Generator().manual_seed(0)), sampler",
    ],
    "download-by-every-rank": [
        '-    train_set = CIFAR10("data", train=True)',
        '+    train_set = CIFAR10("data", train=True, download=True)',
    ],
    "save-by-every-rank": [
        "-        if dist.get_rank() == 0:",
        '-            save(model, "last.pt")',
        "+",
        '+        save(model, "last.pt")',
    ],
    "logger-on-every-rank": [
        "-    if dist.get_rank() == 0:",
        '-        wandb.init(project="p")',
        "+",
        '+    wandb.init(project="p")',
    ],
    "load-without-map-location": [
        '-    checkpoint = torch.load("last.pt", map_location="cpu")',
        '+    checkpoint = torch.load("last.pt")',
    ],
    "wrapper-in-checkpoint": [
        '-    torch.save({"model": model.module.state_dict()}, path)',
        '+    torch.save({"model": model.state_dict()}, path)',
    ],
    "collective-on-some-ranks": ["+        dist.barrier()"],
    "changed-after-ddp": ["+    model = model.half()"],
    "accumulation-without-no-sync": [
        "-            with model.no_sync():",
        "-                for micro in inputs.cuda().chunk(4):",
        "-                    model(micro).sum().backward()",
        "+",
        "+            for micro in inputs.cuda().chunk(4):",
        "+                model(micro).sum().backward()",
    ],
    "local-rank-argument-only": [
        '+    parser.add_argument("--local_rank", type=int, default=0)',
        '-    local_rank = int(os.environ["LOCAL_RANK"])',
        "+    local_rank = args.local_rank",
    ],
    "rank-as-device": ["-    torch.cuda.set_device(local_rank)", "+    torch.cuda.set_device(dist.get_rank())"],
    "device-not-set": ["-    torch.cuda.set_device(local_rank)", "+    torch.cuda.set_device(0)"],
    "rendezvous-overwritten": ['+    os.environ["MASTER_ADDR"] = "localhost"', '+    os.environ["MASTER_PORT"] = "29501"'],
    "backend-for-device": ['-    dist.init_process_group("nccl")', '+    dist.init_process_group("gloo")'],
}  # fmt: skip

EVALUATION = """\
from accelerate import Accelerator


def main(model, loader):
    accelerator = Accelerator()
    model, loader = accelerator.prepare(model, loader)
    for inputs, labels in loader:
        predictions, labels = accelerator.gather_for_metrics((model(inputs), labels))
        print(predictions, labels)


main(1, 2)
"""

EXCUSES = {
    "sampler-without-set-epoch": [
        ("DistributedSampler(train_set)", "DistributedSampler(train_set, shuffle=False)"),
        ("import wandb", "import lightning, wandb"),
        ("sampler.set_epoch(epoch)", "tell(sampler, epoch)"),
    ],
    "loader-without-sampler": [
        ("    args = parser", "    torch.manual_seed(1 + dist.get_rank())\n    args = parser"),
        ("train_set", "val_set"),
        ("import wandb", "import accelerate, wandb"),
    ],
    "same-seed-for-workers": [(", num_workers=4", ""), ("num_workers=4", "num_workers=4, worker_init_fn=seed_worker")],
    "download-by-every-rank": [
        ("    train_set =", "    if dist.get_rank() > 0:\n        dist.barrier()\n    train_set ="),
        ('"data"', 'f"data{dist.get_rank()}"'),
    ],
    "save-by-every-rank": [
        ("    torch.save", "    if dist.get_rank() > 0:\n        return\n    torch.save"),
        ('        if dist.get_rank() == 0:\n            save(model, "last.pt")', "        if args.resume == 0:\n            save()"),
        ("}, path)", "}, f'{path}{dist.get_rank()}')"),
    ],
    "logger-on-every-rank": [('project="p"', 'project="p", group="g"')],
    "load-without-map-location": [("model.load_state_dict", "print"), ('"last.pt", map', 'args.pretrained, map')],
    "wrapper-in-checkpoint": [("model.load_state_dict(checkpoint", "print(checkpoint")],
    "changed-after-ddp": [("model = DDP(model", "if local_rank > 0: model = DDP(model")],
    "accumulation-without-no-sync": [("import wandb", "import deepspeed, wandb")],
    "local-rank-argument-only": [("import wandb", "import wandb\nfrom transformers import HfArgumentParser")],
    "rank-as-device": [("    parser =", "    torch.multiprocessing.spawn(main)\n    parser =")],
    "device-not-set": [(".cuda()\n    checkpoint", '.cuda(local_rank)\n    checkpoint')],
    "rendezvous-overwritten": [("    parser =", '    os.environ.setdefault("MASTER_ADDR", "localhost")\n    parser =')],
    "backend-for-device": [('"nccl"', "args.backend")],
}  # fmt: skip
"""What in the script excuses the mistake, or makes it none."""


def seeded(folder: Path, text: str) -> SeededScript:
    (folder / "train.py").write_text(text)
    return SeededScript(folder, "train.py")


def diff(script: SeededScript, changes: tuple[Change, ...]) -> list[str]:
    file = script.project.files["train.py"]
    before, after = file.content.decode().splitlines(), changed_text(file, changes).decode().splitlines()
    lines = difflib.unified_diff(before, after, n=0, lineterm="")
    return [line for line in lines if line[0] in "+-" and not line.startswith(("---", "+++"))]


@pytest.mark.parametrize("mutator", MUTATORS, ids=lambda mutator: mutator.slug)
def test_a_mistake_is_made_and_found(mutator, tmp_path: Path) -> None:
    script = seeded(tmp_path, GOOD if mutator.slug in SEEDS else EVALUATION)
    seeds = list(script.seeds(mutator))
    if mutator.slug in SEEDS:
        assert diff(script, seeds[0].changes) == SEEDS[mutator.slug]
    assert seeds
    assert script.answer(mutator, seeds[0]).outcome in ("found", "as a hint")


@pytest.mark.parametrize(
    ("slug", "old", "new"),
    [(slug, *excuse) for slug, excuses in EXCUSES.items() for excuse in excuses],
)
def test_no_mistake_is_made_where_it_is_excused(slug: str, old: str, new: str, tmp_path: Path) -> None:
    assert old in GOOD
    script = seeded(tmp_path, GOOD.replace(old, new))
    (mutator,) = (mutator for mutator in MUTATORS if mutator.slug == slug)
    assert not list(script.seeds(mutator))


def test_what_is_told_already_is_not_seeded(tmp_path: Path) -> None:
    (mutator,) = (mutator for mutator in MUTATORS if mutator.slug == "backend-for-device")
    assert list(seeded(tmp_path, GOOD).seeds(mutator))
    assert not list(seeded(tmp_path, GOOD.replace('"nccl"', '"gloo"')).seeds(mutator))


def test_a_miss_has_a_cause(tmp_path: Path) -> None:
    (mutator,) = (mutator for mutator in MUTATORS if mutator.slug == "shuffle-with-sampler")
    script = seeded(tmp_path, GOOD)
    seed = next(script.seeds(mutator))
    away = seed._replace(places=(seed.places[0]._replace(first=1, last=1),))
    assert script.answer(mutator, away) == ("missed", "told at another place")
    nothing = seed._replace(changes=())
    assert script.answer(mutator, nothing) == ("missed", "judged, nothing found (there: loader)")


@pytest.mark.parametrize(
    ("test", "rest"),
    [
        ("rank == 0", ""),
        ("not rank", ""),
        ("dist.get_rank() == 0", ""),
        ("args.rank % ngpus == 0", ""),
        ("accelerator.is_main_process", ""),
        ("local_rank in [-1, 0]", None),
        ("global_rank in [-1, 0]", ""),
        ("not args.distributed or args.rank == 0", ""),
        ("epoch % 5 == 0 and rank == 0", "epoch % 5 == 0"),
        ("writer and rank == 0", None),
        ("rank != 0", None),
        ("tp_rank == 0", None),
        ("rank == 1", None),
        ("rank == 0 or args.save_all", None),
    ],
)
def test_conditions_for_rank_zero(test: str, rest: str | None) -> None:
    file = SourceFile("a.py", test)
    expression = file.tree.body[0]
    assert isinstance(expression, ast.Expr)
    guard = rank_zero_guard(expression.value, file)
    assert (guard.rest if guard else None) == rest


@pytest.mark.parametrize(
    ("test", "holds", "expected"),
    [
        ("rank > 0", True, True),
        ("args.distributed", True, False),
        ("args.distributed", False, True),
        ("not args.distributed", False, False),
        ("world_size > 1", True, False),
        ("epoch == 3", False, False),
        ("writer is None", True, True),
    ],
)
def test_conditions_that_may_keep_ranks_away(test: str, holds: bool, expected: bool) -> None:
    assert may_keep_ranks_away(ast.parse(test, mode="eval").body, holds=holds) is expected


def test_lines_move_with_what_is_inserted() -> None:
    file = SourceFile("a.py", "a = 1\nb = 2\nc = 3\n")
    second = file.tree.body[1]
    changes = (file.inserted_before(second, "x = 1", "y = 2"), Change("a.py", 0, 6, ""))
    assert changed_text(file, changes) == b"x = 1\ny = 2\nb = 2\nc = 3\n"
    assert [moved_line(file, changes, line) for line in (2, 3)] == [3, 4]


def test_an_argument_is_taken_away_or_added_wherever_it_stands() -> None:
    for text, without, more in (
        ("f(a, b=1)", "f(a)", "f(a, b=1, c=2)"),
        ("f(b=1, a=2)", "f(a=2)", "f(b=1, a=2, c=2)"),
        ("f(b=1)", "f()", "f(b=1, c=2)"),
        ("f((a), b=(1),)", "f((a),)", "f((a), b=(1), c=2,)"),
    ):
        file = SourceFile("a.py", text)
        call = file.calls[0][0]
        (keyword,) = (keyword for keyword in call.keywords if keyword.arg == "b")
        assert changed_text(file, [file.without_argument(call, keyword)]).decode() == without
        assert changed_text(file, [file.with_argument(call, "c=2")]).decode() == more
    file = SourceFile("a.py", "f(a,)")
    assert changed_text(file, [file.with_argument(file.calls[0][0], "c=2")]) == b"f(a,c=2)"
