"""How many files a second `lint` judges, against `ast.parse` of the same files, and whether its memory grows with their number.

    python -m tests.benchmarks.bench_lint [--files 200] [--rounds N] [--markdown]

The files have 500 lines. Training scripts are made up: a loader with its sampler, a model, a loop over epochs, checkpoints and options, between
functions and classes of ordinary code, each file with other names; every fourth imports its neighbour. Ordinary files are those
of the standard library, cut after a statement at about 500 lines. Start-up is that of the command on a single empty file, and is taken off; that of
Python from `ast.parse`, too, which is measured without collections of garbage, as lint parses. Seconds are those that the processes worked, so that others on the
machine count less. Each round measures all of them in turn; medians are told.
"""

from __future__ import annotations

import argparse
import ast
import random
import statistics
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.benchmarks.measuring import measuring, print_table
from tests.support.command import command

LINES = 500
LEAST_FILES_A_SECOND = 100
MOST_TIMES_PARSING = 4.0
PARSE = """\
import ast, gc, pathlib, sys
gc.disable()
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.py")):
    ast.parse(path.read_bytes())
"""
TRAINING = """\
import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
{neighbour}

def options_{word}():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--resume", default="")
    return parser.parse_args()


def train_{word}(args):
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dataset = TensorDataset(torch.randn(1024, 8))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    model = DDP(torch.nn.Linear(8, 1).cuda(), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if args.resume:
        model.load_state_dict(torch.load(args.resume, map_location="cpu"))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (inputs,) in enumerate(loader):
            optimizer.zero_grad()
            loss = model(inputs.cuda()).sum()
            loss.backward()
            optimizer.step()
            if step % 100 == 0 and dist.get_rank() == 0:
                print(epoch, step, loss.item(), helper_{word}_0(inputs, step))
        dist.barrier()
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), f"{{epoch}}.pt")
    dist.destroy_process_group()

"""
HELPER = """\

def helper_{word}_{number}(values, limit={number}, *, name="{word}"):
    total = {{"count": 0, "name": name}}
    for place, value in enumerate(values):
        if value is None or place > limit:
            continue
        total["count"] += 1
        try:
            total[place] = [float(part) * 2 + limit for part in value]
        except (TypeError, ValueError) as error:
            print(f"{{name}}: {{error}}")
    return total if total["count"] else None

"""
END = """\

if __name__ == "__main__":
    train_{word}(options_{word}())
"""


def training_scripts(count: int) -> Iterator[str]:
    """Yield the text of training scripts, each with names of its own."""
    chance = random.Random(1)
    before = ""
    for number in range(count):
        word = "".join(chance.choices("abcdefgh", k=8))
        text = TRAINING.format(word=word, neighbour=before if number % 4 else "")
        helpers = 0
        while text.count("\n") < LINES - 16:
            text += HELPER.format(word=word, number=helpers)
            helpers += 1
        yield text + END.format(word=word)
        before = f"from file_{number:04} import helper_{word}_0\n"


def ordinary_files(count: int) -> Iterator[str]:
    """Yield text of the standard library's larger files, again from the start where there are too few."""
    texts = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_text(encoding="utf-8")
        ends = [node.end_lineno or 0 for node in ast.parse(text).body if (node.end_lineno or 0) <= LINES * 1.2]
        if ends and ends[-1] >= LINES * 0.8:
            texts.append("".join(text.splitlines(keepends=True)[: ends[-1]]))
    for number in range(count):
        yield texts[number % len(texts)]


SHAPES: dict[str, Callable[[int], Iterator[str]]] = {
    "training scripts": training_scripts,
    "the standard library's": ordinary_files,
}


def write_files(folder: Path, texts: Iterator[str]) -> int:
    """Write them; returns their number of lines."""
    folder.mkdir()
    lines = 0
    for number, text in enumerate(texts):
        (folder / f"file_{number:04}.py").write_text(text)
        lines += text.count("\n")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--markdown", action="store_true", help="as the table of its page")
    options = parser.parse_args()
    rows: list[tuple[str, ...]] = [
        ("files", "number", "lines each", "files a second", "aim", "against `ast.parse`", "aim", "peak MiB", "with four times as many")
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as top, measuring() as measure:
        empty = Path(top, "empty")
        write_files(empty, iter(["\n"]))
        for shape, texts in SHAPES.items():
            files, many = Path(top, shape[:8]), Path(top, f"{shape[:8]}-many")
            lines = write_files(files, texts(options.files))
            write_files(many, texts(4 * options.files))
            seconds, parsing, peaks = [], [], []
            for _ in range(options.rounds):
                start = measure(command("lint", str(empty))).processor
                bare = measure([sys.executable, "-c", PARSE, str(empty)]).processor
                linted = measure(command("lint", str(files)))
                seconds.append(linted.processor - start)
                parsing.append(measure([sys.executable, "-c", PARSE, str(files)]).processor - bare)
                peaks.append(linted.peak)
            ratio = statistics.median(own / parsed for own, parsed in zip(seconds, parsing, strict=True))
            rows.append(
                (
                    shape,
                    str(options.files),
                    f"{lines / options.files:.0f}",
                    f"{options.files / statistics.median(seconds):.0f}",
                    f"{LEAST_FILES_A_SECOND}",
                    f"{ratio:.1f}",
                    f"below {MOST_TIMES_PARSING:.0f}",
                    f"{max(peaks):.0f}",
                    f"{measure(command('lint', str(many))).peak:.0f}",
                )
            )
    print_table(rows, markdown=options.markdown)


if __name__ == "__main__":
    main()
