"""A GPU whose memory is full, as torch tells it: how much is whose, and whether those are ranks of the same run. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.base.text import human, listed, ranks_named
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.facts.log import Log, LoggedException, LogLine, SignMatch
from ddpdoctor.logs.analyze.sightings import word
from ddpdoctor.logs.exceptions import is_in_replica

OTHERS: Final = "gpu-memory-held-by-others"
UNOWNED: Final = "gpu-memory-unowned"
SHARED: Final = "missing-set-device"
PINNED: Final = "ckpt-device-pin"
_OF_ATTEMPT_BEFORE: Final = "zombie-gpu-process"

_SIZE: Final = r"(?<![\d.])[\d.]{1,20} (?:bytes|[KMGT]iB)"
_FULL: Final = compile_lazily(
    rf"Tried to allocate (?P<wanted>{_SIZE})(?:\. GPU (?P<gpu>\d+) has a total capaci?ty of (?P<total>{_SIZE}) of which"
    rf"| \(GPU (?P<gpu1>\d+); (?P<total1>{_SIZE}) total capacity;)"
)
_LISTED: Final = compile_lazily(rf"Process (?P<pid>\d+) has (?P<size>{_SIZE}) memory in use")
_OWN: Final = (
    compile_lazily(rf"this process has (?P<size>{_SIZE}) memory in use"),
    compile_lazily(rf"(?P<size>{_SIZE}) reserved in total by PyTorch"),
    compile_lazily(rf"(?P<size>{_SIZE}) (?:is allocated by PyTorch|already allocated)"),
)
"""What the process itself holds, the most telling first."""
_TORCHS: Final = compile_lazily(
    rf"Of the allocated memory (?P<used>{_SIZE}) is allocated by PyTorch,.{{0,120}}? and (?P<idle>{_SIZE}) is reserved by PyTorch"
)
_WORKER: Final = compile_lazily(r"\bpid=(\d+)")
_LOADS: Final = compile_lazily(r"\btorch\.load\((?!.*\bmap_location\b)(?P<arguments>.*)")
_SET_DEVICE: Final = Fix(
    'Call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before anything else that touches CUDA'
)
_MOST: Final = 4
_SHOW_ALL_GPUS: Final = ("torchrun", "accelerate", "deepspeed", "mp.spawn")
"""Launchers whose ranks all see the same GPUs; others may give each its own, which is then the first one to each."""
_NEARLY_ALL: Final = (0.75, 1.05)
"""Of a GPU's memory, where that is what ranks hold together: their contexts and what is free come on top."""
_GIB: Final = float(1 << 30)


class FullGpu(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes. own: what the process holds that tells it. listed: pid -> what another one holds; where the driver didn't know the
    process itself (`itself` is False), it may be among them."""

    gpu: int
    wanted: float
    total: float
    own: float | None
    listed: dict[int, float]
    itself: bool
    torchs: float | None = None
    """What torch's allocator has of it, used or idle."""

    @property
    def besides_torch(self) -> float:
        """What the process holds that torch doesn't, where that is much: no few GiB of contexts and buffers; else 0."""
        rest = (self.own or 0) - self.torchs if self.itself and self.torchs is not None else 0
        return rest if rest > max(4 * _GIB, self.total / 4) else 0


def full_gpu(text: str) -> FullGpu | None:
    """Parse torch's message; None where it is none, or has no figures."""
    found = _FULL.search(text)
    if found is None:
        return None
    own = next((said["size"] for pattern in _OWN if (said := pattern.search(text))), None)
    return FullGpu(
        gpu=int(found["gpu"] or found["gpu1"]),
        wanted=_bytes(found["wanted"]),
        total=_bytes(found["total"] or found["total1"]),
        own=_bytes(own) if own else None,
        listed={int(said["pid"]): _bytes(said["size"]) for said in _LISTED.finditer(text)},
        itself="this process has " in text,
        torchs=sum(map(_bytes, torchs.groups())) if (torchs := _TORCHS.search(text)) else None,
    )


def _bytes(size: str) -> float:
    number, unit = size.split()
    return float(number) * (1 << 10 * ("bytes", "KiB", "MiB", "GiB", "TiB").index(unit))


# --- whose they are ---------------------------------------------------------------------------------------------------------


def with_ranks_told_from_others(seen: Sequence[SignMatch], log: Log, slug: str) -> list[SignMatch]:
    """Lay a full GPU to ranks of this run, where the processes that torch lists are its own; where none of them is known, and the GPU isn't
    the rank's own by its number, both may be. What ranks of an attempt before hold is told already."""
    known = {match.line.order for match in seen if match.slug == _OF_ATTEMPT_BEFORE}
    revised: dict[tuple[str, int, int] | int, SignMatch] = {}
    counts = _on_one_gpu(log)
    for place, match in enumerate(seen):
        full = full_gpu(match.line.text) if match.slug in (OTHERS, UNOWNED, slug) else None
        if full is None or match.line.order in known:
            revised[place] = match
            continue
        order = match.line.order
        here = PINNED if _loading(match.line, log) else slug
        sharing = _count_sharing(full, match.line, counts)
        if _is_by_ranks(full, log, match.line) or (sharing and log.launcher in _SHOW_ALL_GPUS):
            revised[here, order, 0] = msgspec.structs.replace(match, slug=here, role=SignRole.NAMES)
        elif sharing:
            revised[place] = msgspec.structs.replace(match, role=SignRole.HINTS)
            revised[here, order, 0] = msgspec.structs.replace(match, slug=here, role=SignRole.HINTS)
        elif match.slug == OTHERS and not _of_this_run(full, log, match.line) and _is_of_another(full, match.line, log):
            revised[OTHERS, order, 0] = msgspec.structs.replace(match, role=SignRole.HINTS)
            revised[here, order, 0] = msgspec.structs.replace(match, slug=here, role=SignRole.HINTS)
        else:
            revised[place] = match
    return list(revised.values())


def _of_this_run(full: FullGpu, log: Log, line: LogLine) -> dict[int, int | None]:
    """Those listed that are ranks of this run, by the words of launchers and by labels, with their ranks as far as those are told; not the
    one that said the line."""
    workers = {int(label[1]) for host in log.hosts if host != line.host and (label := _WORKER.search(host))}
    found: dict[int, int | None] = dict.fromkeys(workers & full.listed.keys())
    for process in log.exited:
        if process.pid in full.listed and process.pid and (not line.host or process.host in ("", line.host)):
            rank = process.local_rank if process.rank is None else process.rank
            found[process.pid] = found.get(process.pid) if rank is None else rank
    speakers = _speakers(full, log, line)
    return {pid: rank for pid, rank in found.items() if pid not in speakers}


def _speakers(full: FullGpu, log: Log, line: LogLine) -> set[int]:
    """Those listed of which one may be the process that said the line."""
    ranks = {line.rank, line.local_rank} - {None}
    return {
        process.pid
        for process in log.exited
        if process.pid in full.listed
        and process.pid
        and (process.rank in ranks or process.local_rank in ranks or not (full.itself or process.told_to))
    }


def _is_by_ranks(full: FullGpu, log: Log, line: LogLine) -> bool:
    """Whether ranks of this run hold more of it than strangers."""
    own = _of_this_run(full, log, line)
    strangers = full.listed.keys() - own.keys() - _speakers(full, log, line)
    return bool(own) and sum(full.listed[pid] for pid in own) >= sum(full.listed[pid] for pid in strangers)


def _on_one_gpu(log: Log) -> dict[str, int]:
    """Count for each host its ranks, where several of its processes say that their GPU is full, and all of the log say so of the same one."""
    said = [(raised, full) for raised in log.raised if (full := full_gpu(raised.line.text))]
    if len({full.gpu for _, full in said}) != 1:
        return {}
    counts = {}
    for host, raised in grouped((raised for raised, _ in said), lambda raised: raised.line.host).items():
        ranks = {one.line.rank for one in raised} - {None}
        speakers = len(ranks) or sum(one.times for one in raised)
        local = {end.local_rank for end in log.exited if end.host in ("", host) or not host} - {None}
        if speakers > 1:
            counts[host] = max(speakers, len(local))
    return counts


def _count_sharing(full: FullGpu, line: LogLine, counts: Mapping[str, int]) -> int:
    """Count the ranks that fill the GPU together, where torch lists none but the speaker; 0 where it isn't they who do. counts: of `_on_one_gpu`."""
    count = 0 if full.listed else counts.get(line.host, 0)
    least, most = _NEARLY_ALL
    return count if least <= count * (full.own or 0) / full.total <= most else 0


def _is_of_another(full: FullGpu, line: LogLine, log: Log) -> bool:
    """Whether all that is known of the rank speaks for another GPU than the first one, on which it is."""
    local = [line.local_rank, *(process.local_rank for process in log.exited if process.rank == line.rank)]
    told = next((rank for rank in local if rank is not None), line.rank)
    return full.gpu == 0 and bool(full.listed) and bool(told)


def _loading(line: LogLine, log: Log) -> LoggedException | None:
    """The exception of that line, where it came about in a torch.load() that isn't told where to load."""
    return next((raised for raised in log.raised if raised.line.order == line.order and _load_call(raised)), None)


def _load_call(raised: LoggedException) -> re.Match[str] | None:
    calls = (_LOADS.search(frame.code) for frame in (*reversed(raised.frames), raised.own) if frame)
    return next((call for call in calls if call), None)


# --- words ------------------------------------------------------------------------------------------------------------------


def memory_of_others(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Say how much of the GPU is whose."""
    full = _first(seen)
    if full is None:
        return Particulars()
    others = sum(full.listed.values()) or full.total - (full.own or 0)
    less = Fix(
        "This rank's own part is the greater one: a smaller batch, with gradient accumulation, makes room as well"
    )
    return Particulars(
        _whose(f"GPU {full.gpu} is full (out of memory)", full, log, seen),
        (
            *((less,) if (full.own or 0) > others else ()),
            Fix(
                "See on that host, outside of a container, whose it is. Ask the owner, or wait; don't end what isn't yours",
                (*_look(full), "nvidia-smi"),
            ),
            Fix("Or take free GPUs by CUDA_VISIBLE_DEVICES"),
        ),
        of_everybody=True,
    )


def memory_of_ranks(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Say which ranks share a GPU."""
    full = _first(seen)
    if full is None:
        return _two_gpus(seen, log)
    begin = f"Ranks share GPU {full.gpu}, out of memory"
    whose = _whose(begin, full, log, seen)
    if count := _count_sharing(full, seen[0].line, _on_one_gpu(log)):
        size, total, wanted = human(full.own or 0), human(full.total), human(full.wanted)
        whose = f"{begin}: {count} ranks hold about {size} of {total} each, and {wanted} more were wanted"
    return Particulars(whose, (_SET_DEVICE, *_to_see(full, seen)), of_everybody=True)


def _two_gpus(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Of tensors on two GPUs nobody knows which ranks there are."""
    one, other = word(seen, "one"), word(seen, "other")
    if not (one and other):
        return Particulars()
    no_buffer = Fix(
        "What is no parameter goes along with model.to() and DataParallel as a buffer only",
        ('self.register_buffer("anchors", anchors)   # in __init__',),
    )
    orders = {match.line.order for match in seen}
    if any(raised.line.order in orders and is_in_replica(raised) for raised in log.raised):
        return Particulars(
            f"In a copy of the model that DataParallel made, tensors of {one} and {other} meet",
            (
                Fix(
                    "Train with one process for each GPU, as DistributedDataParallel does, or let the process see one GPU",
                    ("torchrun --nproc-per-node=NUMBER_OF_GPUS train.py ...", "export CUDA_VISIBLE_DEVICES=0"),
                ),
                no_buffer,
            ),
            "DataParallel copies the model to every GPU, and something in it stays on the one that it was made for: an attribute that is no buffer, a .cuda() with "
            "a fixed number, a cache of the model's, or the hooks of a model that was loaded by device_map. transformers' Trainer takes DataParallel by itself "
            "where one process sees several GPUs.",
        )
    return Particulars(
        f"Tensors of {one} and {other} meet in one process",
        (
            Fix(
                f"Look in the line that is shown for what was made or moved to {other}, or to a plain 'cuda', which is cuda:0: take the input's device (x.device)"
            ),
            no_buffer,
            _SET_DEVICE,
        ),
        "A tensor was made on, or sent to, a fixed GPU: a .cuda() or device number in the script, an attribute that is no buffer, of which DataParallel makes no "
        "copies, or a rank that hasn't called torch.cuda.set_device(). Models that are spread over GPUs on purpose fail so, too.",
    )


def memory_of_loaded(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Say which ranks share a GPU to which a checkpoint was loaded."""
    full = _first(seen)
    if full is None:
        return Particulars()
    raised = next((raised for match in seen if (raised := _loading(match.line, log))), None)
    call = _load_call(raised) if raised else None
    whole = re.fullmatch(r"[^(),]+(?=\)$)|[^(),]+", call["arguments"].removesuffix(")")) if call else None
    name = whole[0] if whole else "FILE"
    return Particulars(
        _whose(f"Ranks load a checkpoint onto GPU {full.gpu}, out of memory", full, log, seen),
        (
            Fix("Load it to the CPU in every rank", (f'torch.load({name}, map_location="cpu")',)),
            _SET_DEVICE,
            *_to_see(full, seen),
        ),
        f"torch.load() without map_location puts each tensor onto the GPU that it was saved from, in every rank: here onto GPU {full.gpu}.",
        of_everybody=True,
    )


def _first(seen: Sequence[SignMatch]) -> FullGpu | None:
    return next((full for match in seen if (full := full_gpu(match.line.text))), None)


def _to_see(full: FullGpu, seen: Sequence[SignMatch]) -> tuple[Fix, ...]:
    sure = any(match.role is SignRole.NAMES for match in seen)
    return () if sure else (Fix("See, while it runs, whether that is a rank of this run", _look(full)),)


def _look(full: FullGpu) -> tuple[str, ...]:
    pids = ",".join(map(str, full.listed))
    return (f"ps -o pid,user,etime,args -p {pids}",) if pids else ()


def _whose(begin: str, full: FullGpu, log: Log, seen: Sequence[SignMatch]) -> str:
    """ "GPU 2 is full (out of memory): process 4711 holds 20.4 GiB, rank 2 57.6 GiB, and 2 GiB more were wanted"."""
    line = seen[0].line
    speakers = _speakers(full, log, line)
    held = next((full.listed[pid] for pid in speakers), full.own)
    this = "this process" if line.rank is None else f"rank {line.rank}"
    end = f"and {human(full.wanted)} more were wanted"
    others = {pid: size for pid, size in full.listed.items() if pid not in speakers}
    if not others:
        rest = f"{this} holds {human(held)} of {human(full.total)}, others the rest, " if held is not None else ""
        return f"{begin}: {rest}{end}"
    own = _of_this_run(full, log, line)
    ranks = sorted({rank for rank in own.values() if rank is not None})
    whose = f", {ranks_named(ranks)} of this very run," if ranks else " of this very run" if own else ""
    this = f"{this} {human(held)}, " if held is not None else ""
    if len(others) == 1:
        ((pid, size),) = others.items()
        return f"{begin}: process {pid}{whose} holds {human(size)}, {this}{end}"
    each = listed((f"{pid} ({human(size)})" for pid, size in others.items()), _MOST)
    return f"{begin}: processes {each}{whose.removesuffix(',')}, {this}{end}"
