"""How long `ddpdoctor fix-checkpoint` takes, as ratios to what people do today, all in one run: the machine's speed
cancels out.

    python -m tests.benchmarks.bench_fix_checkpoint [--rounds N] [--sizes GB ...] [--folder FOLDER] [--markdown]

Each round runs every command once, in turn, on a file of 400 tensors (as many for every size), with the file in the page
cache and nothing left to be written back. The folder needs three times the largest size; the 40 GB file is sparse.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.measuring import Measure, Measured, measuring, print_table
from tests.support.command import command, plain_environ

PYTHON = sys.executable
GB = 10**9
TENSORS = 400

MAKE = """
import sys, torch
path, tensors, size, sparse = sys.argv[1], int(sys.argv[2]), int(float(sys.argv[3])), sys.argv[4] == "sparse"
torch.serialization.location_tag = lambda storage: "".join(["cu", "da:3"])
tensors = {f"layer{number}.weight": torch.empty(size // tensors // 4) for number in range(tensors)}
if sparse:
    with torch.serialization.skip_data():
        torch.save(tensors, path)
else:
    torch.save({name: one.random_(1000) for name, one in tensors.items()}, path)
"""

LOAD_AND_SAVE = """
import sys, torch
loaded = torch.load(sys.argv[1], map_location="cpu", weights_only=True, mmap=sys.argv[3] == "mmap")
torch.save(loaded, sys.argv[2])
"""


def make_checkpoint(path: Path, size: float, tensors: int = TENSORS, kind: str = "full") -> None:
    """A checkpoint of `size` bytes, its tensors pinned to cuda:3."""
    subprocess.run([PYTHON, "-W", "ignore", "-c", MAKE, path, str(tensors), str(size), kind], check=True)


def fix(*arguments: object) -> list[str]:
    return command("fix-checkpoint", *map(str, arguments))


class Bench:
    """Measures commands on one file; each starts from the same state of the file, the cache and the disk."""

    def __init__(self, folder: Path, measure: Measure, rounds: int) -> None:
        self.folder = folder
        self.measure = measure
        self.rounds = rounds

    def run(self, commands: dict[str, list[str]], path: Path) -> dict[str, list[Measured]]:
        """Every command once a round; the first round only warms the caches and is left out."""
        measured: dict[str, list[Measured]] = {name: [] for name in commands}
        for number in range(self.rounds + 1):
            for name, command_line in commands.items():
                os.sync()
                one = self.measure(command_line)
                if number:
                    measured[name].append(one)
                self._restore(path)
        return measured

    def _restore(self, path: Path) -> None:
        (self.folder / "out.pt").unlink(missing_ok=True)
        if path.with_name(path.name + ".ddpdoctor-undo").exists():
            subprocess.run(fix("--undo", path), check=True, capture_output=True, env=plain_environ())


def at_size(bench: Bench, size: float) -> list[tuple[str, ...]]:
    """The rows for a file of `size` GB."""
    path, out = bench.folder / "checkpoint.pt", bench.folder / "out.pt"
    make_checkpoint(path, size * GB)
    load = [PYTHON, "-c", LOAD_AND_SAVE, str(path), str(out)]
    theirs = {"torch.load + torch.save": [*load, ""], "the same with mmap": [*load, "mmap"], "cp": ["cp", path, out]}
    ours = {"in place": fix(path), "-o": fix("-o", out, path)}
    measured = bench.run({**theirs, **ours}, path)
    path.unlink()
    rows = []
    for mine, other, aim in [
        ("in place", "torch.load + torch.save", "100 or more at 4 GB"),
        ("in place", "the same with mmap", ""),
        ("in place", "cp", ""),
        ("-o", "torch.load + torch.save", ""),
        ("-o", "cp", ""),
    ]:
        faster = median_ratio(measured[other], measured[mine])
        text = f"{faster:.1f} times faster" if faster >= 1 else f"{1 / faster:.2f} times as long"
        aim = "1.2 times as long or less" if (mine, other) == ("-o", "cp") else aim
        rows.append((f"{size:g} GB", mine, other, text, aim, f"{peak(measured[mine])} / {peak(measured[other])}"))
    return rows


def grows_with_size(bench: Bench) -> list[tuple[str, ...]]:
    """A sparse file a hundred times as large."""
    small, large = bench.folder / "small.pt", bench.folder / "large.pt"
    seconds = {}
    for path, size in ((small, 0.4), (large, 40)):
        make_checkpoint(path, size * GB, kind="sparse")
        seconds[path] = bench.run({"in place": fix(path)}, path)["in place"]
        path.unlink()
    ratio = median_ratio(seconds[large], seconds[small])
    peaks = f"{peak(seconds[large])} / {peak(seconds[small])}"
    return [("40 GB", "in place", "in place at 0.4 GB", f"{ratio:.2f} times as long", "1.5 or less", peaks)]


def many_tensors(bench: Bench) -> list[tuple[str, ...]]:
    """What 30,000 tensors take beyond what one takes."""
    path, one = bench.folder / "many.pt", bench.folder / "one.pt"
    make_checkpoint(path, 30_000 * 64, tensors=30_000)
    make_checkpoint(one, 64, tensors=1)
    measured = bench.run({"many": fix("--dry-run", path), "one": fix("--dry-run", one)}, path)
    more = statistics.median(a.seconds - b.seconds for a, b in zip(measured["many"], measured["one"], strict=True))
    peaks = f"{peak(measured['many'])} / {peak(measured['one'])}"
    return [("30,000 tensors", "--dry-run", "--dry-run of 1 tensor", f"{more:.2f} s more", "below 0.5 s", peaks)]


def median_ratio(above: list[Measured], below: list[Measured]) -> float:
    return statistics.median(a.seconds / b.seconds for a, b in zip(above, below, strict=True))


def peak(measured: list[Measured]) -> str:
    return f"{max(one.peak for one in measured):.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=float, nargs="*", default=[0.1, 1, 4], help="GB")
    parser.add_argument("--folder", help="where the files are made; default: the temporary folder")
    parser.add_argument("--markdown", action="store_true", help="as the table of its page")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    rows: list[tuple[str, ...]] = [("file", "ours", "against", "ratio", "aim", "peak MiB, ours / theirs")]
    try:
        with measuring() as measure:
            bench = Bench(folder, measure, options.rounds)
            for size in options.sizes:
                rows += at_size(bench, size)
            rows += grows_with_size(bench)
            rows += many_tensors(bench)
    finally:
        shutil.rmtree(folder)
    print_table(rows, markdown=options.markdown)


if __name__ == "__main__":
    main()
