"""How long `ddpdoctor check` takes, as ratios to what users run today, all in one run: the machine's speed cancels out.

    python -m tests.benchmarks.bench_check [--rounds N] [--markdown]

Each round runs every command once, in turn, so that a slow minute hits all of them alike. A row gives the median over
the rounds of (ours / theirs in the same round), and peak memory of the largest process. Where a job runs on the host, `check`
watches it for a quarter of a second, which is none of its own work: only an idle host gives figures to compare.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from tests.benchmarks.measuring import Measured, measuring, print_table
from tests.support.command import command

PYTHON = sys.executable

COMMANDS = {
    "python -c 'import torch'": [PYTHON, "-c", "import torch"],
    "python -m torch.utils.collect_env": [PYTHON, "-m", "torch.utils.collect_env"],
    "python -c 'import typer, rich'": [PYTHON, "-c", "import typer, rich"],
    "ddpdoctor check": [*command("check"), "--python", PYTHON],
    "ddpdoctor check --quick": [*command("check", "--quick"), "--python", PYTHON],
    "ddpdoctor gate --for npd --quick": command("gate", "--for", "npd", "--quick"),
}

RATIOS = [
    ("ddpdoctor check", "python -c 'import torch'", "1.15 or less"),
    ("ddpdoctor check", "python -m torch.utils.collect_env", "below 1.0"),
    ("ddpdoctor check --quick", "python -c 'import typer, rich'", "at most 4"),
    ("ddpdoctor gate --for npd --quick", "ddpdoctor check --quick", "at most 2"),
]


def run(rounds: int) -> dict[str, list[Measured]]:
    """Every command once a round; the first round only warms the caches and is left out."""
    measured: dict[str, list[Measured]] = {name: [] for name in COMMANDS}
    with measuring() as measure:
        for number in range(rounds + 1):
            for name, command_line in COMMANDS.items():
                one = measure(command_line)
                if number:
                    measured[name].append(one)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--markdown", action="store_true", help="as the table of its page")
    options = parser.parse_args()
    measured = run(options.rounds)
    rows: list[tuple[str, ...]] = [("ours", "against", "ratio", "aim", "peak MiB, ours / theirs")]
    said = []
    for ours, theirs, aim in RATIOS:
        pairs = list(zip(measured[ours], measured[theirs], strict=True))
        ratio = statistics.median(mine.seconds / other.seconds for mine, other in pairs)
        peaks = [max(value.peak for value in measured[name]) for name in (ours, theirs)]
        rows.append((f"`{ours}`", f"`{theirs}`", f"{ratio:.2f}", aim, f"{peaks[0]:.0f} / {peaks[1]:.0f}"))
        said.append(f"{ours}: {ratio:.2f} times {theirs} (aim: {aim})")
    print_table(rows, markdown=options.markdown)
    if not options.markdown:
        print("", *said, sep="\n")
    print()
    for name, values in measured.items():
        print(f"{statistics.median(value.seconds for value in values):6.2f} s  {name}")


if __name__ == "__main__":
    main()
