"""How long `preflight()` holds two healthy ranks up, beside what they do anyway: import torch, make a group, and call it first.

python -m tests.benchmarks.bench_preflight              5 jobs of 2 ranks over gloo
python -m tests.benchmarks.bench_preflight --rounds 1
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from tests.support.preflight_jobs import run_ranks

SCRIPT = """
import json, time
began = time.perf_counter()
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
started = time.perf_counter()
import ddpdoctor
imported = time.perf_counter()
dist.barrier()
called = time.perf_counter()
ddpdoctor.preflight()
first = time.perf_counter()
dist.barrier()
again = time.perf_counter()
ddpdoctor.preflight()
second = time.perf_counter()
print(json.dumps({
    "start": started - began, "import": imported - started, "first": first - called, "second": second - again,
}))
dist.destroy_process_group()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="jobs (5)")
    rounds = parser.parse_args().rounds
    ranks = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            ended = run_ranks(SCRIPT, Path(folder))
        assert all(rank.code == 0 for rank in ended), ended
        ranks += [json.loads(rank.out.splitlines()[-1]) for rank in ended]
    start, imported, first, second = (
        statistics.median(rank[name] for rank in ranks) for name in ("start", "import", "first", "second")
    )
    print(f"{rounds} jobs of 2 ranks over gloo on the CPU, medians:")
    print(f"  torch, the group and its first call   {start:6.2f} s")
    print(f"  import ddpdoctor                      {imported:6.3f} s")
    print(f"  preflight()                           {first:6.2f} s, {first / start:.2f} of that")
    print(f"  preflight() once more                 {second:6.2f} s")


if __name__ == "__main__":
    main()
