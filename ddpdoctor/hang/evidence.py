"""The evidence of a hang, and the words in which ranks, places and lags are named. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from ddpdoctor.base.findings import Evidence
from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.text import capital, human, listed, plural, ranks_named
from ddpdoctor.facts.hang import Frame, Hang, Watched
from ddpdoctor.hang.certainty import is_definite, movements
from ddpdoctor.hang.flight_recorder.wait_graph import Lag, LagCause, RecordedHang, RecordedSign
from ddpdoctor.hang.rank_states import RankActivity, RankState, bytes_moved, cores_used
from ddpdoctor.hang.verdict import HangVerdict, ask_for_record
from ddpdoctor.knowledge.evidence import told
from ddpdoctor.knowledge.torch_frames import PlaceKind, file_line, is_users_code, where, worker_place

MAX_FRAMES: Final = 6
MAX_FRAMES_OF_LIBRARIES: Final = 3
"""In a row: of more only the innermost and the outermost are shown."""
MAX_SHOWN: Final = 4
DEFAULT_TIMEOUTS: Final = {"nccl": ("NCCL", "10 minutes"), "gloo": ("gloo", "30 minutes")}
"""Of a process group unless the script says otherwise."""


def spans_hosts(hang: Hang) -> bool:
    """Whether the ranks of which anything is known are on several hosts."""
    hosts = {rank.host for rank in hang.ranks} | {recorded.host for recorded in hang.recorded}
    return len(hosts - {""}) > 1


def numbers_named(ranks: Iterable[int], hang: Hang) -> str:
    """Name ranks: "rank 1"; with several hosts "rank 9 (node02)"."""
    numbers = sorted(set(ranks))
    host_of = {recorded.rank: recorded.host for recorded in hang.recorded} | {
        rank.rank: rank.host for rank in hang.ranks
    }
    hosts = [host for host in dict.fromkeys(host_of.get(number, "") for number in numbers) if host]
    return ranks_named(numbers) + (f" ({listed(hosts, most=3)})" if spans_hosts(hang) and hosts else "")


def named(states: Iterable[RankState], hang: Hang) -> str:
    """Name ranks of this host."""
    return numbers_named((state.number for state in states), hang)


def summary_of(found: HangVerdict, hang: Hang, singular: str, several: str, what: str) -> str:
    """Say what the culprits do, with the verb for one of them or for several, and who waits for them."""
    return f"{named(found.culprits, hang)} {found.verb(singular, several)} {what}{waiting_words(found, hang)}"


def what_they_do(states: Sequence[RankState], hang: Hang, *, them: str = "") -> str:
    """Say who waits, or stands, where, the most first: "ranks 0 and 2 wait in all_reduce (train.py:40)". them: for whom they wait, "for it"."""
    groups = grouped(states, lambda state: (state.activity is RankActivity.WAITS, where(state.place)))
    parts = []
    for (waits, place), members in sorted(groups.items(), key=lambda group: -len(group[1])):
        s = "s" if len(members) == 1 else ""
        verb = f"wait{s}{f' {them}' if them else ''} in" if waits else f"stand{s} in"
        parts.append(f"{named(members, hang)} {verb} {place}")
    return listed(parts, most=3)


def waiting_words(found: HangVerdict, hang: Hang) -> str:
    """Say who waits for the culprits, as the end of a sentence: "; ranks 0 and 2 wait for it in ..."; "" where nobody waits."""
    if not found.waiting:
        return ""
    return "; " + what_they_do(found.waiting, hang, them="for it" if len(found.ranks) == 1 else "for them")


def not_known(found: HangVerdict, hang: Hang) -> str:
    """Say what was not seen, so that the cause may be there; "" where all was."""
    parts = []
    if found.unseen:
        parts.append(f"{named(found.unseen, hang)} could not be looked into.")
    here = {rank.rank for rank in hang.ranks} | {recorded.rank for recorded in hang.recorded}
    if hang.world_size > len(here):
        others = [rank for rank in range(hang.world_size) if rank not in here]
        parts.append(f"Nothing is known of {ranks_named(others)}: not on this host, or not found.")
    if found.record and found.record.missing:
        parts.append(f"There is {no_record_of(hang)} {ranks_named(found.record.missing)}: {ask_for_record(hang)}.")
    return capital(" ".join(parts))


def no_record_of(hang: Hang) -> str:
    """Say, in front of a rank, that nothing tells what it has called."""
    return "no answer from the flight recorder of" if hang.server else "no dump of"


def timeout_words(hang: Hang) -> str:
    """Say which timeout will strike; "" where no rank is left for it."""
    if not hang.ranks:
        return ""
    times = [f"{minutes} over {name}" for word, (name, minutes) in DEFAULT_TIMEOUTS.items() if word in hang.backend]
    default = listed(times) or "10 minutes over NCCL, 30 over gloo"
    return f"The group's timeout ends the wait: {default}, unless init_process_group(timeout=...) says otherwise."


# --- evidence -----------------------------------------------------------------------------------------------------------


def evidence_of(found: HangVerdict, hang: Hang) -> tuple[Evidence, ...]:
    """List the culprits with their stacks and DataLoader workers, who waits, what was recorded, and what was not seen.

    Of ranks in the same place one is shown in full.
    """
    groups = grouped(
        found.culprits,
        lambda culprit: (culprit.activity, where(culprit.place), culprit.rank.gone, bool(culprit.rank.workers)),
    )
    shown = list(groups.values())[:MAX_SHOWN]
    evidence = [piece for members in shown for piece in _evidence_of_ranks(members, hang)]
    if more := len(found.culprits) - sum(map(len, shown)):
        evidence.append(_told(hang, f"and {plural(more, 'more rank')}"))
    if found.waiting:
        evidence.append(_told(hang, what_they_do(found.waiting, hang)))
    if found.record:
        evidence += evidence_of_record(found.record, hang)
    if slow := describe_movement(found, hang):
        evidence.append(_told(hang, slow))
    if unknown := not_known(found, hang):
        evidence.append(Evidence(unknown, "what could be seen"))
    return tuple(evidence)


def _told(hang: Hang, text: str) -> Evidence:
    return Evidence(text, "torch's debug server") if hang.server else told(hang, "ranks", text)


def describe_movement(found: HangVerdict, hang: Hang) -> str:
    """Say what moved, so that the job may only be slow; "" where nothing did, or it makes no difference."""
    moved = () if is_definite(found, hang) else movements(hang)
    if not moved:
        return ""
    more = f"; and {plural(len(moved) - MAX_SHOWN, 'more rank')}" if len(moved) > MAX_SHOWN else ""
    return f"it goes on, slowly perhaps: within {hang.between:.1f} s {'; '.join(moved[:MAX_SHOWN])}{more}"


def _evidence_of_ranks(states: Sequence[RankState], hang: Hang) -> Iterator[Evidence]:
    first, *others = states
    yield from _evidence_of_rank(first, hang)
    if others:
        pids = listed((state.pid for state in others if state.pid), most=8)
        yield _told(hang, f"the same of {named(others, hang)}{f' (pid {pids})' if pids else ''}")


def _evidence_of_rank(state: RankState, hang: Hang) -> Iterator[Evidence]:
    details = [f"on {state.rank.host}" if spans_hosts(hang) else "", f"pid {state.pid}" if state.pid else ""]
    who = f"rank {state.number} ({', '.join(filter(None, details))})".replace(" ()", "")
    watched = state.rank.watched
    if state.activity is RankActivity.GONE:
        yield _told(hang, f"{who} is gone: {state.rank.gone or 'its process has ended'}")
        return
    at = f"in {where(state.place)}{_describe_process(watched, meets=state.place.meets)}"
    yield _told(hang, f"{who} {state.activity.value}, {at}")
    if watched and watched.last.frames:
        yield Evidence(f"rank {state.number} is in {_stack(watched.last.frames)}", watched.last.source)
    if watched and state.where in (PlaceKind.LEAVING, PlaceKind.LOCK):
        for name, frames in watched.last.others[:MAX_SHOWN]:
            yield Evidence(f"its thread {name!r} is in {_stack(frames)}", watched.last.source)
    if state.where in (PlaceKind.LOADER, PlaceKind.DATA):
        for worker in state.busy_workers[:MAX_SHOWN]:
            yield _evidence_of_worker(worker, state.number)


def _evidence_of_worker(worker: Watched, rank: int) -> Evidence:
    place = worker_place(worker.last)
    stack = f": {_stack(place.path or worker.last.frames)}" if worker.last.frames else ""
    text = f"worker {worker.pid} of rank {rank} is in {where(place)}{_describe_process(worker)}{stack}"
    return Evidence(text, worker.last.source)


def _describe_process(watched: Watched | None, *, meets: bool = False) -> str:
    """Say what a process did between two looks, as the end of a sentence. meets: it waits for other ranks."""
    if watched is None or len(watched.looks) < 2 or watched.last.is_own_word:
        return ""
    first, last = watched.looks[0], watched.looks[-1]
    state = f"state {last.state}{f' in {last.waits_in}' if last.waits_in else ''}"
    cores, moved = cores_used(watched), bytes_moved(watched)
    figures = ((f"used {cores:.1f} cores", cores >= 0.05), (f"moved {human(moved)}", moved))
    work = listed(words for words, counts in figures if counts)
    unseen = "" if work or meets or last.state in "Tt" else "; what it sends over sockets isn't counted"
    return f"; {state}; {work or 'used no processor'} within {last.seconds - first.seconds:.1f} s{unseen}"


def _stack(frames: Sequence[Frame]) -> str:
    """Show the user's frames, and what of the libraries tells where they are."""
    telling = [frame for frame in frames if not frame.path.endswith("torch/distributed/c10d_logger.py")]
    parts: list[str] = []
    for libraries, run in groupby(telling, lambda frame: not is_users_code(frame)):
        words = [f"{frame.function} ({_short_path(frame)}:{frame.line})" for frame in run]
        if libraries and len(words) > MAX_FRAMES_OF_LIBRARIES:
            words = [words[0], f"{len(words) - 2} more", words[-1]]
        parts += words
        if len(parts) >= MAX_FRAMES and not libraries:
            break
    return " <- ".join(parts[: 2 * MAX_FRAMES])


def _short_path(frame: Frame) -> str:
    """The file of a library from its package on; the user's own in full."""
    if "-packages/" in frame.path:
        return frame.path.rpartition("-packages/")[2]
    return re.sub(r"^.*/lib(?:64)?/python[\d.]+t?/", "", frame.path)


# --- what was recorded --------------------------------------------------------------------------------------------------


def evidence_of_record(record: RecordedHang, hang: Hang) -> list[Evidence]:
    """Say what flight recorders or RAS tell of the group."""
    found = [Evidence(text, record.source) for text in _describe_record(record, hang)]
    if record.waited:
        when = "when it was asked" if hang.server else "when the dump was written"
        found.append(Evidence(f"it had waited {record.waited:.0f} s {when}", record.source))
    return found


def _describe_record(record: RecordedHang, hang: Hang) -> Iterator[str]:
    group, ranks = f"group {record.group}", numbers_named(record.ranks, hang)
    if record.calls:
        at = f"number {record.number}" if record.number else "operations begun"
        if record.sign is RecordedSign.FORK:
            at = f"after {record.call} {at}"
        lines = {record.calls[0][1]: record.frame}
        lines |= {members: record.last for _, members in record.calls[1:] if record.ranks[-1] in members}
        for call, members in record.calls[:MAX_SHOWN]:
            yield f"{group}, {at}: {numbers_named(members, hang)}: {call}{_called_at(lines.get(members))}"
    elif record.lags:
        for lags in group_lags(record):
            yield from _describe_lag_of_record(lags, hang)
        if others := set(record.waiting) - {rank for lag in record.lags for rank in lag.others}:
            wait = f"wait{'s' if len(others) == 1 else ''}"
            them = "it" if len(record.ranks) == 1 else "them"
            yield f"{numbers_named(others, hang)} {wait} for ranks that wait for {them}"
    elif record.others:
        yield f"{group}: {numbers_named(record.others, hang)} called {record.call or 'an operation'}, {ranks} did not"
    elif record.waiting:
        yield f"each of {ranks} waits for another one of them, in different groups"
    elif record.call:
        yield f"{group}: {record.call} number {record.number} was called by {ranks} and is not done"


def group_lags(record: RecordedHang) -> list[tuple[Lag, ...]]:
    """Put those together that keep the same ranks waiting in the same call, at most a few."""
    alike = grouped(record.lags, lambda lag: (lag.cause, lag.group, lag.call, lag.number, lag.others))
    return [tuple(lags) for lags in alike.values()][:MAX_SHOWN]


def _describe_lag_of_record(lags: Sequence[Lag], hang: Hang) -> Iterator[str]:
    first = lags[0]
    call = f"{first.call} number {first.number}{f' at {file_line(first.frame)}' if first.frame else ''}"
    who, others = numbers_named((lag.rank for lag in lags), hang), numbers_named(first.others, hang)
    text = {
        LagCause.ABSENT: f"{others} called {call}, {who} did not",
        LagCause.STUCK: f"{others} {_have(first.others)} done {call}, {who} called it and {_have(lags)} not",
        LagCause.SILENT: f"{others} called {call}; there is {no_record_of(hang)} {who}",
    }[first.cause]
    yield f"group {first.group}: {text}"
    if first.last:
        yield f"the last call of {numbers_named([first.rank], hang)} was{_called_at(first.last)}"


def describe_lags(lags: Sequence[Lag], hang: Hang) -> str:
    """Say who lags: "rank 1 never called all_reduce number 7 of group 3:tp (train.py:40), where ranks 0 and 2 wait"."""
    first = lags[0]
    who, others = numbers_named((lag.rank for lag in lags), hang), ranks_named(first.others)
    group = "" if first.group.partition(":")[0] == "0" else f" of group {first.group}"
    call = f"{first.call} number {first.number}{group}{f' ({file_line(first.frame)})' if first.frame else ''}"
    wait = f"wait{'s' if len(first.others) == 1 else ''}"
    if first.cause is LagCause.STUCK:
        gpu = "its GPU" if len(lags) == 1 else "their GPUs"
        return (
            f"{who} {_have(lags)} not done {call}, which {others} {_have(first.others)}: {gpu} failed, or stands still"
        )
    if first.cause is LagCause.SILENT:
        return f"{no_record_of(hang)} {who}: {others} {wait} for {'it' if len(lags) == 1 else 'them'} in {call}"
    end = "the other end of " if "->" in first.call or "<-" in first.call else ""
    return f"{who} never called {end}{call}, where {others} {wait}"


def _have(ranks: Sequence[object]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _called_at(frame: Frame | None) -> str:
    return f" at {frame.path}:{frame.line}" if frame else ""
