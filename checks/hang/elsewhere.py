"""Why a running job hangs: ranks that do something else while the others wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import FAIL, INFO, WARN, Finding, Fix, Owner
from ddpdoctor.base.text import clip, listed, one_line, plural
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.checks.hang.hang_check import findings_of, hang_check
from ddpdoctor.engine.log_traits import LogTraits, Particulars
from ddpdoctor.engine.registry import check
from ddpdoctor.facts.hang import Frame, Hang, Watched
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.facts.processes import Processes
from ddpdoctor.hang.evidence import named, not_known, summary_of, timeout_words, waiting_words
from ddpdoctor.hang.fixes import full_stacks, look_again, look_on_other_hosts, read_the_code
from ddpdoctor.hang.rank_states import RankActivity, RankState
from ddpdoctor.hang.verdict import HangVerdict
from ddpdoctor.knowledge.hang_causes import HangCause
from ddpdoctor.knowledge.torch_frames import PlaceKind, file_line, where, worker_place
from ddpdoctor.processes.jobs import lone_setting

MAX_DOING = 60
"""Characters of what rank 0 said last."""
SLEEPS = "It sleeps."
WAITS_IN = {
    "hrtimer_nanosleep": SLEEPS,
    "wait_woken": "It waits for somebody at a terminal (input(), a question), or for a socket.",
    "pipe_read": "It reads from a pipe: what another process is to write.",
    "anon_pipe_read": "It reads from a pipe: what another process is to write.",
    "do_wait": "It waits for another process to end.",
    "flock_lock": "It waits for the lock of a file.",
    "locks_lock": "It waits for the lock of a file.",
    "fcntl_setlk": "It waits for the lock of a file.",
}
"""What a process waits for, by the beginning of the kernel's function."""


@hang_check("dataloader-stuck", HangCause.LOADER, owner=Owner.UNKNOWN)
def dataloader_stuck(found: HangVerdict, hang: Hang) -> Finding:
    """A rank waits for its DataLoader, which doesn't move.

    ## What breaks
    The rank waits for the next batch without end (a DataLoader has no timeout unless it is given one), and the other ranks
    wait for the rank. Their timeout speaks of a collective, never of data.

    ## Why
    A worker stands in the data set's own code: a download without a timeout, a network file system that doesn't answer, a
    lock that was held when the worker was forked (OpenCV, HDF5, tokenizers, a thread pool). Or the worker is gone.

    ## Fix
    Look at the line where the worker stands. `DataLoader(..., timeout=120)` turns the hang into an error that names it;
    `num_workers=0` tells data apart from workers; `multiprocessing_context="spawn"` avoids locks held across the fork.
    """
    first = found.culprits[0]
    stuck = [worker for culprit in found.culprits for worker in culprit.busy_workers]
    # One with workers that are gone is in the DataLoader, too; without workers the data set runs in the rank.
    workers = any(culprit.place.where is PlaceKind.LOADER for culprit in found.culprits)
    frames = [worker_place(worker.last).frame for worker in stuck] or found.frames
    return Finding.of(
        summary_of(
            found,
            hang,
            "waits",
            "wait",
            f"for data at {found.lines or 'a line that is not known'}{_workers(first, stuck)}",
        ),
        read_the_code(frames, f"Look at {_lines(frames)}: what does it wait for there?"),
        Fix(
            "Let the DataLoader give up, with an error that names the worker: DataLoader(..., timeout=120)"
            if workers
            else "Give what it waits for a timeout; with a worker the DataLoader has one: DataLoader(..., num_workers=1, timeout=120)"
        ),
        full_stacks(hang, () if stuck else found.culprits, [worker.pid for worker in stuck]),
        cause=_why_no_data(first, stuck),
    )


def _lines(frames: Sequence[Frame | None]) -> str:
    return listed(dict.fromkeys(filter(None, map(file_line, frames))), most=3) or "the data set's code"


def _workers(stand: RankState, stuck: list[Watched]) -> str:
    if stand.place.where is PlaceKind.DATA:
        return f", and stands in the data set, {where(stand.place)}"
    if not stuck and stand.last.is_own_word:
        return ""
    if not stuck:
        return ", and no worker is there" if not stand.rank.workers else ""
    places = listed(dict.fromkeys(where(worker_place(worker.last)) for worker in stuck), most=2)
    return (
        f", its worker (pid {stuck[0].pid}) stands in {places}"
        if len(stuck) == 1
        else f", {len(stuck)} workers stand in {places}"
    )


def _why_no_data(stand: RankState, stuck: list[Watched]) -> str:
    if stand.place.where is PlaceKind.DATA:
        waits = _what_it_waits_for(stand)
        return (
            f"Without workers (num_workers=0) the data set runs in the rank itself, which waits there. {waits}".strip()
        )
    held = [worker for worker in stuck if worker.last.state == "D"]
    if held:
        return f"The kernel holds {plural(len(held), 'worker')} in {held[0].last.waits_in or 'a disk or network file system'}."
    if stand.place.where is PlaceKind.LOADER and stand.last.is_own_word:
        return "Where its workers stand, only a look on its host shows: ddpdoctor jobs --hang."
    if stand.place.where is PlaceKind.LOADER and not stand.rank.workers:
        return "Its workers are gone, killed perhaps: the DataLoader notices only a worker's end that it waits for."
    stopped = [worker for worker in stuck if worker.last.state in "Tt"]
    return f"Worker {stopped[0].pid} is stopped: `kill -CONT {stopped[0].pid}` lets it go on." if stopped else ""


@hang_check("rank-in-lock", HangCause.LOCK, owner=Owner.USER)
def rank_in_lock(found: HangVerdict, hang: Hang) -> Finding:
    """A rank waits for a lock, a queue or another thread, and the others wait for it.

    ## What breaks
    The rank stands still without using a processor; the others wait in their next collective until the timeout ends the job.

    ## Why
    A process was forked while another thread held a lock (logging, an import, a thread pool): in the child nobody ever lets
    it go. Or a `Queue.put` waits for a reader that is gone, a thread for one that waits for it.

    ## Fix
    Look at the line where it stands. Start processes with "spawn" or before threads are started; `put` and `get` take a
    timeout.
    """
    return Finding.of(
        summary_of(found, hang, "stands", "stand", f"in {found.where}"),
        read_the_code(found.frames, f"Look at {found.lines or 'the stack'}: who is to let it go on?"),
        full_stacks(hang, found.culprits),
        cause=timeout_words(hang) if found.waiting else "",
    )


def _is_done(seen: SignMatch, log: Log) -> bool:
    """Whether rank 0 waits as well, or what it was at by itself was over, or another rank's."""
    beside = seen.beside
    waits = any(match.sign == seen.sign and match.line.rank == 0 for match in log.sightings)
    return beside is not None and (waits or "100%|" in beside.text or beside.rank not in (None, 0))


def _at_work(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Show what rank 0 was at."""
    beside = next((match.beside for match in seen if match.beside), None)
    if beside is None:
        return Particulars()
    doing = clip(one_line(beside.text).strip(), MAX_DOING)
    return Particulars(
        f"Rank 0 was at work by itself while others waited for it, until the timeout: {doing}", of_everybody=True
    )


@hang_check(
    "slow-rank0-timeout",
    HangCause.SLOW_0,
    severity=WARN,
    owner=Owner.USER,
    log=LogTraits(refuted=_is_done, particulars=_at_work),
)
def slow_rank0_timeout(found: HangVerdict, hang: Hang) -> Finding:
    """Rank 0 does something long by itself, and the others wait until the timeout strikes.

    ## What breaks
    If rank 0 isn't back before the group's timeout (10 minutes over NCCL, 30 over gloo), all others end with a timeout of a
    collective that is not to blame.

    ## Why
    Rank 0 alone saves a checkpoint, evaluates, downloads or prepares data, or compiles, under `if rank == 0:`, and a barrier
    or the next step of the others comes before it is done.

    ## Fix
    Do it before init_process_group(), or on all ranks; save in the background or in shards; or give the group a longer
    timeout: `init_process_group(timeout=timedelta(hours=2))`.
    """
    place = found.culprits[0].place
    moves = "still moving" if found.moving else "no movement seen"
    return Finding.of(
        summary_of(found, hang, "is", "are", f"alone in {where(place)}, {moves}"),
        read_the_code(
            [place.frame],
            f"See what rank 0 does alone at {file_line(place.frame)}: do it before, on all ranks, or in parts",
        ),
        Fix(
            "Where it must take so long, give the group more time: init_process_group(timeout=datetime.timedelta(hours=2))"
        ),
        Fix("See whether it has gone on: its place and its processor time", (look_again(hang),)),
        cause=f"Rank 0 is {place.where.value}. {timeout_words(hang)}",
    )


@hang_check("rank-busy-outside-collectives", HangCause.BUSY, owner=Owner.USER)
def rank_busy_outside_collectives(found: HangVerdict, hang: Hang) -> Finding:
    """A rank is elsewhere, at work or asleep, while the others wait for it.

    ## What breaks
    All others wait in a collective until the group's timeout ends the job, with a message that names their collective and
    not the rank that never came.

    ## Why
    The rank sleeps, spins or computes in code of its own: a loop that never ends for its share of the data, a request without
    a timeout, a file or another process that it waits for, a branch that only this rank takes.

    ## Fix
    Look at the line that is named. What one rank does alone must be short, or be done before the training.
    """
    who = named(found.culprits, hang)
    asleep = _what_it_waits_for(found.culprits[0]) == SLEEPS
    does = ("is busy", "are busy") if found.moving else ("sleeps", "sleep") if asleep else ("stands", "stand")
    moving = "It made progress between the two looks."
    used = (
        "whether it computes there, a debug server doesn't tell" if hang.server else "and used no processor in between"
    )
    still = f"It was in the same place in both looks{';' if hang.server else ','} {used}."
    waits_for = _what_it_waits_for(found.culprits[0])
    return Finding.of(
        summary_of(found, hang, *does, f"in {found.where}"),
        read_the_code(found.frames, f"See why {who} {found.verb('is', 'are')} at {found.lines}"),
        full_stacks(hang, found.culprits),
        cause=" ".join(filter(None, (moving if found.moving else still, waits_for, timeout_words(hang)))),
    )


def _what_it_waits_for(stand: RankState) -> str:
    """By the function of the kernel in which its main thread is."""
    return next((words for start, words in WAITS_IN.items() if stand.last.waits_in.startswith(start)), "")


@check("rendezvous-waiting", severity=FAIL, owner=Owner.UNKNOWN, stands_for=(HangCause.RENDEZVOUS,))
def rendezvous_waiting(hang: Hang, processes: Maybe[Processes]) -> Iterator[Finding]:
    """Ranks wait in init_process_group for others that are not there.

    ## What breaks
    Nothing is computed: the ranks that have come wait for the store or for the others, silently, up to 30 minutes over gloo
    and 10 over NCCL (600 s for the store).

    ## Why
    Fewer ranks were started than WORLD_SIZE says, on other hosts perhaps; they can't reach MASTER_ADDR:MASTER_PORT; or a rank
    does something long before it calls init_process_group.

    ## Fix
    Start the missing ranks, or correct WORLD_SIZE. `ddpdoctor netcheck` tests the way between hosts, and names who doesn't
    come. Call init_process_group early.
    """
    return findings_of(hang, HangCause.RENDEZVOUS, lambda found, hang: _waiting_to_meet(found, hang, processes))


def _waiting_to_meet(found: HangVerdict, hang: Hang, processes: Maybe[Processes]) -> Finding:
    late = found.culprits if found.waiting else ()
    missing = not_known(found, hang)
    left = _left_in_the_shell(found.culprits, processes)
    if late:
        summary = f"{_not_there(late, hang)}{waiting_words(found, hang)}"
    else:
        missed = _who_is_missing(missing, hang)
        summary = summary_of(found, hang, "waits", "wait", f"in {where(found.culprits[0].place)}: {missed}")
    return Finding.of(
        summary,
        Fix("Start it again from a shell without that setting", ("unset LOCAL_RANK",)) if left else None,
        _bring_them(late, hang) if late else None,
        look_on_other_hosts(hang),
        Fix(
            "Test whether all hosts can reach the master: `ddpdoctor netcheck --help` shows what to run on each",
            ("ddpdoctor netcheck --help",),
        ),
        Fix(
            "See whether settings of the launch agree with each other",
            ("ddpdoctor check --select launch,network,settings",),
        ),
        cause=f"{left} was set where it was started, and no launcher set it: Lightning then starts no other ranks, and waits."
        if left
        else missing or timeout_words(hang),
        severity=INFO if late and found.moving else None,
    )


def _left_in_the_shell(culprits: Sequence[RankState], processes: Maybe[Processes]) -> str:
    """ "LOCAL_RANK=0", where the only rank there is was started with that alone."""
    if len(culprits) != 1 or isinstance(processes, Unknown):
        return ""
    process = processes.get(culprits[0].pid)
    return lone_setting(process) if process else ""


def _not_there(late: Sequence[RankState], hang: Hang) -> str:
    is_ = "is" if len(late) == 1 else "are"
    if late[0].activity is RankActivity.GONE:
        return f"{named(late, hang)} {is_} not there ({late[0].rank.gone}): never started, or ended"
    return f"{named(late, hang)} {is_} not in init_process_group but in {where(late[0].place)}"


def _bring_them(late: Sequence[RankState], hang: Hang) -> Fix:
    if late[0].activity is RankActivity.GONE:
        return Fix(f"Start {named(late, hang)}, or read the log for why it ended; WORLD_SIZE must be what is started")
    frame = late[0].place.frame
    return read_the_code([frame], f"See what comes before init_process_group at {file_line(frame)}")


def _who_is_missing(missing: str, hang: Hang) -> str:
    if missing:
        return missing.rstrip(".")
    if not hang.world_size:
        return "for others, and how many these are is not known"
    return "all ranks are there, and don't get through to each other"
