"""Runs the parts, each in a process with a deadline, and writes the record after each."""

from __future__ import annotations

import datetime
import importlib
import io
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from tests.gpu import parts
from tests.gpu.anonymous import anonymiser
from tests.gpu.kit import (
    KEPT_OUTPUT,
    MARK,
    OUTPUT,
    PARTS,
    FailedError,
    Kit,
    Machine,
    NotPossibleError,
    Part,
    end_all_marked,
)  # fmt: skip
from tests.gpu.outcomes import Outcome, Record, Row, changes, read_record
from tests.support.command import ROOT

SHORT = 12.0
"""Seconds. With less of the budget left nothing more is begun."""
MOST_BESIDE = 4
CORES_EACH = 4
"""For each of the parts that run at the same time."""
LARGEST_KEPT, LARGEST_ARCHIVE = 4 << 20, 14 << 20
"""Bytes of one file that is kept, and of all, packed."""


def list_parts() -> None:
    """Print the parts in their order, with the time that each takes as a rule."""
    for part in PARTS:
        print(f"{part.name:28} {part.seconds:4.0f} s {'*' if part.beside else ' '} {part.title}")
    lanes = lanes_here()
    whole = sum(sum(part.seconds for part in group) / (lanes if group[0].beside else 1) for group in groups(PARTS))
    print(f"{'all':28} {whole:4.0f} s   as a rule, with {lanes} of those with a * at a time on this machine's cores")


def chosen(only: Sequence[str]) -> list[Part]:
    """The parts that these names, or beginnings of names, mean.

    Raises:
        ValueError: no part is called so.
    """
    names = {part.name for part in PARTS}
    meant: set[str] = set()
    for word in only:
        found = {word} & names or {name for name in names if name.startswith(word)}
        if not found:
            raise ValueError(f"there is no part {word}; python -m tests.gpu --list names them")
        meant |= found
    return [part for part in PARTS if not only or part.name in meant]


def groups(wanted: Sequence[Part]) -> Iterator[list[Part]]:
    """Those that follow each other and may run at the same time, and each other part alone."""
    for beside, found in itertools.groupby(wanted, key=lambda part: part.beside):
        group = list(found)
        yield from [group] if beside else ([part] for part in group)


def lanes_here() -> int:
    """How many parts run at the same time on this machine."""
    return max(1, min(MOST_BESIDE, len(os.sched_getaffinity(0)) // CORES_EACH))


class Run:
    """One run: what was done so far is in `output` at every moment, free of names of this machine.

    Args:
        began: by the monotonic clock.
        unit: seconds of an import of torch here.
    """

    def __init__(
        self, record: Record, machine: Machine, output: Path, work: Path, *, began: float, budget: float, unit: float
    ) -> None:
        self.record = record
        self.path = output / "record.json"
        self._machine = machine
        self._archive = output / "kept.tar.gz"
        self._work = work
        self._ends, self._budget = began + budget, budget
        self._unit = unit
        self._clean = anonymiser({str(work): "WORK", str(output.resolve()): "OUTPUT"})
        self._write()

    def run(self, wanted: Sequence[Part]) -> None:
        """Run these, in their order."""
        done = itertools.count(1)
        for group in groups(wanted):
            with ThreadPoolExecutor(lanes_here()) as lanes:
                try:
                    for row in as_completed([lanes.submit(self._row_of, part) for part in group]):
                        self._add(row.result(), f"[{next(done)}/{len(wanted)}]")
                except BaseException:  # Stopped: what is running is ended, or else the lanes would be waited for.
                    lanes.shutdown(wait=False, cancel_futures=True)
                    end_all_marked(str(self._work))
                    raise

    def _row_of(self, part: Part) -> Row:
        left = self._ends - time.monotonic()
        if left < min(part.seconds, SHORT) or left < part.seconds / 2:
            return _row(part, Outcome.NOT_POSSIBLE, f"the {self._budget:.0f} s for the whole were used up")
        return run_part(part, self._machine, self._work / part.name, min(part.deadline(self._unit), left), self._unit)

    def _add(self, row: Row, label: str) -> None:
        self.record = msgspec.structs.replace(self.record, rows=(*self.record.rows, row))
        self._write()
        reason = f": {row.reason.splitlines()[0]}" if row.reason else ""
        print(f"{label} {row.part}: {row.outcome.value}{reason}", flush=True)
        for difference in row.differs:
            print(f"        differs: {difference}", flush=True)

    def _write(self) -> None:
        self.record.written_to(self.path, self._clean)
        whole = self._archive.with_name(self._archive.name + ".new")
        with tarfile.open(whole, "w:gz") as archive:
            for row in self.record.rows:
                for name, content in sorted(_kept(self._work / row.part)):
                    _add_file(archive, f"{row.part}/{name}", content, self._clean)
        if whole.stat().st_size <= LARGEST_ARCHIVE:
            whole.replace(self._archive)
        else:
            whole.unlink()


def _kept(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The files that a part kept, and all that its commands printed."""
    kept = folder / "work" / "kept"
    for path in [folder / "log.txt", folder / "work" / OUTPUT, *kept.rglob("*")]:
        if path.is_file():
            content = path.read_bytes()
            name = str(path.relative_to(kept)) if path.is_relative_to(kept) else path.name
            yield name, content if len(content) <= LARGEST_KEPT else f"({len(content)} bytes, left out)".encode()


def _add_file(archive: tarfile.TarFile, name: str, content: bytes, clean: Callable[[str], str]) -> None:
    with suppress(UnicodeDecodeError):  # A dump of NCCL's, for one.
        content = clean(content.decode()).encode()
    told = tarfile.TarInfo(name)
    told.size = len(content)
    archive.addfile(told, io.BytesIO(content))


def run_all(only: Sequence[str], budget: float, output: Path, earlier: Path | None, *, rehearsed_gpus: int = 0) -> int:
    """Run the parts and write `output/record.json`, and what they kept as `output/kept.tar.gz`.

    Args:
        rehearsed_gpus: this is a rehearsal with so many stand-ins.

    Returns: 0 where some passed and none failed, 1 where one failed, 2 where nothing could be run.
    """
    began = time.monotonic()
    try:
        wanted = chosen(only)
        before = read_record(earlier) if earlier else None
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        output.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix="ddpdoctor-gpu-"))
    except OSError as error:
        print(
            f"nothing can be written into {error.filename}: {error.strerror}; --output names a folder", file=sys.stderr
        )
        return 2
    work.chmod(0o711)  # One part looks as another user.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        machine, told, unit = parts.machine.look(work / "machine", rehearsed_gpus)
        print(f"{', '.join(told['gpus']) or 'no GPU'}; an import of torch takes {unit:.1f} s", flush=True)
        record = Record(
            date=datetime.date.today().isoformat(), ddpdoctor=_version(), rehearsal=rehearsed_gpus > 0, machine=told
        )
        run = Run(record, machine, output, work, began=began, budget=budget, unit=unit)
        run.run(wanted)
    except (FailedError, NotPossibleError) as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        end_all_marked(str(work))
        shutil.rmtree(work, ignore_errors=True)
    _tell(run.record, time.monotonic() - began, run.path)
    if before:
        # The earlier one as it is on disk, and so this one.
        now = changes(before, read_record(run.path))
        print("\n".join(["Against the earlier run:", *(now or ["nothing is otherwise"])]))
    outcomes = {row.outcome for row in run.record.rows}
    return 1 if Outcome.FAILED in outcomes else 0 if Outcome.PASSED in outcomes else 2


def run_part(part: Part, machine: Machine, folder: Path, deadline: float, unit: float) -> Row:
    """Run one part in a process of its own.

    Args:
        deadline: seconds; with more it is ended, with all that it has started.
        unit: seconds of an import of torch here.
    """
    folder.mkdir(parents=True)
    order = folder / "order.json"
    order.write_bytes(msgspec.json.encode(machine))
    began = time.monotonic()
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.running", part.work.__module__, part.name, str(folder), str(deadline)],
            cwd=ROOT,
            env={**os.environ, **machine.environ, MARK: str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            process.wait(timeout=deadline)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
    left = end_all_marked(str(folder))
    took = time.monotonic() - began
    try:
        row = msgspec.json.decode((folder / "row.json").read_bytes(), type=Row)
    except (OSError, msgspec.MsgspecError):
        why = (
            f"did not end within {deadline:.0f} s"
            if took >= deadline
            else f"ended without a word ({process.returncode})"
        )
        row = _row(part, Outcome.FAILED, why)
    if left and row.outcome is not Outcome.FAILED:
        row = msgspec.structs.replace(row, outcome=Outcome.FAILED, reason=f"could not be ended: {left}")
    if row.outcome is Outcome.FAILED:
        row = msgspec.structs.replace(row, output=_printed(folder))
    return msgspec.structs.replace(row, imports=round(took / unit, 2) if unit else 0.0)


def _printed(folder: Path) -> str:
    """The commands of a part and what they printed; where it hung, the log has the place."""
    texts = [
        path.read_text(errors="replace").strip()[-KEPT_OUTPUT:]
        for path in (folder / "work" / OUTPUT, folder / "log.txt")
        if path.is_file()
    ]
    return "\n".join(filter(None, texts))


def _row(part: Part, outcome: Outcome, reason: str, output: str = "") -> Row:
    return Row(part=part.name, title=part.title, outcome=outcome, reason=reason, output=output)


def _version() -> str:
    try:
        return version("ddpdoctor")
    except PackageNotFoundError:
        import ddpdoctor

        return str(getattr(ddpdoctor, "__version__", ""))


def _tell(record: Record, seconds: float, path: Path) -> None:
    counts = {outcome: sum(row.outcome is outcome for row in record.rows) for outcome in Outcome}
    what = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items())
    print(f"{what}; {seconds:.0f} s. The record: {path}")
    if record.rehearsal:
        print("A rehearsal: this says nothing of any GPU.")


def work(module: str, name: str, folder: Path, deadline: float) -> None:
    """Do the part of that name and module, in this process, and write its row."""
    importlib.import_module(module)
    import faulthandler
    import traceback

    # Where it hangs, stands in its log before it is killed.
    faulthandler.dump_traceback_later(max(deadline - 2, 1))
    machine = msgspec.json.decode((folder / "order.json").read_bytes(), type=Machine)
    part = next(part for part in PARTS if part.name == name)
    (folder / "work").mkdir()
    kit = Kit(machine, folder / "work")
    outcome, reason = Outcome.PASSED, ""
    try:
        part.work(kit)
    except NotPossibleError as error:
        outcome, reason = Outcome.NOT_POSSIBLE, str(error)
    except FailedError as error:
        outcome, reason = Outcome.FAILED, str(error)
    except Exception:
        outcome, reason = Outcome.FAILED, f"the kit itself broke: {traceback.format_exc()}"
    row = Row(
        part=part.name,
        title=part.title,
        outcome=outcome,
        reason=reason,
        seen=kit.seen,
        differs=tuple(kit.differs),
    )
    (folder / "row.json").write_bytes(msgspec.json.encode(row))


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]))
