"""The job's store, in which ranks leave words for each other under keys of our own: that of its process group, or the one at which the group
is going to be made."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from importlib import import_module
from typing import Any, Final

import msgspec

from ddpdoctor.knowledge.launchers import current_launch, master_address, master_port

FIRST_PAUSE_SECONDS: Final = 0.002
LONGEST_PAUSE_SECONDS: Final = 0.1
"""Between two looks at a key. A store answers some ten thousand looks a second, and a thousand ranks may look."""

_held: list[Any] = []
"""The store that rank 0 hosts where no process group has made one yet. It stays open: the group that is made next shares it, and would meet
ranks at a store that is about to close else."""
_rounds = 0


class NoStore(Exception):
    """There is no way to the other ranks; the text says why."""


class JobPlace(msgspec.Struct, frozen=True):
    """The place of this process in its job, and whether that is told by a process group that is there."""

    rank: int
    world_size: int
    in_group: bool


def place_in_job() -> JobPlace:
    """Find out which rank of how many this is: of its process group, else by the launcher's settings."""
    distributed: Any = import_module("torch.distributed")
    if distributed.is_available() and distributed.is_initialized():
        return JobPlace(distributed.get_rank(), distributed.get_world_size(), True)
    launch = current_launch(os.environ)
    if launch is None or launch.rank is None or launch.world_size is None:
        return JobPlace(0, 1, False)
    return JobPlace(launch.rank, launch.world_size, False)


class Board:
    """Keys of this call of `preflight()` in the job's store.

    No method waits in the store: while it waits, a store answers no other thread of its process, NCCL's watchdog among them.

    Args:
        store: torch's.
        where: it is, in words.
    """

    def __init__(self, store: Any, where: str, prefix: str) -> None:
        distributed: Any = import_module("torch.distributed")
        self.store = distributed.PrefixStore(prefix, store)
        self.where = where

    def post(self, key: str, message: msgspec.Struct) -> None:
        """Leave a message."""
        self.store.set(key, msgspec.json.encode(message))

    def has(self, key: str) -> bool:
        """Whether there is one."""
        return bool(self.store.check([key]))

    def read(self, key: str) -> bytes | None:
        """The message, None where there is none yet."""
        return bytes(self.store.get(key)) if self.has(key) else None

    def settle(self, key: str, message: msgspec.Struct) -> tuple[bytes, bool]:
        """Leave a message unless there is one: all ranks read that of the first.

        Returns:
            The message that stands, and whether it is this one.
        """
        own = msgspec.json.encode(message)
        stands = bytes(self.store.compare_set(key, "", own.decode()))
        return stands, stands == own

    def is_first(self, key: str) -> bool:
        """Whether nobody has asked that before."""
        return bool(self.store.add(key, 1) == 1)


class Pause:
    """Pauses between two looks, each longer than the one before."""

    def __init__(self) -> None:
        self._seconds = FIRST_PAUSE_SECONDS

    def take(self, until: float) -> None:
        """Sleep, and not beyond that time."""
        time.sleep(max(0.0, min(self._seconds, until - time.monotonic())))
        self._seconds = min(self._seconds * 1.3, LONGEST_PAUSE_SECONDS)


def open_board(place: JobPlace, seconds: float) -> Board:
    """Open the job's store.

    Args:
        place: of this process in the job.
        seconds: for a store that isn't there yet.
    Raises:
        NoStore: there is none.
    """
    global _rounds
    _rounds += 1
    # torchrun's own store outlives the ranks that it starts again.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")[:10]
    prefix = f"ddpdoctor/preflight/{attempt}/{_rounds}"
    if place.in_group:
        return Board(_group_store(), "the store of the process group", prefix)
    address, port = master_address(os.environ), master_port(os.environ)
    if not address or not port:
        raise NoStore(
            "there is no process group yet, and MASTER_ADDR and MASTER_PORT don't say where it is to be made: "
            "call preflight() after init_process_group()"
        )
    return Board(_store_at(address, port, place, seconds), f"{address} port {port}", prefix)


def _group_store() -> Any:
    module: Any = import_module("torch.distributed.distributed_c10d")
    try:
        store = module._get_default_store()
    except Exception as error:
        raise NoStore(f"torch doesn't tell the store of its process group: {error}") from error
    if store is None:
        raise NoStore("the process group has no store, as with the backend mpi")
    return store


def _store_at(address: str, port: int, place: JobPlace, seconds: float) -> Any:
    if _held:
        return _held[0]
    distributed: Any = import_module("torch.distributed")
    # torchrun hosts the store by itself; else rank 0 does, and shares it with the process group that is made later.
    hosts = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = distributed.TCPStore(
            address,
            port,
            place.world_size,
            hosts,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except Exception as error:
        raise NoStore(" ".join(str(error).split())) from error
    if hosts:
        _held.append(store)
    return store
