"""Tells by a stack where in a training a rank stands. Pure.

Names of functions and files are those of torch 2.0 to 2.13. py-spy leaves out what is written in C, so that `.item()`,
`time.sleep` and `input()` show themselves as the line that calls them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import cache
from typing import Final

import msgspec

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.tables import read_table
from ddpdoctor.facts.hang import Frame, RankLook
from ddpdoctor.knowledge.frameworks import phase_of


class PlaceKind(Enum):
    """Kinds of places. The value: what a rank does there, as the end of a sentence that begins with the rank."""

    COLLECTIVE = "in a collective"
    PAIR = "in a send or a receive"
    STEP = "in a step of DDP"
    BUILDING = "in the making of DDP()"
    GROUP = "in the making of a process group"
    LEAVING = "at its end"
    DEVICE = "waiting for its GPU"
    LOADER = "waiting for its DataLoader"
    DATA = "in its data set"
    SAVING = "saving a checkpoint"
    LOADING = "loading a checkpoint"
    INPUT = "waiting for somebody at a keyboard"
    LOCK = "waiting for a lock"
    CHILD = "waiting for another process"
    REMOTE = "waiting for another host"
    COMPILING = "compiling"
    OWN = "in code of its own"
    UNSEEN = "where nobody could look"


MEETINGS: Final = (PlaceKind.COLLECTIVE, PlaceKind.PAIR, PlaceKind.STEP, PlaceKind.BUILDING, PlaceKind.GROUP)
"""Where a rank waits for other ranks, if it stays."""


class StackPlace(msgspec.Struct, frozen=True):
    """Place in a training where a stack stands.

    where: its kind.
    what: the collective or function ("all_reduce", "DDP's backward"); "" where `where` says all.
    frame: the innermost of the user's own, else of a library's: the line to look at. None without frames.
    path: all frames that aren't torch's or Python's, the innermost first: the way to it.
    """

    where: PlaceKind
    what: str = ""
    frame: Frame | None = None
    path: tuple[Frame, ...] = ()

    @property
    def meets(self) -> bool:
        return self.where in MEETINGS

    @property
    def call(self) -> tuple[PlaceKind, str, tuple[Frame, ...]]:
        """What is equal where two mean the same call. In code of its own a rank is in the same place only at the same line."""
        return self.where, self.what, self.path


PYTHONS_OWN: Final = compile_lazily(
    r"^<(?!stdin>|string>|ipython-input)|(?:^|/)lib(?:64)?/python\d[\d.]*t?/(?!site-packages/|dist-packages/)"
)
TORCHS: Final = compile_lazily(r"(?:^|/)torch/(?:_|\w+\.py$|\w+/)")
WITHOUT_FOLDER: Final = frozenset({
    "threading.py", "queue.py", "selectors.py", "subprocess.py", "socket.py", "ssl.py", "contextlib.py", "bdb.py", "cmd.py", "pdb.py",
    "code.py", "socketserver.py", "runpy.py",
})  # fmt: skip
"""Python's own files that py-spy may name without their folder."""
PARENTS_FRAMES: Final = ("multiprocessing/popen_fork.py", "multiprocessing/forkserver.py")
"""From here outward the stack of a forked process is a copy of its parent's."""
PYTHONS_FOLDERS: Final = ("multiprocessing/", "concurrent/", "asyncio/", "importlib/", "logging/", "http/", "urllib/")
FORWARD: Final = "DDP's forward"
"""What it is called where DDP itself sends the model's buffers to the other ranks, before the model's own."""
CARRIERS: Final = ("wrapper", "_call_impl", "_wrapped_call_impl", "_fn", "decorate_context", "inner", "__call__")

C10D: Final = "torch/distributed/distributed_c10d.py"
PAIRWISE: Final = {"send", "recv", "batch_isend_irecv", "send_object_list", "recv_object_list", "isend", "irecv"}
GROUP_MAKING: Final = {
    "init_process_group", "new_group", "_new_process_group_helper", "_store_based_barrier", "_new_group_with_tag", "split_group",
    "new_subgroups", "new_subgroups_by_enumeration",
}  # fmt: skip
LEAVING: Final = {"destroy_process_group", "_abort_process_group"}

WORKER_LOOP: Final = "_worker_loop"


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Frames by which a place is known. files: ends of their paths. functions: none for all. what: "" for the function's name."""

    files: tuple[str, ...]
    kind: str
    functions: frozenset[str] = frozenset()
    what: str = ""

    def has(self, frame: Frame) -> bool:
        return not self.functions or name_of(frame) in self.functions


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows of torch_frames.json.

    calls: for the innermost frames that are torch's or Python's: the first that fits, from the innermost.
    around: what somebody's own code may run inside of, so that it counts wherever on the stack it is. A name that ends with "/" is a
    folder anywhere in the path.
    waits: calls of Python's own, if nothing else fits; the outermost that fits counts.
    """

    calls: tuple[_Row, ...]
    around: tuple[_Row, ...]
    waits: tuple[_Row, ...]


@cache
def _table() -> _Table:
    return read_table(__name__, "torch_frames.json", _Table)


def name_of(frame: Frame) -> str:
    """The function without class and surrounding functions, which Pythons before 3.11 don't tell."""
    return frame.function.rpartition(".")[2]


def torchs(frame: Frame) -> bool:
    """Whether a frame is torch's own."""
    return bool(TORCHS.search(frame.path))


def pythons(frame: Frame) -> bool:
    """Whether a frame is of Python's standard library."""
    return (
        bool(PYTHONS_OWN.search(frame.path)) or frame.path in WITHOUT_FOLDER or frame.path.startswith(PYTHONS_FOLDERS)
    )


def is_users_code(frame: Frame) -> bool:
    """Whether a frame is neither torch's nor Python's."""
    return not torchs(frame) and not pythons(frame)


def place_of(look: RankLook) -> StackPlace:
    """Tell where the main thread stood."""
    place = _place(look.frames)
    if place.where is PlaceKind.OWN and look.waits_in in ("n_tty_read", "tty_read"):
        return msgspec.structs.replace(place, where=PlaceKind.INPUT)
    return place


def worker_place(look: RankLook) -> StackPlace:
    """Tell where a DataLoader's worker stood. It is forked from its rank, whose frames are below its own."""
    names = [name_of(frame) for frame in look.frames]
    return _place(look.frames[: names.index(WORKER_LOOP)] if WORKER_LOOP in names else look.frames)


def _place(frames: Sequence[Frame]) -> StackPlace:
    if not frames:
        return StackPlace(PlaceKind.UNSEEN)
    path = tuple(filter(is_users_code, frames))
    inner = frames[: frames.index(path[0])] if path else frames
    frame = next((frame for frame in path if "-packages/" not in frame.path), path[0] if path else frames[-1])
    where, what = _call(inner) or _around(frames) or _wait(inner) or (PlaceKind.OWN, "")
    if where is PlaceKind.LOADER and inner is not frames and not any("utils/data/" in frame.path for frame in inner):
        where = PlaceKind.DATA  # Without workers the data set runs in the rank itself.
    return StackPlace(where, what, frame, path)


def _call(inner: Sequence[Frame]) -> tuple[PlaceKind, str] | None:
    for index, frame in enumerate(inner):
        if frame.path.endswith(C10D) and name_of(frame) not in CARRIERS:
            return _of_c10d(inner[index:])
        for row in _table().calls:
            if frame.path.endswith(row.files) and row.has(frame):
                return _of_ddp(inner) if row.what == FORWARD else (PlaceKind[row.kind], row.what or name_of(frame))
    return None


def _of_ddp(inner: Sequence[Frame]) -> tuple[PlaceKind, str] | None:
    """DDP's forward meets the others in what it does itself, in C++ too; the rest is the model's own forward."""
    itself = inner[0].path.endswith("torch/nn/parallel/distributed.py") or any(
        name_of(frame) in ("_sync_buffers", "_find_common_rank") for frame in inner
    )
    return (PlaceKind.STEP, FORWARD) if itself else None


def _of_c10d(inner: Sequence[Frame]) -> tuple[PlaceKind, str]:
    """The outermost that the caller called: `all_gather_object` calls `all_gather`."""
    calls = [name_of(frame) for frame in inner if frame.path.endswith(C10D) and name_of(frame) not in CARRIERS]
    names = [name for name in calls if not name.startswith("_")] or calls
    what = names[-1]
    if GROUP_MAKING & set(calls):
        return PlaceKind.GROUP, what
    if LEAVING & set(calls):
        return PlaceKind.LEAVING, what
    return (PlaceKind.PAIR if what in PAIRWISE else PlaceKind.COLLECTIVE), what


def _around(frames: Sequence[Frame]) -> tuple[PlaceKind, str] | None:
    for frame in frames:
        for row in _table().around:
            for file in row.files:
                fits = file in frame.path if file.endswith("/") else f"/{frame.path}".endswith(f"/{file}")
                if fits and row.has(frame):
                    return PlaceKind[row.kind], ""
    return None


def _wait(inner: Sequence[Frame]) -> tuple[PlaceKind, str] | None:
    for frame in reversed(inner):
        for row in _table().waits:
            if row.has(frame) and frame.path.endswith(row.files):
                return PlaceKind[row.kind], row.what
    return None


def where(place: StackPlace) -> str:
    """ "all_reduce (train.py:40)", "its DataLoader (train.py:31)", "evaluate (eval.py:12)"."""
    line = file_line(place.frame)
    names = {
        PlaceKind.UNSEEN: "a place that can't be seen",
        PlaceKind.LOADER: "its DataLoader",
        PlaceKind.SAVING: "the saving of a checkpoint",
        PlaceKind.LOADING: "the loading of a checkpoint",
        PlaceKind.COMPILING: "torch.compile, or a compiler",
        PlaceKind.LOCK: f"the wait for {place.what}",
        PlaceKind.REMOTE: f"the wait for {place.what}",
        PlaceKind.CHILD: "the wait for another process",
    }
    own = name_of(place.frame) if place.frame else ""
    what = names.get(place.where) or place.what or (own if own != "<module>" else "its script")
    phase = phase_of((frame.path, frame.function) for frame in place.path)
    what = f"{what} in {phase}" if phase else what
    return f"{what} ({line})" if line else what


def file_line(frame: Frame | None) -> str:
    """ "train.py:40"; "" without a frame."""
    return f"{frame.path.rpartition('/')[2]}:{frame.line}" if frame else ""
