"""What to do about a job that hangs. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Final

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.text import ranks_named
from ddpdoctor.facts.hang import Frame, Hang
from ddpdoctor.hang.evidence import named
from ddpdoctor.hang.rank_states import RankState
from ddpdoctor.knowledge.interface_choice import version_of
from ddpdoctor.knowledge.nccl_diagnosis import FIRST_RELEASE, SETTINGS

LINES_BEFORE: Final = 6
MAX_COMMANDS: Final = 3
KILLED_LINES: Final = "sudo dmesg -T | grep -iE 'killed process|out of memory|segfault' | tail"
"""Shows what the kernel says of processes that it killed, or that crashed."""


def read_the_code(frames: Iterable[Frame | None], why: str) -> Fix:
    """Show the lines where ranks stand."""
    known = (frame for frame in frames if frame and frame.line and frame.path.startswith("/"))
    lines = list(dict.fromkeys((frame.path, frame.line) for frame in known))[:MAX_COMMANDS]
    return Fix(
        why, tuple(f"sed -n {max(1, line - LINES_BEFORE)},{line + 2}p {shlex.quote(path)}" for path, line in lines)
    )


def full_stacks(hang: Hang, states: Sequence[RankState], workers: Sequence[int] = ()) -> tuple[Fix, ...]:
    """Show the whole stacks, those of C++ too."""
    pids = [state.pid for state in states if state.pid][:MAX_COMMANDS] + list(workers)[:MAX_COMMANDS]
    text = "See the whole stacks, C++ included (this holds the process up for a second)"
    return (Fix(text, tuple(f"{shlex.quote(hang.py_spy)} dump --native --pid {pid}" for pid in pids)),) if pids else ()


def look_again(hang: Hang, seconds: int | None = None) -> str:
    """Word the command that looks at this job, for so many seconds; of dumps alone it isn't known which that is."""
    job = ["--debug-server", hang.server] if hang.server else [hang.job] if hang.job else []
    return _look(*job, *(["--seconds", str(seconds)] if seconds else []))


def ask_its_server(hang: Hang) -> str:
    """Word the command that asks the job's own debug server; "" where it has none, or that was asked."""
    return _look("--debug-server", hang.own_server) if hang.own_server else ""


def _look(*options: str) -> str:
    return shlex.join(["ddpdoctor", "jobs", "--hang", *options])


def look_on_other_hosts(hang: Hang) -> tuple[Fix, ...]:
    """Look on the other hosts that have ranks: the cause may be there. The job has another name there."""
    here = {rank.rank for rank in hang.ranks}
    if hang.world_size <= len(here):
        return ()
    others = [rank for rank in range(hang.world_size) if rank not in here]
    return (
        Fix(
            f"Look at {ranks_named(others)} on the other hosts: the one that all wait for may be there",
            ("ddpdoctor jobs --hang",),
        ),
    )


def see_its_calls(hang: Hang) -> tuple[Fix, ...]:
    """Have flight recorders tell what each rank has called; nothing where they have. Without a debug server they must be turned on before the
    job starts."""
    if hang.recorded:
        return ()
    if command := ask_its_server(hang):
        return (
            Fix(
                "Ask torch's debug server of this job what each rank has called: no stack shows sizes that differ",
                (command,),
            ),
        )
    return (
        Fix(
            "Let the next run record its collectives, so that the rank that falls behind is known: set these for all ranks, and"
            " after a hang give the folder to `ddpdoctor jobs --hang --dumps`",
            (
                "export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
                "export TORCH_NCCL_DUMP_ON_TIMEOUT=1",
                'mkdir -p "$HOME/nccl-dumps" && export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HOME/nccl-dumps/rank_"'
                ' TORCH_FR_DUMP_TEMP_FILE="$HOME/nccl-dumps/rank_"',
            ),
        ),
    )


def test_the_way(hang: Hang) -> tuple[Fix, ...]:
    """Test whether data gets through between these ranks without the user's own code."""
    here = len(hang.ranks) or len(hang.recorded)
    if hang.world_size > len(hang.ranks) or len({recorded.host for recorded in hang.recorded} - {""}) > 1:
        return (
            Fix(
                "Test the network between the hosts: `ddpdoctor netcheck --help` shows what to run on each",
                ("ddpdoctor netcheck --help",),
            ),
            Fix("Test the ranks of this host without your own code", (f"ddpdoctor smoke --nproc {max(here, 1)}",)),
            *compare_by_nccl(hang),
        )
    backend = " --backend gloo" if hang.backend == "gloo" else ""
    return (
        Fix(
            "Test the same ranks without your own code: if this hangs too, it names the cause",
            (f"ddpdoctor smoke --nproc {max(here, 1)}{backend}",),
        ),
        *compare_by_nccl(hang),
    )


def compare_by_nccl(hang: Hang) -> tuple[Fix, ...]:
    """Have NCCL compare the ranks by itself; nothing where its release can't, or isn't known."""
    if not hang.ranks or not hang.nccl or version_of(hang.nccl)[:2] < FIRST_RELEASE:
        return ()
    return (
        Fix(
            f"Let NCCL {hang.nccl} itself compare the ranks of the running job: GPUs, drivers, links, errors, settings; or set this for"
            " the next run, and give its log to `ddpdoctor diagnose-log`",
            ("ncclras -D", f"export {' '.join(f'{name}={value}' for name, value in SETTINGS.items())}"),
        ),
    )


def end_the_rest(found: Sequence[RankState], hang: Hang) -> Fix:
    """End the other ranks after one is gone: they hold their GPUs for nothing."""
    text = f"End what is left of the job, since {named(found, hang)} won't come back: stop its launcher, then see what it left behind"
    return Fix(text, ("ddpdoctor zombies", "ddpdoctor zombies --kill"))
