"""Turns what a flight recorder dumped into facts. The keys are those of torch's FlightRecorderDetail.hpp (version 2.10, torch 2.9 to
2.14); a dump of an older torch lacks some: before 2.0 it is a bare list of entries, with `seq_id` for `collective_seq_id` and a
`pg_id` alone for the group. As JSON (`_dump_fr_trace_json`) it has no stacks, and the status' numbers are texts.

A dump may leave out what is done (TORCH_INCLUDE_ONLY_ACTIVE): a group then stands in pg_config, by name, and in pg_status, by the
number that the group has in this process, and in no entry."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.text import masked
from ddpdoctor.facts.hang import Frame, Recorded, RecordedCollective, RecordedGroup
from ddpdoctor.hang.flight_recorder.plain_pickles import MAX_BYTES, NotRead, read_plain

MAX_ENTRIES = 400
"""Of each group the last ones are kept. Over NCCL a rank calls many before the first is done, but CUDA holds a rank up that has launched 1024
kernels, and there are several to a collective."""
MAX_FRAMES = 48
MAX_GROUPS = 1000
WATCHDOG_SECONDS = 300.0
"""So long a watchdog may take to see a timeout and to write of it."""
MAX_RANKS = 100_000
MAX_TEXT = 500

_NUMBER_LIMIT = 1 << 63
_OWN_RANK = re.compile(r"\w+:(?:send (\d+)->\d+|recv (\d+)<-\d+)")
"""A point-to-point call's name begins with the caller's own rank in its group: "nccl:send 0->1", "nccl:recv 0<-1"."""
END_OF_BATCH = ":coalesced"
DEFAULT_GROUP = ("0", "default_pg")
"""Names of the group of all ranks."""


class Dump(NamedTuple):
    """What one dump says."""

    version: str
    groups: tuple[RecordedGroup, ...]
    rank: int | None
    """As the dump itself tells."""
    first: float
    """When its first entry was made, in seconds since the epoch; 0.0 without entries."""
    last: float
    """When its last entry was made."""
    timeout: float
    """Of its last collective, in seconds; 0.0 where it isn't told."""

    def recorded(self, rank: int, file: str, host: str, modified: float) -> Recorded:
        """Make the facts of it.

        Args:
            rank: whose dump it is.
            file: its path.
            host: on which it was written; "" where that isn't known.
            modified: the file's time. It isn't the time of writing where the rank would have timed out long before: the file was
                copied since.
        """
        beyond = modified - self.last
        copied = self.timeout and beyond > self.timeout + WATCHDOG_SECONDS
        return Recorded(
            rank=rank,
            file=file,
            host=host,
            written=0.0 if copied or beyond < 0 else modified,
            version=self.version,
            groups=self.groups,
        )


def parse_dump(data: bytes) -> Dump:
    """Parse a dump, pickled or as JSON.

    Raises:
        NotRead: it isn't one, or isn't plain data.
    """
    dump = _json(data) if data[:64].lstrip()[:1] in (b"{", b"[") else read_plain(data)
    if isinstance(dump, list):
        dump = {"version": "1", "entries": dump}
    if not isinstance(dump, dict) or not ("entries" in dump or ("version" in dump and "pg_status" in dump)):
        raise NotRead("it is no flight recorder's dump")
    raw = _items(dump, "entries")
    entries = _with_ends_of_batches([_entry(item) for item in raw if isinstance(item, dict)])
    if raw and not entries:
        raise NotRead("it is no flight recorder's dump")
    groups = grouped(entries, lambda entry: entry.group)
    if len(groups) > MAX_GROUPS:
        raise NotRead(f"it tells of more than {MAX_GROUPS} process groups")
    status, config = _mapping(dump, "pg_status"), _mapping(dump, "pg_config")
    ids = {entry.group: entry.group_id for entry in entries}
    for name, number in _without_entries(ids, config, status).items():
        groups[name] = []
        if number:
            ids[name] = number
    recorded = tuple(
        _group(name, members, _mapping(status, ids.get(name, "")), config) for name, members in groups.items()
    )
    times = [call.created for group in recorded for call in group.entries if call.created]
    first = entries[0].call.created if entries else 0.0
    timeout = entries[-1].timeout if entries else 0.0
    return Dump(_text(dump, "version"), recorded, _own_rank(entries), first, max(times, default=0.0), timeout)


def _json(data: bytes) -> Any:
    if len(data) > MAX_BYTES:
        raise NotRead(f"it has more than {MAX_BYTES >> 20} MiB")
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise NotRead("it begins like JSON and isn't, or it breaks off in the middle") from None


class _Entry(NamedTuple):
    """One entry: the call, and where it belongs."""

    call: RecordedCollective
    group: str
    group_id: str
    """The key by which pg_status knows the group."""
    place: int
    operation: int
    sequence: tuple[int, int]
    """collective_seq_id and p2p_seq_id: all calls of a batch, and its end, have the same."""
    timeout: float


def _entry(item: Mapping[Any, Any]) -> _Entry:
    return _Entry(
        call=_collective(item),
        group=_group_name(item),
        group_id=str(_number(item, "pg_id", 0)),
        place=_number(item, "record_id", 0),
        operation=_number(item, "op_id", 0),
        sequence=(_number(item, "collective_seq_id", 0), _number(item, "p2p_seq_id", 0)),
        timeout=_number(item, "timeout_ms", 0) / 1000,
    )


def _with_ends_of_batches(entries: list[_Entry]) -> list[_Entry]:
    """Give what was called within a batch the state of the entry that ends the batch: its own stays "scheduled" for ever.

    That entry says that it isn't point-to-point, also where it ends a batch of sends and receives."""
    ends: dict[tuple[str, tuple[int, int]], int] = {}
    for index in reversed(range(len(entries))):
        call = entries[index].call
        batch = (entries[index].group, entries[index].sequence)
        if call.name.endswith(END_OF_BATCH):
            ends[batch] = index
        elif batch in ends:
            end = entries[ends[batch]]
            entries[index] = entries[index]._replace(call=msgspec.structs.replace(call, state=end.call.state))
            if call.point_to_point:
                ended = msgspec.structs.replace(end.call, point_to_point=True, number=call.number)
                entries[ends[batch]] = end._replace(call=ended)
    return entries


def _without_entries(ids: Mapping[str, str], config: Mapping[Any, Any], status: Mapping[Any, Any]) -> dict[str, str]:
    """Map groups that only pg_config tells of to their keys in pg_status: both count the groups in the order in which they were made,
    where names are numbers. "" where they don't fit to each other, or to the entries."""
    names = {name: _name_of_config(name, group) for name, group in config.items() if isinstance(name, str) and name}
    with_entries = {name.partition(":")[0] for name in ids}
    found = {full: "" for name, full in names.items() if name not in with_entries}
    numbers = [key for key in status if isinstance(key, str) and key.isdecimal()]
    if len(names) == len(numbers) == len(status) and all(map(str.isdecimal, names)):
        keys = dict(zip(sorted(names, key=int), sorted(numbers, key=int), strict=True))
        if all(keys.get(name.partition(":")[0], key) == key for name, key in ids.items()):
            found = {full: keys[name] for name, full in names.items() if full in found}
    return dict(list(found.items())[: MAX_GROUPS - len(ids)])


def _name_of_config(name: str, group: Any) -> str:
    description = _text(group, "desc") if isinstance(group, dict) else ""
    return ":".join(filter(None, (_cut(name), description)))


def _group_name(entry: Mapping[Any, Any]) -> str:
    """Name an entry's group: "0:default_pg"; without a description "0"."""
    named = entry.get("process_group", entry.get("pg_name"))
    parts = named if isinstance(named, (list, tuple)) else (named,)
    words = [_cut(part) for part in parts[:2] if isinstance(part, str) and part]
    return ":".join(words) or str(_number(entry, "pg_id", 0))


def _group(name: str, entries: Sequence[_Entry], status: Mapping[Any, Any], config: Mapping[Any, Any]) -> RecordedGroup:
    def last(which: str) -> int | None:
        # -1: none yet.
        number = _number(status, f"last_{which}_collective", -1)
        return _collective_at(number, entries) if number >= 0 else None

    return RecordedGroup(
        group=name,
        ranks=_ranks(_mapping(config, name.partition(":")[0])),
        last_enqueued=last("enqueued"),
        last_started=last("started"),
        last_completed=last("completed"),
        entries=tuple(_without_stale([entry.call for entry in entries], last("completed") or 0))[-MAX_ENTRIES:],
        places=tuple(entry.place for entry in entries)[-MAX_ENTRIES:],
    )


def _without_stale(calls: Sequence[RecordedCollective], last_completed: int) -> Iterator[RecordedCollective]:
    """Complete the calls of a batch of sends and receives whose end is left out, as in a dump that leaves out what is done."""
    sizes = Counter(call.number for call in calls if call.point_to_point)
    ended = {call.number for call in calls if call.name.endswith(END_OF_BATCH)}
    collectives = max((call.number for call in calls if not call.point_to_point), default=0)
    for call in calls:
        batch = call.point_to_point and sizes[call.number] > 1 and call.number not in ended
        if batch and collectives < last_completed >= call.number and call.state != "completed":
            call = msgspec.structs.replace(call, state="completed")
        yield call


def _collective_at(number: int, entries: Sequence[_Entry]) -> int:
    """Find the collective of which gloo's status gives the number: it counts all operations, also those between two ranks, which it
    doesn't record; its entries say at which operation each collective was."""
    if not entries or not entries[-1].call.name.startswith("gloo:"):
        return number
    until = [entry.call.number for entry in entries if entry.operation <= number]
    return until[-1] if until else max(0, entries[0].call.number - 1)


def _ranks(config: Mapping[Any, Any]) -> tuple[int, ...]:
    """Parse a group's ranks: "[0, 1]", as a text; a list would do as well."""
    ranks = config.get("ranks")
    if isinstance(ranks, str):
        return tuple(map(int, re.findall(r"\b\d{1,9}\b", ranks[: 10 * MAX_RANKS])))[:MAX_RANKS]
    return tuple(
        item for item in _items(config, "ranks")[:MAX_RANKS] if type(item) is int and 0 <= item < _NUMBER_LIMIT
    )


def _collective(entry: Mapping[Any, Any]) -> RecordedCollective:
    name = _text(entry, "profiling_name")
    # gloo has no events that tell; it retires what is done, or has failed. A call of NCCL is also retired when it timed out.
    retired = name.startswith("gloo:") and entry.get("retired") is True
    return RecordedCollective(
        number=_sequence(entry),
        name=name,
        state="completed" if retired else _text(entry, "state"),
        point_to_point=entry.get("is_p2p") is True,
        shapes=tuple(_shape(item) for item in _items(entry, "input_sizes")[:64]),
        dtypes=tuple(_cut(item) for item in _items(entry, "input_dtypes")[:64] if isinstance(item, str)),
        created=_created(entry),
        frames=tuple(_frames(entry)),
    )


def _sequence(entry: Mapping[Any, Any]) -> int:
    if entry.get("is_p2p") is True and "p2p_seq_id" in entry:
        return _number(entry, "p2p_seq_id", 0)
    return _number(entry, "collective_seq_id", _number(entry, "seq_id", 0))


def _created(entry: Mapping[Any, Any]) -> float:
    return _number(entry, "time_created_ns", 0) / 1e9 or _number(entry, "time_created_us", 0) / 1e6


def _shape(sizes: Any) -> tuple[int, ...]:
    if not isinstance(sizes, (list, tuple)):
        return ()
    return tuple(size for size in sizes[:32] if type(size) is int and abs(size) < _NUMBER_LIMIT)


def _frames(entry: Mapping[Any, Any]) -> Iterator[Frame]:
    for item in _items(entry, "frames")[:MAX_FRAMES]:
        if isinstance(item, dict):
            yield Frame(_text(item, "name"), _text(item, "filename"), _number(item, "line", 0))


def _own_rank(entries: Sequence[_Entry]) -> int | None:
    """Tell the rank by its point-to-point calls within the default group, in which a rank has its global number."""
    for entry in entries:
        if entry.call.point_to_point and entry.group.partition(":")[0] in DEFAULT_GROUP:
            found = _OWN_RANK.match(entry.call.name)
            if found:
                return int(found[1] or found[2])
    return None


def _items(holder: Mapping[Any, Any], key: str) -> Sequence[Any]:
    value = holder.get(key)
    return value if isinstance(value, (list, tuple)) else ()


def _mapping(holder: Mapping[Any, Any], key: str) -> Mapping[Any, Any]:
    value = holder.get(key)
    return value if isinstance(value, dict) else {}


def _text(holder: Mapping[Any, Any], key: str) -> str:
    value = holder.get(key)
    return _cut(value) if isinstance(value, str) else ""


def _cut(text: str) -> str:
    return masked(text[:MAX_TEXT])


def _number(holder: Mapping[Any, Any], key: str, default: int) -> int:
    """Read a whole number of 64 bits; JSON's dumps write some as texts."""
    value = holder.get(key)
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value, re.ASCII):
        value = int(value)
    return value if type(value) is int and -_NUMBER_LIMIT <= value < _NUMBER_LIMIT else default
