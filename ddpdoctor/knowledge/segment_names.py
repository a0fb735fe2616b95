"""Names of segments in /dev/shm that are made for training: by the name alone it is told whose a file there is."""

from __future__ import annotations

from enum import Enum
from typing import Final

from ddpdoctor.base.lazy_patterns import compile_lazily


class Maker(str, Enum):
    """Library that names segments so."""

    NCCL = "NCCL"
    TORCH = "torch"
    MEMORY = "multiprocessing.shared_memory"
    SEMAPHORE = "multiprocessing's semaphores"


MODE: Final = 0o600
"""All of them let only the owner read and write theirs: mkstemp, and the modes that they hand shm_open and sem_open."""

_NAMES: Final = (
    (Maker.NCCL, compile_lazily(r"nccl-[A-Za-z0-9]{6}")),
    (Maker.NCCL, compile_lazily(r"nccl-shm-(?:send|recv)-[0-9a-f]+(?:-\d+){2,3}")),
    (Maker.TORCH, compile_lazily(r"torch_(?P<pid>[1-9]\d*)_\d{5,10}_\d+")),
    (Maker.MEMORY, compile_lazily(r"psm_[0-9a-f]{8}")),
    (Maker.SEMAPHORE, compile_lazily(r"sem\.mp-[a-z0-9_]{8}")),
)
"""NCCL 2.8 and later: mkstemp of "/dev/shm/nccl-XXXXXX" (shmutils.cc); before, "nccl-shm-send-<hash of the pid>-<channel>-<ranks>"
(transport/shm.cc). torch: "/torch_<pid>_<random>_<counter>" (NewProcessWideShmHandle in ATen/MapAllocator.cpp), the second of 32 bits: hardly
ever below 10000, as in the date of "torch_2024_11_22". CPython: "psm_" and four random bytes in hex (multiprocessing/shared_memory.py), "/mp-" and a name of tempfile's, which
sem_open keeps as "sem.mp-..." (multiprocessing/synchronize.py)."""

_LIKE_A_WORD: Final = compile_lazily(r"nccl-(?:[A-Za-z]?[a-z]*|[A-Z]+)\d*")


def maker_of(name: str) -> Maker | None:
    """None where the name is of somebody else's choosing, as "torch_cache.pt" or "nccl-topo.xml"."""
    return next((maker for maker, names in _NAMES if names.fullmatch(name)), None)


def maker_pid(name: str) -> int | None:
    """The pid that torch writes into the name: in the namespace of its maker. None in other names."""
    found = next((match for _, names in _NAMES if (match := names.fullmatch(name))), None)
    pid = found.groupdict().get("pid") if found else None
    return int(pid) if pid else None


def may_be_chosen(name: str) -> bool:
    """Whether a person may have thought of a name as NCCL draws them: "nccl-config", "nccl-run042". One in sixty drawn ones is so."""
    return maker_of(name) is Maker.NCCL and bool(_LIKE_A_WORD.fullmatch(name))
