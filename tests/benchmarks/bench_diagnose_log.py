"""How long reading a log takes against `grep -F -f` with the same literal texts, and what memory it needs.

    python -m tests.benchmarks.bench_diagnose_log [--mib 1024] [--failed-mib 16] [--rounds N] [--markdown] [--matchers]

The log is what eight ranks of a training write: metrics, progress bars, NCCL INFO, two lines of harmless noise in a hundred, and at
its end one that failed, with the effects of it. A second log is that of 64 ranks that failed: a tenth of it healthy, the rest
tracebacks of all ranks, between each other, words of watchdogs, NCCL WARN, and torchrun's tables, for every restart again. No aim
is set for it: where each line tells something, each is read. Each round reads it with `ddpdoctor diagnose-log` and with grep in turn, so that a
slow minute hits both alike; the median of the ratios is told. --matchers compares libraries that find many texts at once on the
same bytes, as far as they are installed; nothing but the one in use is needed. On a shared machine with two slow cores, with 450
texts: ahocorasick_rs 266 MB/s as DFA, 188 and 115 as its NFAs, google-re2 52 (and it finds no text within another), pyahocorasick
19 (it takes no bytes), hyperscan 291 to 486. Hyperscan is not used all the same: its wheel is native code for newer CPUs, and what
is gained is less than what the lines found cost.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.match.wanted_signs import vocabulary
from tests.benchmarks.measuring import Measured, measuring, print_table
from tests.support.command import command

AIM = 2.0
"""Times as long as grep, at most."""
MOST_MIB = 100

NOISE = (
    "[rank{rank}]:[W1122 {time}.123456789 socket.cpp:767] [c10d] The client socket has failed to connect to [node0]:29500 (errno: 97 - Address family not supported by protocol).",
    "/opt/conda/lib/python3.11/site-packages/torch/amp/grad_scaler.py:{pid}: FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated",
    "node0:{pid}:{pid} [{rank}] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",
    "[rank{rank}]:[W1122 {time}.123456789 Utils.hpp:136] Warning: Environment variable NCCL_ASYNC_ERROR_HANDLING is deprecated; use TORCH_NCCL_ASYNC_ERROR_HANDLING instead",
)
END = """\
[rank5]: Traceback (most recent call last):
[rank5]:   File "/home/ada/train.py", line 210, in <module>
[rank5]:     main()
[rank5]:   File "/home/ada/train.py", line 144, in main
[rank5]:     for batch in loader:
[rank5]: RuntimeError: unable to open shared memory object </torch_4711_1> in read-write mode: No space left on device (28)
"""


FAILED_RANKS = 64
TRACEBACK = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 210, in <module>
    main()
  File "/home/ada/train.py", line {line}, in main
    loss.backward()
  File "/opt/conda/lib/python3.11/site-packages/torch/_tensor.py", line 581, in backward
    torch.autograd.backward(
  File "/opt/conda/lib/python3.11/site-packages/torch/autograd/__init__.py", line 347, in backward
    _engine_run_backward(
torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, unhandled system error
"""
WATCHDOG = (
    "[rank{rank}]:[E1122 {time}.123456789 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={step}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n",
    "[rank{rank}]:[E1122 {time}.123456789 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Exception (either an error or timeout) detected by watchdog at work: {step}, last enqueued NCCL work: {step}, last completed NCCL work: {step}.\n",
    "node{node}:{pid}:{pid} [{local}] NCCL WARN socketProgressOpt: Call to recv from 10.0.0.{node}<{pid}> failed : Connection reset by peer\n",
)
TABLE = """\
[{place}]:
  time      : 2026-11-22_{time}
  host      : node{node}
  rank      : {rank} (local_rank: {local})
  exitcode  : 1 (pid: {pid})
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
"""


def failing_lines(seed: int) -> Iterator[str]:
    """Lines of a log of ranks that fail, are started again, and fail again, without end."""
    chance, healthy, step = random.Random(seed), lines(seed), 0
    while True:
        step += 1
        now = f"02:{step % 60:02}:07"
        told: list[list[str]] = []
        for rank in range(FAILED_RANKS):
            words = {"rank": rank, "node": rank // 8, "local": rank % 8, "pid": 4000 + rank, "step": step, "time": now}
            told.append([one.format(**words) for one in WATCHDOG])
            told[-1] += [f"[rank{rank}]: {line}\n" for line in TRACEBACK.format(line=140 + step % 9).splitlines()]
        waiting = [rank for rank, one in enumerate(told) for _ in one]
        chance.shuffle(waiting)
        for rank in waiting:
            yield told[rank].pop(0)
            if chance.random() < 0.1:
                yield next(healthy)
        yield "=" * 60 + "\ntrain.py FAILED\n" + "-" * 60 + "\nFailures:\n"
        for rank in range(FAILED_RANKS):
            yield TABLE.format(place=rank, rank=rank, node=rank // 8, local=rank % 8, pid=4000 + rank, time=now)
        yield "=" * 60 + "\n"


def lines(seed: int) -> Iterator[str]:
    """Lines of such a log, without end."""
    chance = random.Random(seed)
    step = 0
    while True:
        step += 1
        rank = chance.randrange(8)
        now = f"02:{step // 60 % 60:02}:{step % 60:02}"
        kind = chance.random()
        if kind < 0.02:
            yield chance.choice(NOISE).format(time=now, rank=rank, pid=4000 + rank) + "\n"
        elif kind < 0.10:
            bars = (
                f"\rEpoch 3:  {at}%|{'#' * (at // 4):25}| {at * 100}/10000 [00:{at:02}<01:12, 83.1it/s, loss={chance.random():.4f}]"
                for at in range(40, 44)
            )
            yield "".join(bars) + "\n"
        elif kind < 0.25:
            yield f"node0:{4000 + rank}:{4100 + rank} [{rank}] NCCL INFO Channel {step % 16:02}/0 : {rank}[{rank}] -> {(rank + 1) % 8}[{(rank + 1) % 8}] via P2P/CUMEM\n"
        elif kind < 0.6:
            yield f"2026-11-22 {now},{chance.randrange(1000):03} INFO train.py:188 rank {rank} step {step} loss {chance.random():.6f} lr {chance.random():.2e} grad_norm {chance.random():.4f} tokens/s {chance.randrange(20000)}\n"
        else:
            yield f"[default{rank}]:iteration {step:8}/ 500000 | consumed samples: {step * 64:12} | elapsed time per iteration (ms): {chance.random() * 1000:.1f} | lm loss: {chance.random():.6E} | grad norm: {chance.random():.3f}\n"


def write_log(path: Path, mib: int, lines: Callable[[int], Iterator[str]] = lines, end: str = END) -> None:
    """A log of that size: pieces of at most 16 MiB, each different, in turn. end: what it says last."""
    pieces, most = [], min(mib, 16) << 20
    for seed in range(4):
        source, piece, size = lines(seed), list[str](), 0
        while size < most:
            piece.append(next(source))
            size += len(piece[-1])
        pieces.append("".join(piece).encode())
    with path.open("wb") as file:
        written = 0
        while written < mib << 20:
            written += file.write(pieces[written // len(pieces[0]) % len(pieces)])
        file.write(end.encode())


def matcher_rows(path: Path) -> list[tuple[str, ...]]:
    """Megabytes a second of the libraries that are installed, over the first 64 MiB."""
    with path.open("rb") as file:
        blocks = [file.read(1 << 20) for _ in range(64)]
    rows: list[tuple[str, ...]] = [("library", "MB/s", "found")]
    for name, make in MATCHERS.items():
        try:
            find = make([sought.text.encode() for sought in vocabulary(catalogue()).texts])
        except ImportError:
            continue
        started = time.perf_counter()
        found = sum(find(block) for block in blocks)
        seconds = time.perf_counter() - started
        rows.append((name, f"{sum(map(len, blocks)) / seconds / 1e6:.0f}", str(found)))
    return rows


def _ahocorasick_rs(implementation: str) -> Callable[[list[bytes]], Callable[[bytes], int]]:
    def make(texts: list[bytes]) -> Callable[[bytes], int]:
        library = importlib.import_module("ahocorasick_rs")
        one = library.BytesAhoCorasick(texts, implementation=getattr(library.Implementation, implementation))
        return lambda block: len(one.find_matches_as_indexes(block, overlapping=True))

    return make


def _pyahocorasick(texts: list[bytes]) -> Callable[[bytes], int]:
    one = importlib.import_module("ahocorasick").Automaton()
    for text in texts:
        one.add_word(text.decode(), 1)
    one.make_automaton()
    return lambda block: sum(1 for _ in one.iter(block.decode("latin-1")))


def _re2(texts: list[bytes]) -> Callable[[bytes], int]:
    library = importlib.import_module("re2")
    options = library.Options()
    options.max_mem = 1 << 28
    one = library.compile("|".join(library.escape(text.decode()) for text in texts), options)
    return lambda block: sum(1 for _ in one.finditer(block))


def _hyperscan(texts: list[bytes]) -> Callable[[bytes], int]:
    library = importlib.import_module("hyperscan")
    one = library.Database(mode=library.HS_MODE_BLOCK)
    one.compile([re.escape(text) for text in texts], ids=list(range(len(texts))), elements=len(texts), flags=0)

    def find(block: bytes) -> int:
        found = 0

        def on_match(*_: object) -> None:
            nonlocal found
            found += 1

        one.scan(block, match_event_handler=on_match)
        return found

    return find


MATCHERS: dict[str, Callable[[list[bytes]], Callable[[bytes], int]]] = {
    "ahocorasick_rs, DFA": _ahocorasick_rs("DFA"),
    "ahocorasick_rs, contiguous NFA": _ahocorasick_rs("ContiguousNFA"),
    "ahocorasick_rs, noncontiguous NFA": _ahocorasick_rs("NoncontiguousNFA"),
    "pyahocorasick": _pyahocorasick,
    "google-re2": _re2,
    "hyperscan": _hyperscan,
}


def _rows(
    rounds: list[tuple[Measured, Measured, Measured]], shape: str, mib: int, *, aimed: bool
) -> Iterator[tuple[str, ...]]:
    for place, name in enumerate(("`ddpdoctor diagnose-log`", "its reading alone", "`grep -F -f`")):
        seconds = statistics.median(one[place].seconds for one in rounds)
        ratio = statistics.median(one[place].seconds / one[2].seconds for one in rounds)
        peak = max(one[place].peak for one in rounds)
        aims = (f"below {AIM:.0f}" if aimed else "none", f"below {MOST_MIB}") if place == 0 else ("", "")
        texts = str(len(vocabulary(catalogue()).texts))
        yield (name, shape, str(mib), texts, f"{seconds:.1f}", f"{ratio:.2f}", aims[0], f"{peak:.0f}", aims[1])


def _row_of_good_run(rounds: list[tuple[Measured, list[Measured]]], mib: int) -> tuple[str, ...]:
    """The row of two logs that are compared. Its ratio is to both read by themselves."""
    seconds = statistics.median(both.seconds for both, _ in rounds)
    ratio = statistics.median(both.seconds / sum(one.seconds for one in apart) for both, apart in rounds)
    peak = max(both.peak for both, _ in rounds)
    name = "`ddpdoctor diagnose-log --good`, against both without it"
    return (
        name,
        "a good run, and one that fails",
        str(2 * mib),
        "",
        f"{seconds:.1f}",
        f"{ratio:.2f}",
        "below 2",
        f"{peak:.0f}",
        f"below {MOST_MIB}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--failed-mib", type=int, default=16, help="of the log of ranks that failed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--markdown", action="store_true", help="as the table of its page")
    parser.add_argument("--matchers", action="store_true", help="compare the libraries")
    options = parser.parse_args()
    shapes = (
        ("healthy until its end", lines, options.mib, True),
        ("64 ranks that failed", failing_lines, options.failed_mib, False),
    )
    rows: list[tuple[str, ...]] = [
        ("command", "log", "MiB", "texts", "seconds", "against grep", "aim", "peak MiB", "aim")
    ]
    with tempfile.TemporaryDirectory() as folder, measuring() as measure:
        log, good, texts = Path(folder, "run.log"), Path(folder, "good.log"), Path(folder, "texts")
        if options.matchers:
            write_log(log, options.mib)
            print_table(matcher_rows(log), markdown=options.markdown)
            return
        texts.write_bytes("\n".join(sought.text for sought in vocabulary(catalogue()).texts).encode())
        os.environ["LC_ALL"] = "C"
        grep = ["grep", "-a", "-c", "-F", "-f", str(texts), str(log)]
        for shape, source, mib, aimed in shapes:
            write_log(log, mib, source)
            rounds: list[tuple[Measured, Measured, Measured]] = []
            for _ in range(options.rounds):
                read = measure([sys.executable, "-m", "tests.benchmarks.reading_a_log", str(log)])
                rounds.append((measure(command("diagnose-log", str(log))), read, measure(grep)))
            rows += _rows(rounds, shape, mib, aimed=aimed)
            if aimed:
                write_log(good, mib, source, end="training done\n")
                apart = [("diagnose-log", str(log)), ("diagnose-log", str(good))]
                rows.append(
                    _row_of_good_run(
                        [
                            (
                                measure(command(*apart[0], "--good", str(good))),
                                [measure(command(*words)) for words in apart],
                            )
                            for _ in range(options.rounds)
                        ],
                        mib,
                    )
                )
                good.unlink()
    print_table(rows, markdown=options.markdown)


if __name__ == "__main__":
    main()
