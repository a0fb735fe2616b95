"""A sweep over all snapshots, in two processes where there are many: the same in one, half as fast."""

from __future__ import annotations

import itertools
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Final

import msgspec

from ddpdoctor.base.text import signal_name
from ddpdoctor.engine.registry import Check
from ddpdoctor.engine.sanitize_facts import is_host
from ddpdoctor.fleet_sweep.judging import FleetJudge
from ddpdoctor.fleet_sweep.sources import SnapshotSource, batches, read_source
from ddpdoctor.fleet_sweep.sweep import Sweep, SweepBuilder
from ddpdoctor.probes.run_as import INQUIRY_MARK

BATCH: Final = 16
MIN_FOR_WORKERS: Final = 128
"""Snapshots from which on it pays to start other processes, each of which loads the checks."""
MAX_WORKERS: Final = 2

_WORKER: Final = "import sys; sys.path[:] = sys.argv[1:]; from ddpdoctor.fleet_sweep.worker import main; main()"
"""With our own path, whatever lies in the working folder."""

_LENGTH: Final = struct.Struct("<I")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker is to judge.

    Args:
        checks: slugs.
        nproc: ranks planned on each host.
    """

    checks: tuple[str, ...]
    nproc: int | None = None


def sweep_over(sources: Iterator[SnapshotSource], checks: Sequence[Check], nproc: int | None) -> Sweep:
    """Read and judge all snapshots.

    Args:
        sources: what is to be read.
        checks: by which they are judged.
        nproc: ranks planned on each host; None: as many as it has GPUs.
    """
    bundles = batches(sources, BATCH)
    first = list(itertools.islice(bundles, MIN_FOR_WORKERS // BATCH))
    workers = min(MAX_WORKERS, len(os.sched_getaffinity(0)))
    more = next(bundles, None)
    if more is None or workers < 2:
        judge = FleetJudge(checks, nproc)
        for bundle in itertools.chain(first, [more] if more else (), bundles):
            judge_all(judge, bundle)
        return judge.sweep
    job = Job(checks=tuple(check.slug for check in checks), nproc=nproc)
    bundles = itertools.chain(first, [more], bundles)
    builder = _in_processes(bundles, job, workers)
    # There are some left only where the processes have ended too early.
    judge = FleetJudge(checks, nproc)
    for bundle in bundles:
        judge_all(judge, bundle)
    builder.merge(judge.sweep)
    return builder.sweep


def judge_all(judge: FleetJudge, bundle: Sequence[SnapshotSource]) -> None:
    """Judge the snapshots of a bundle."""
    for source in bundle:
        for snapshot in read_source(source):
            if snapshot.problem:
                judge.problem(snapshot.problem, snapshot.labels, snapshot.content)
            else:
                judge.judge(snapshot.content, snapshot.name, snapshot.labels)


def _in_processes(bundles: Iterator[Sequence[SnapshotSource]], job: Job, workers: int) -> SweepBuilder:
    lock = threading.Lock()

    def next_bundle() -> Sequence[SnapshotSource] | None:
        with lock:
            return next(bundles, None)

    feeders = [_Feeder(job, next_bundle) for _ in range(workers)]
    try:
        for feeder in feeders:
            feeder.start()
        for feeder in feeders:
            feeder.join()
    finally:
        for feeder in feeders:
            feeder.end()
    builder = SweepBuilder(job.checks)
    for feeder in feeders:
        if feeder.failure:
            raise feeder.failure
        if feeder.sweep is not None:
            builder.merge(feeder.sweep)
        else:
            builder.problem(feeder.loss, filter(is_host, feeder.labels))
    return builder


class _Feeder(threading.Thread):
    """Hands bundles to a process of its own, and takes its sweep in the end."""

    def __init__(self, job: Job, next_bundle: Callable[[], Sequence[SnapshotSource] | None]) -> None:
        super().__init__(daemon=True)
        self._job = job
        self._next_bundle = next_bundle
        self._given = 0
        self.labels: dict[str, None] = {}
        self.sweep: Sweep | None = None
        self.failure: BaseException | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _WORKER, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=INQUIRY_MARK | dict(os.environ),
        )

    def run(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        try:
            write_message(self._process.stdin, msgspec.msgpack.encode(self._job))
            while bundle := self._next_bundle():
                self._given += len(bundle)
                self.labels.update((label, None) for source in bundle for label in source.labels)
                write_message(self._process.stdin, msgspec.msgpack.encode(bundle))
            self._process.stdin.close()
            self.sweep = msgspec.msgpack.decode(self._process.stdout.read(), type=Sweep)
        except (BrokenPipeError, msgspec.DecodeError):
            # The process has ended; what it was given is lost, and said so.
            self._process.wait()
        except BaseException as error:
            self.failure = error

    @property
    def loss(self) -> str:
        code = self._process.wait()
        how = f"was ended by {signal_name(code)}" if code < 0 else f"ended with code {code}"
        return f"a process that judged {self._given} of the snapshots {how}; nothing is known of these"

    def end(self) -> None:
        """End the process, if it is still there."""
        self._process.kill()
        self._process.wait()


def write_message(stream: IO[bytes], content: bytes) -> None:
    """Write something with its length before it."""
    stream.write(_LENGTH.pack(len(content)))
    stream.write(content)
    stream.flush()


def read_message(stream: IO[bytes]) -> bytes | None:
    """Read what `write_message` wrote; None at the end."""
    head = stream.read(_LENGTH.size)
    return stream.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else None
