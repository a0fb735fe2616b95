"""Tells by a stack where in a training a rank stands. Pure.

Names of functions and files are those of torch 2.0 to 2.13. py-spy leaves out what is written in C, so that `.item()`,
`time.sleep` and `input()` show themselves as the line that calls them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Final

import msgspec

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

    def same_as(self, other: StackPlace) -> bool:
        """Whether both mean the same call. In code of its own a rank is in the same place only at the same line."""
        return self.where is other.where and self.what == other.what and self.path == other.path


PYTHONS_OWN: Final = re.compile(
    r"^<(?!stdin>|string>|ipython-input)|(?:^|/)lib(?:64)?/python\d[\d.]*t?/(?!site-packages/|dist-packages/)"
)
TORCHS: Final = re.compile(r"(?:^|/)torch/(?:_|\w+\.py$|\w+/)")
WITHOUT_FOLDER: Final = frozenset({
    "threading.py", "queue.py", "selectors.py", "subprocess.py", "socket.py", "ssl.py", "contextlib.py", "bdb.py", "cmd.py", "pdb.py",
    "code.py", "socketserver.py", "runpy.py",
})  # fmt: skip
"""Python's own files that py-spy may name without their folder."""
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

RULES: Final = (
    # (end of the file's path, functions or none for all, where, what or "" for the function)
    ("torch/distributed/rendezvous.py", None, PlaceKind.GROUP, "init_process_group"),
    ("torch/distributed/elastic/utils/store.py", None, PlaceKind.GROUP, "a barrier over the store"),
    ("torch/distributed/utils.py", {"_verify_param_shape_across_processes", "_sync_module_states", "_sync_params_and_buffers"}, PlaceKind.BUILDING, "DDP()"),
    ("torch/nn/parallel/distributed.py", {"__init__", "_ddp_init_helper"}, PlaceKind.BUILDING, "DDP()"),
    ("torch/nn/parallel/distributed.py", {"forward", "_pre_forward", "_sync_buffers", "_sync_module_buffers", "_default_broadcast_coalesced",
     "_distributed_broadcast_coalesced", "_post_forward", "_find_common_rank", "_check_global_requires_backward_grad_sync"}, PlaceKind.STEP, FORWARD),
    ("torch/distributed/algorithms/join.py", {"__exit__", "_get_num_nonjoined_procs", "_notify_procs_to_terminate"}, PlaceKind.COLLECTIVE, "join()"),
    ("torch/autograd/graph.py", {"_engine_run_backward"}, PlaceKind.STEP, "backward"),
    ("torch/autograd/__init__.py", {"backward", "grad"}, PlaceKind.STEP, "backward"),
    ("torch/distributed/_functional_collectives.py", None, PlaceKind.COLLECTIVE, ""),
    ("torch/distributed/nn/functional.py", None, PlaceKind.COLLECTIVE, ""),
    ("torch/distributed/fsdp/_runtime_utils.py", {"_reduce_grad", "_unshard", "_post_backward_hook", "_wait_for_computation_stream"}, PlaceKind.STEP, "FSDP's step"),
    ("torch/distributed/fsdp/_flat_param.py", {"_all_gather_flat_param"}, PlaceKind.STEP, "FSDP's step"),
    ("torch/cuda/__init__.py", {"synchronize"}, PlaceKind.DEVICE, "torch.cuda.synchronize"),
    ("torch/cuda/streams.py", {"synchronize", "wait"}, PlaceKind.DEVICE, "synchronize"),
)  # fmt: skip
"""For the innermost frames that are torch's or Python's: the first that fits, from the innermost."""

AROUND: Final = (
    ("torch/utils/data/dataloader.py", {"_try_get_data", "_get_data", "_shutdown_workers", "_next_data", "_try_put_index"}, PlaceKind.LOADER),
    ("torch/serialization.py", {"save", "_save", "_legacy_save"}, PlaceKind.SAVING),
    ("torch/serialization.py", {"load", "_load", "_legacy_load"}, PlaceKind.LOADING),
    ("torch/distributed/checkpoint/state_dict_saver.py", None, PlaceKind.SAVING),
    ("torch/distributed/checkpoint/state_dict_loader.py", None, PlaceKind.LOADING),
    ("safetensors/torch.py", {"save_file", "save_model"}, PlaceKind.SAVING),
    ("safetensors/torch.py", {"load_file", "load_model"}, PlaceKind.LOADING),
    ("torch/_inductor/compile_fx.py", {"compile_fx", "compile_fx_inner", "_compile_fx_inner", "fx_codegen_and_compile"}, PlaceKind.COMPILING),
    ("torch/_inductor/async_compile.py", None, PlaceKind.COMPILING),
    ("torch/_dynamo/convert_frame.py", None, PlaceKind.COMPILING),
    ("torch/utils/cpp_extension.py", {"load", "_jit_compile", "_run_ninja_build"}, PlaceKind.COMPILING),
    ("pdb.py", {"interaction", "cmdloop", "_cmdloop"}, PlaceKind.INPUT),
    ("bdb.py", {"trace_dispatch", "dispatch_line"}, PlaceKind.INPUT),
    ("code.py", {"interact", "raw_input"}, PlaceKind.INPUT),
    ("IPython/terminal/embed.py", None, PlaceKind.INPUT),
    ("debugpy/", {"breakpoint", "wait_for_client"}, PlaceKind.INPUT),
)  # fmt: skip
"""What somebody's own code may run inside of, so that it counts wherever on the stack it is."""

WEAK: Final = (
    ("_shutdown", ("threading.py",), PlaceKind.LEAVING, "the end of Python, for its threads"),
    ("_exit_function", ("multiprocessing/util.py",), PlaceKind.LEAVING, "the end of Python, for its processes"),
    ("_python_exit", ("concurrent/futures/thread.py", "concurrent/futures/process.py"), PlaceKind.LEAVING, "the end of Python"),
    ("join", ("multiprocessing/process.py", "torch/multiprocessing/spawn.py"), PlaceKind.CHILD, "join"),
    ("wait", ("subprocess.py", "multiprocessing/popen_fork.py"), PlaceKind.CHILD, "wait"),
    ("communicate", ("subprocess.py",), PlaceKind.CHILD, "communicate"),
    ("put", ("queue.py", "multiprocessing/queues.py"), PlaceKind.LOCK, "a full queue"),
    ("get", ("queue.py", "multiprocessing/queues.py"), PlaceKind.LOCK, "an empty queue"),
    ("acquire", ("importlib._bootstrap>", "importlib/_bootstrap.py"), PlaceKind.LOCK, "the import lock"),
    ("_lock_unlock_module", ("importlib._bootstrap>",), PlaceKind.LOCK, "the import lock"),
    ("acquire", ("logging/__init__.py",), PlaceKind.LOCK, "a lock of logging"),
    ("join", ("threading.py",), PlaceKind.LOCK, "the end of a thread"),
    ("wait", ("threading.py",), PlaceKind.LOCK, "another thread"),
    ("result", ("concurrent/futures/_base.py",), PlaceKind.LOCK, "the result of a thread or process"),
    ("readinto", ("socket.py",), PlaceKind.REMOTE, "data from a socket"),
    ("read", ("ssl.py",), PlaceKind.REMOTE, "data from a socket"),
    ("recv", ("ssl.py",), PlaceKind.REMOTE, "data from a socket"),
    ("create_connection", ("socket.py",), PlaceKind.REMOTE, "a connection"),
    ("getaddrinfo", ("socket.py",), PlaceKind.REMOTE, "the name of a host"),
)  # fmt: skip
"""(function, files, where, for what) of Python's own, if nothing else fits; the outermost that fits counts."""

WORKER_LOOP: Final = "_worker_loop"


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
    path = tuple(frame for frame in frames if not torchs(frame) and not pythons(frame))
    inner = frames[: frames.index(path[0])] if path else frames
    frame = next((frame for frame in path if "-packages/" not in frame.path), path[0] if path else frames[-1])
    where, what = _meeting(inner) or _around(frames) or _weak(inner) or (PlaceKind.OWN, "")
    if where is PlaceKind.LOADER and inner is not frames and not any("utils/data/" in frame.path for frame in inner):
        where = PlaceKind.DATA  # Without workers the data set runs in the rank itself.
    return StackPlace(where, what, frame, path)


def _meeting(inner: Sequence[Frame]) -> tuple[PlaceKind, str] | None:
    for index, frame in enumerate(inner):
        if frame.path.endswith(C10D) and name_of(frame) not in CARRIERS:
            return _of_c10d(inner[index:])
        for path, functions, where, what in RULES:
            if frame.path.endswith(path) and (functions is None or name_of(frame) in functions):
                return _of_ddp(inner) if what == FORWARD else (where, what or name_of(frame))
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
        for path, functions, where in AROUND:
            fits = path in frame.path if path.endswith("/") else (f"/{frame.path}").endswith(f"/{path}")
            if fits and (functions is None or name_of(frame) in functions):
                return where, ""
    return None


def _weak(inner: Sequence[Frame]) -> tuple[PlaceKind, str] | None:
    for frame in reversed(inner):
        for function, paths, where, what in WEAK:
            if name_of(frame) == function and frame.path.endswith(paths):
                return where, what
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
    own = place.frame.function.rpartition(".")[2] if place.frame else ""
    what = names.get(place.where) or place.what or (own if own != "<module>" else "its script")
    phase = phase_of((frame.path, frame.function) for frame in place.path)
    what = f"{what} in {phase}" if phase else what
    return f"{what} ({line})" if line else what


def file_line(frame: Frame | None) -> str:
    """ "train.py:40"; "" without a frame."""
    return f"{frame.path.rpartition('/')[2]}:{frame.line}" if frame else ""
