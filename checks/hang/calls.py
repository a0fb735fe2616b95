"""Why a running job hangs: ranks that all wait, and what tells them apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ddpdoctor.base.findings import INFO, WARN, Finding, Fix, Owner
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.base.text import capital, listed, ranks_named, without_capital
from ddpdoctor.checks.hang.hang_check import hang_check
from ddpdoctor.engine.log_traits import LogTraits, Particulars
from ddpdoctor.facts.hang import Hang
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.hang.evidence import (
    describe_lags,
    group_lags,
    named,
    no_record_of,
    not_known,
    numbers_named,
    summary_of,
    timeout_words,
    what_they_do,
)
from ddpdoctor.hang.fixes import (
    KILLED_LINES,
    full_stacks,
    look_again,
    look_on_other_hosts,
    read_the_code,
    see_its_calls,
    test_the_way,
)
from ddpdoctor.hang.flight_recorder.wait_graph import Lag, LagCause, RecordedHang, RecordedSign
from ddpdoctor.hang.rank_states import RankActivity
from ddpdoctor.hang.verdict import HangVerdict
from ddpdoctor.knowledge.hang_causes import HangCause
from ddpdoctor.knowledge.torch_frames import FORWARD, PlaceKind, file_line
from ddpdoctor.logs.analyze.sightings import word


@hang_check("uneven-inputs", HangCause.UNEVEN, owner=Owner.USER)
def uneven_inputs(found: HangVerdict, hang: Hang) -> Finding:
    """Some ranks have left the training loop, while others wait for them in a step.

    ## What breaks
    The ranks with more batches wait in DDP's next all_reduce for those that have none left, and these wait in a barrier, at
    the end, or are gone.

    ## Why
    The ranks have different numbers of batches: an IterableDataset that isn't split evenly, a sampler of one's own, filtering
    by rank, or a `break` that only some ranks reach. Or one rank raised an error in the loop, and waits in a `finally` or
    `except` that ends with a barrier or with destroy_process_group().

    ## Fix
    Give all ranks as many batches: DistributedSampler with drop_last=True, or the smallest length, agreed by all_reduce
    before the loop. Or `with model.join():` around the loop (torch's Join), which lets ranks that are done take part.
    """
    first = found.culprits[0]
    step = found.waiting[0].place.frame
    return Finding.of(
        summary_of(found, hang, "has", "have", f"left the loop for {found.where}"),
        read_the_code(
            (step, first.place.frame),
            f"Count the batches of each rank before the loop at {file_line(step) or 'its first line'}: they must be equal",
        ),
        Fix(
            "Let DistributedSampler(..., drop_last=True) share the data out, or stop all ranks at the smallest number of batches"
        ),
        Fix(
            "Or let ranks that are done take part in the steps of the others: with model.join(): around the loop (not with FSDP)"
        ),
        cause=f"{_fewer(first.place.where, first.place.what)} {timeout_words(hang)}",
    )


def _fewer(place: PlaceKind, what: str) -> str:
    raised = "or raised an error, and wait in a `finally` or `except`: look into their logs."
    if place is PlaceKind.LEAVING:
        return f"The ranks that left had fewer batches, ended the loop early, {raised}"
    return f"The ranks that left had fewer batches, call {what} alone within the loop, {raised}"


def different_calls(found: HangVerdict, hang: Hang) -> Finding:
    """The finding of collective-desync on a running job."""
    record = found.record
    # JSON of a recorder has no stacks.
    recorded = [frame for frame in (record.frame, record.last) if frame] if record else []
    return Finding.of(
        _recorded_calls(record, hang) if record else _who_stands_where(found, hang),
        _where_one_runs_the_model(found),
        read_the_code(
            recorded or [place.frame for place, _ in found.places],
            "Look at these lines: every rank must come to the same collective, so no `if rank == 0:` and no early `continue` around one",
        ),
        Fix(
            "Where the code doesn't show it, let torch compare every call and name the rank (over gloo, DDP() of torch 2.13"
            " crashes under this)",
            ("export TORCH_DISTRIBUTED_DEBUG=DETAIL",),
        ),
        see_its_calls(hang),
        cause=_how_they_differ(found, hang),
    )


def _in_forward(found: HangVerdict) -> bool:
    return found.record is None and any(place.what == FORWARD for place, _ in found.places)


def _where_one_runs_the_model(found: HangVerdict) -> tuple[Fix, ...]:
    alone = "Where a rank runs the model alone (to validate): let it call model.module(...), which meets no other rank, or let all ranks run it"
    batches = "Where it is the training's loop, give all ranks as many batches: DistributedSampler(..., drop_last=True)"
    return (Fix(alone), Fix(batches)) if _in_forward(found) else ()


def _who_stands_where(found: HangVerdict, hang: Hang) -> str:
    if not found.waiting:
        return f"ranks call different collectives: {what_they_do(found.culprits, hang)}"
    who, at = named(found.culprits, hang), found.where
    return f"{who} {found.verb('waits', 'wait')} in {at}, but {what_they_do(found.waiting, hang)}"


def _recorded_calls(record: RecordedHang, hang: Hang) -> str:
    if record.sign is RecordedSign.CIRCLE:
        return f"{numbers_named(record.ranks, hang)} wait for each other in different groups: one has taken another way than the rest"
    if record.sign is RecordedSign.FORK:
        at = f" after {record.call} number {record.number} of {record.group}"
    else:
        group = "" if record.group.partition(":")[0] == "0" else f" of group {record.group}"
        at = f" at number {record.number}{group}" if record.number else ""
    if not record.others:
        calls = listed((f"{numbers_named(members, hang)} {call}" for call, members in record.calls), most=3)
        return f"ranks called different collectives{at}: {calls}"
    odd = listed((call for call, _ in record.calls[1:]), most=2)
    line = f" ({file_line(record.last)})" if record.last else ""
    callers = {rank for _, members in record.calls for rank in members}
    who, others = numbers_named(callers.intersection(record.ranks), hang), ranks_named(record.others)
    beyond = set(record.ranks) - callers
    more = f"; so did {numbers_named(beyond, hang)} in other groups" if beyond else ""
    return f"{who} called {odd}{line}{at}, where {others} called {record.calls[0][0]}{more}"


def _how_they_differ(found: HangVerdict, hang: Hang) -> str:
    majority = found.waiting or (found.record and found.record.others)
    alone = "" if majority else "No majority tells which of them is wrong. "
    if _in_forward(found):
        why = "DDP's forward sends BatchNorm's buffers to all ranks: one runs the model alone, or has more batches."
        return f"{why} {timeout_words(hang)}"
    groups = (
        ""
        if found.record
        else "Where these calls belong to different groups by design, look for the rank that both wait for. "
    )
    return f"{alone}{groups}{timeout_words(hang)}".strip()


def _who_never_came(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """The ranks that the others' words name, where they had compared all."""
    told = " ".join(match.words.get("ranks", "") for match in seen if match.role is SignRole.NAMES)
    ranks = [int(number) for number in re.findall(r"\d+", told)]
    never = f"{capital(ranks_named(ranks))} never came to the collective in which the others wait" if ranks else ""
    return Particulars(summary=never, of_everybody=bool(ranks))


@hang_check("rank-fell-behind", HangCause.BEHIND, owner=Owner.UNKNOWN, log=LogTraits(particulars=_who_never_came))
def rank_fell_behind(found: HangVerdict, hang: Hang) -> Finding:
    """A rank has not called the collective in which the others wait, or has not done what they have finished.

    ## What breaks
    By the sequence numbers of the flight recorder, or RAS's counts, the others have begun a collective that this rank never
    came to. Waits are followed over all process groups: who waits in one group for a rank that waits in another is not
    named, but the one at the end of the chain.

    ## Why
    It stopped, crashed, left the loop, or does something else since its last call; or it skipped a call that the others made.
    Where it has called what the others have finished, its GPU failed or stands still. A rank that left no dump was mostly gone
    or stopped before it could write one.

    ## Fix
    Look at what comes after its last call, which is named where it was recorded. On its host `ddpdoctor jobs --hang` shows where it stands now.
    gloo records no sends and receives: of several ranks that are named together there, stacks tell which. A rank that left no dump
    is named first there.
    """
    assert found.record is not None
    return Finding.of(
        _behind(found.record, hang),
        _after_the_last_call(found.record, hang),
        cause=_why_behind(found, found.record, hang),
    )


def _behind(record: RecordedHang, hang: Hang) -> str:
    if not record.lags:
        who, others = numbers_named(record.ranks, hang), ranks_named(record.others)
        wait = "waits" if len(record.others) == 1 else "wait"
        return f"{who} never called {record.call or 'an operation'} of group {record.group}, where {others} {wait}"
    alike = group_lags(record)
    if record.unsure:
        who = numbers_named(record.ranks, hang)
        if _without_dump(record, hang):
            return f"{no_record_of(hang)} {who}: others may wait for {'it' if len(record.ranks) == 1 else 'them'} in sends and receives, which gloo doesn't record"
        return f"one or more of {who} keep the others waiting: they called nothing in which they would wait"
    if len(alike) > 1:
        by_cause = {cause: [lag for lag in record.lags if lag.cause is cause] for cause in LagCause}
        return "; ".join(_in_general(cause, lags, hang) for cause, lags in by_cause.items() if lags)
    last = f"; its last call: {file_line(record.last)}" if record.last and len(record.ranks) == 1 else ""
    return f"{describe_lags(alike[0], hang)}{last}"


def _in_general(cause: LagCause, lags: Sequence[Lag], hang: Hang) -> str:
    who, one = numbers_named((lag.rank for lag in lags), hang), len(lags) == 1
    if cause is LagCause.ABSENT:
        return f"{who} never came to the call{'' if one else 's'} in which the others wait"
    if cause is LagCause.STUCK:
        return f"{who} {'has' if one else 'have'} not done what others have finished: {'its GPU' if one else 'their GPUs'} failed, or stands still"
    return f"{no_record_of(hang)} {who}, for which others wait"


def _why_behind(found: HangVerdict, record: RecordedHang, hang: Hang) -> str:
    words = what_they_do(found.culprits, hang)
    now = f"{capital(words)} now. " if words else ""
    return f"{now}{_unrecorded_waits(record, hang) if record.unsure else ''}{not_known(found, hang)}".strip()


def _unrecorded_waits(record: RecordedHang, hang: Hang) -> str:
    others = [rank for rank in record.unsure if rank not in record.ranks]
    if others:
        which = "one or more of " if len(others) > 1 else ""
        return f"If not, it is {which}{ranks_named(others)}, which called nothing to wait in. "
    unknown = "" if hang.world_size else ", or for a rank that left no dump"
    return f"gloo doesn't record sends and receives: some of these ranks may wait for another one of them in such a call{unknown}. "


def _without_dump(record: RecordedHang, hang: Hang) -> list[int]:
    dumped = {recorded.rank for recorded in hang.recorded}
    return [rank for rank in record.ranks if rank not in dumped]


def _after_the_last_call(record: RecordedHang, hang: Hang) -> tuple[Fix, ...]:
    hosts = {recorded.host for recorded in hang.recorded if recorded.rank in record.ranks} - {""}
    there = f" on {listed(sorted(hosts), most=3)}" if hosts else ""
    # On another host the job has another name.
    here = all(hang.rank(rank) for rank in record.ranks)
    causes = {lag.cause for lag in record.lags}
    silent = _without_dump(record, hang) if record.lags else []
    line = file_line(record.last) or "a line that was not recorded"
    return (
        *((LOOK_AT_ITS_GPU,) if LagCause.STUCK in causes else ()),
        *((_gather_dumps(silent, hang),) if silent else ()),
        read_the_code((record.last, record.frame), f"See what comes after its last call at {line}"),
        Fix(
            f"While the job still runs, see where it stands{there}",
            (look_again(hang) if here else "ddpdoctor jobs --hang",),
        ),
    )


LOOK_AT_ITS_GPU = Fix(
    "On that rank's host, see whether its GPU or driver has failed; its log says first what CUDA said",
    ("ddpdoctor check --select gpu,driver", "sudo dmesg -T | grep -iE 'xid|nvrm' | tail"),
)


def _gather_dumps(silent: Sequence[int], hang: Hang) -> Fix:
    if hang.server:
        return Fix(
            f"See on its host whether {numbers_named(silent, hang)} is stopped or gone", ("ddpdoctor jobs --hang",)
        )
    why = "Where it wrote none, it was gone or stopped before: its log says why, or the kernel's"
    return Fix(f"Gather the dump of {numbers_named(silent, hang)}, from its host. {why}", (KILLED_LINES,))


_OF_MONITOR: Final = ("Heartbeat monitor", "got stuck", "watchdog hang", "monitor thread")
"""In signs of the thread that watches over the watchdog."""


def _stuck_watchdog(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Tell a watchdog that hangs itself from one that ends a rank for its wait."""
    if not all(any(words in match.sign for words in _OF_MONITOR) for match in seen):
        return Particulars()
    seconds = word(seen, "seconds")
    return Particulars(
        f"NCCL's watchdog itself hung{f' for {seconds} seconds' if seconds else ''} (TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC):"
        " a call of CUDA or NCCL didn't return, or a thread held Python's GIL"
    )


@hang_check(
    "nccl-watchdog-timeout", HangCause.TIMED_OUT, owner=Owner.UNKNOWN, log=LogTraits(particulars=_stuck_watchdog)
)
def nccl_watchdog_timeout(found: HangVerdict, hang: Hang) -> Finding:
    """A collective of NCCL has waited until the group's timeout, and the watchdog wrote its dumps.

    ## What breaks
    The watchdog ends the ranks that waited (10 minutes by default). The timeout is a symptom: what it names is the collective,
    not the cause. "Heartbeat monitor timed out" and "watchdog got stuck" mean that the watchdog itself hung, in a call of CUDA or
    NCCL; at a run's end mostly while it takes the groups down.

    ## Why
    A rank never called the collective (the dumps say which: its number is the lowest), or all did and the data doesn't get
    through: network, GPU, peer-to-peer copies.

    ## Fix
    Where a rank is named, look at its last call. Where all called the same, test the network and the GPUs. A longer timeout
    only helps where slowness is proven.
    """
    record = found.record
    assert record is not None
    if record.sign is RecordedSign.BEHIND:
        summary = f"timed out after {record.waited:.0f} s: {_behind(record, hang)}"
        fixes = _after_the_last_call(record, hang)
    else:
        line = f" ({file_line(record.frame)})" if record.frame else ""
        summary = f"{record.call} number {record.number}{line} timed out after {record.waited:.0f} s though {numbers_named(record.ranks, hang)} had called it"
        fixes = test_the_way(hang)
    return Finding.of(summary, fixes, cause=f"NCCL's watchdog struck. {not_known(found, hang)}".strip())


@hang_check("exit-hang", HangCause.EXIT, owner=Owner.USER)
def exit_hang(found: HangVerdict, hang: Hang) -> Finding:
    """The training is over, and the ranks don't end.

    ## What breaks
    The processes stay, with their GPU memory and ports, until somebody ends them.

    ## Why
    `destroy_process_group` waits for collectives that were never done, or with gloo for a DDP object that dies after it; or
    Python waits at its end for a thread, a process pool or a DataLoader's worker that doesn't end.

    ## Fix
    Call `dist.barrier()` and then `dist.destroy_process_group()` on all ranks as the last of the script, after deleting the
    model and loaders; end threads and pools before. Once results are saved, ending the processes loses nothing.
    """
    return Finding.of(
        summary_of(found, hang, "does", "do", f"not end, in {found.where}"),
        read_the_code(
            found.frames[:1],
            f"See what is still open at {found.lines or 'the end'}: threads, pools, loaders, groups",
        ),
        full_stacks(hang, found.culprits),
        look_on_other_hosts(hang),
        cause="The training itself is over.",
    )


@hang_check("collective-stalled", HangCause.STALLED, severity=WARN, owner=Owner.UNKNOWN)
def collective_stalled(found: HangVerdict, hang: Hang) -> Finding:
    """All ranks that can be seen wait, and nothing tells them apart.

    ## What breaks
    The job stands still until the group's timeout. No rank of those that can be seen is to blame.

    ## Why
    All of them called the same collective, so that the fault is between them: network, GPU, peer-to-peer copies. Or a rank on
    another host, or one that could not be looked into, is the one that all wait for. Over NCCL a busy GPU looks the same.

    ## Fix
    Look at the other hosts first (`ddpdoctor jobs --hang` there), then test the way between the ranks with `ddpdoctor smoke`
    and `ddpdoctor netcheck`. A flight recorder in the next run tells ranks apart where stacks don't.
    """
    sure = any(culprit.activity in (RankActivity.WAITS, RankActivity.ELSEWHERE) for culprit in found.culprits)
    recorded = found.record is not None
    again = Fix("Look again: if the numbers of steps in the log go up, it only computes", (look_again(hang),))
    return Finding.of(
        _all_of_them(found, hang),
        look_on_other_hosts(hang),
        None if sure else again,
        test_the_way(hang),
        see_its_calls(hang),
        cause=_why_nobody(found, hang, sure=sure or recorded),
        severity=WARN if sure or recorded else INFO,
    )


def _all_of_them(found: HangVerdict, hang: Hang) -> str:
    if not found.culprits and found.record:
        record = found.record
        return f"all recorded ranks wait in {record.call} number {record.number}, and nothing tells them apart: {numbers_named(record.ranks, hang)}"
    unknown = not_known(found, hang)
    if unknown:
        return f"{what_they_do(found.culprits, hang)}; {without_capital(unknown).rstrip('.')}"
    if len(found.places) > 1:
        return f"ranks stand apart, and who waits for whom can't be told: {what_they_do(found.culprits, hang)}"
    everybody = "both " if len(found.culprits) == 2 else "all of " if len(found.culprits) > 2 else ""
    return f"{everybody}{what_they_do(found.culprits, hang)}, and nothing tells them apart"


def _why_nobody(found: HangVerdict, hang: Hang, *, sure: bool) -> str:
    unknown = not_known(found, hang)
    if unknown:
        return f"{unknown} The one that all wait for may be among them."
    if not sure:
        return "Over NCCL a rank that waits for its GPU looks like one that waits for the others: neither stacks nor /proc tell which."
    if len(found.places) > 1:
        groups = (
            f"This job has {hang.groups} process groups, and stacks don't tell which call belongs to which. "
            if hang.groups > 1
            else ""
        )
        return f"{groups}One may wait for the next in a chain whose end can't be seen. {timeout_words(hang)}"
    return f"The fault is between them, then: network, GPUs, peer-to-peer copies. {timeout_words(hang)}".strip()
