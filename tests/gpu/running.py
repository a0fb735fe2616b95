"""Runs the parts, each in a process with a deadline, and writes the record after each."""

from __future__ import annotations

import datetime
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from tests.command import ROOT
from tests.gpu import parts
from tests.gpu.kit import KEPT_OUTPUT, MARK, PARTS, FailedError, Kit, Machine, NotPossibleError, Part, end_all_marked
from tests.gpu.outcomes import Outcome, Record, Row, changes, read_record

SHORT = 12.0
"""Seconds. With less of the budget left nothing more is begun."""


def list_parts() -> None:
    """Print the parts in their order, with the time that each takes as a rule."""
    for part in PARTS:
        print(f"{part.name:28} {part.seconds:4.0f} s  {part.title}")
    print(f"{'all':28} {sum(part.seconds for part in PARTS):4.0f} s")


def chosen(only: Sequence[str]) -> list[Part]:
    """The parts that these names, or beginnings of names, mean.

    Raises:
        ValueError: no part is called so.
    """
    for word in only:
        if not any(part.name.startswith(word) for part in PARTS):
            raise ValueError(f"there is no part {word}; python -m tests.gpu --list names them")
    return [part for part in PARTS if not only or any(part.name.startswith(word) for word in only)]


def run_all(only: Sequence[str], budget: float, output: Path, earlier: Path | None, *, rehearsal: bool) -> int:
    """Run the parts and write `output/record.json`, and what they kept as `output/kept.tar.gz`.

    Returns: 0 where no part failed, 1 where one did, 2 where nothing could be run.
    """
    began = time.monotonic()
    try:
        wanted = chosen(only)
        before = read_record(earlier) if earlier else None
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    output.mkdir(parents=True, exist_ok=True)
    folder = output.resolve() / "parts"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        machine, told, unit = parts.machine.look(folder / "machine", rehearsal=rehearsal)
    except (FailedError, NotPossibleError) as error:
        print(error, file=sys.stderr)
        return 2
    record = Record(
        date=datetime.date.today().isoformat(),
        ddpdoctor=_version(),
        rehearsal=rehearsal,
        machine=told,
    )
    path = output / "record.json"
    for number, part in enumerate(wanted, 1):
        left = budget - (time.monotonic() - began)
        if left < min(part.seconds, SHORT) or left < part.seconds / 2:
            row = _row(part, Outcome.NOT_POSSIBLE, f"the {budget:.0f} s for the whole were used up")
        else:
            row = run_part(part, machine, folder / part.name, min(part.deadline, left), unit)
        record = msgspec.structs.replace(record, rows=(*record.rows, row))
        record.written_to(path)
        reason = f": {row.reason.splitlines()[0]}" if row.reason else ""
        print(f"[{number}/{len(wanted)}] {part.name}: {row.outcome.value}{reason}", flush=True)
        for difference in row.differs:
            print(f"        differs: {difference}", flush=True)
    with tarfile.open(output / "kept.tar.gz", "w:gz") as kept:
        for found in sorted(folder.glob("*/kept")):
            kept.add(found, arcname=found.parent.name)
    _tell(record, time.monotonic() - began, path)
    if before:
        print("\n".join(["Against the earlier run:", *(changes(before, record) or ["nothing is otherwise"])]))
    return 1 if any(row.outcome is Outcome.FAILED for row in record.rows) else 0


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
    log_text = (folder / "log.txt").read_text(errors="replace")[-KEPT_OUTPUT:]
    try:
        row = msgspec.json.decode((folder / "row.json").read_bytes(), type=Row)
    except (OSError, msgspec.MsgspecError):
        # The dump says where it hung; its commands are in no row.
        why = (
            f"did not end within {deadline:.0f} s"
            if took >= deadline
            else f"ended without a word ({process.returncode})"
        )
        row = _row(part, Outcome.FAILED, why, log_text)
    if left and row.outcome is not Outcome.FAILED:
        row = msgspec.structs.replace(row, outcome=Outcome.FAILED, reason=f"could not be ended: {left}")
    return msgspec.structs.replace(row, imports=round(took / unit, 2) if unit else 0.0)


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
    if (folder / "work" / "kept").is_dir():
        (folder / "work" / "kept").rename(folder / "kept")
    row = Row(
        part=part.name,
        title=part.title,
        outcome=outcome,
        reason=reason,
        seen=kit.seen,
        differs=tuple(kit.differs),
        output="\n".join(kit.output)[-3 * KEPT_OUTPUT :] if outcome is Outcome.FAILED else "",
    )
    (folder / "row.json").write_bytes(msgspec.json.encode(row))


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]))
