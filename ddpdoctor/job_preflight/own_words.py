"""What a rank says of itself: its torch, its settings, its GPU. Nothing is started, and no CUDA context is made for it."""

from __future__ import annotations

import os
import pathlib
import platform
import socket
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from msgspec.structs import replace

from ddpdoctor.base.text import clip, dotted, plural, quoted
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.preflight import CURRENT_DEVICE, PreflightRank
from ddpdoctor.knowledge.cuda_visible_devices import what_cuda_shows
from ddpdoctor.probes.context import Context

BOUND_DEVICE: Final = "init_process_group(device_id=...)"
GIVEN_DEVICE: Final = "device"
NO_REAL_BACKENDS: Final = ("undefined", "fake")
"""Names in torch's list that no job is started with."""
CHOICE: Final = "CUDA_VISIBLE_DEVICES"
MAX_SETTINGS: Final = 200
MAX_VALUE_LENGTH: Final = 300


def describe_rank(rank: int, world_size: int, *, backend: str = "", device: object = None) -> PreflightRank:
    """Write down what this process is as a rank. To be called in the thread that trains: the current GPU is a thread's own.

    Args:
        rank: its own.
        world_size: ranks of the job, as this one has it.
        backend: that its process group is to be made with, where there is none yet.
        device: that it is going to use, as torch takes it; None: not said.
    """
    plain = PreflightRank(
        rank=rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        world_size=world_size,
        backend=backend,
        python=sys.executable or "python",
        python_version=platform.python_version(),
    )
    try:
        return _with_torch(plain, device)
    except Exception as error:  # What is broken here is to be told, and is not ours to end the job for.
        return replace(plain, problem=clip(f"{type(error).__name__}: {error}"))


def _with_torch(plain: PreflightRank, device: object) -> PreflightRank:
    torch: Any = import_module("torch")
    context = Context(sys.executable or "python", "this process", quick=True)
    told = replace(
        plain,
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        nccl=_nccl(torch),
        driver=_driver(context),
        settings=_settings(context),
        backend=_backend(torch) or plain.backend,
    )
    name, source = _device(torch, device)
    no_gpu = _why_no_gpu(torch, name, told.driver, context)
    gpu, scope = ("", "") if no_gpu else _gpu(torch, name, plain.host)
    return replace(told, device=name, device_source=source, no_gpu=no_gpu, gpu=gpu, gpu_scope=scope)


def why_refused(device: object, backend: object) -> str:
    """Say which of these arguments torch takes for none, as a sentence; "" where it takes both, or can't be asked."""
    try:
        torch: Any = import_module("torch")
    except Exception:  # That is told of the rank.
        return ""
    if device is not None:
        try:
            meant = _meant(torch, device)
            if _is_another(meant, device):
                return f'device is one of torch\'s, such as "cuda:0", not {clip(repr(device))}, of which torch makes {meant}'
        except (RuntimeError, TypeError, ValueError, OverflowError):
            return f'device is what torch.device() takes, such as "cuda:0" or "cpu", not {clip(repr(device))}'
        except Exception:  # A torch that is damaged, as above.
            return ""
    known = getattr(getattr(getattr(torch, "distributed", None), "Backend", None), "backend_list", None)
    if backend is None or not known:
        return ""
    words = [part.rpartition(":")[2].strip().lower() for part in backend.split(",")] if isinstance(backend, str) else []
    if words and all(word in known or not word for word in words):
        return ""
    names = ", ".join(name for name in known if name not in NO_REAL_BACKENDS)
    return (
        f"backend is one that torch knows here ({names}), not {clip(repr(backend))}; import first what brings another"
    )


def _nccl(torch: Any) -> str | None:
    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return None
    return dotted(import_module("torch.cuda.nccl").version()[:3])


def _driver(context: Context) -> str | None:
    """The version of the NVIDIA driver that is loaded."""
    from ddpdoctor.probes.driver import kernel_side

    version, _ = kernel_side(context)
    return version if isinstance(version, str) else None


def _settings(context: Context) -> tuple[Setting, ...]:
    from ddpdoctor.knowledge.settings_agreement import concerns_other_nodes
    from ddpdoctor.probes.environment import probe

    environment = probe(context)
    found = [
        replace(setting, value=setting.value[:MAX_VALUE_LENGTH])
        for setting in environment.effective
        if concerns_other_nodes(setting.name)
    ]
    return tuple(sorted(found, key=lambda setting: setting.name)[:MAX_SETTINGS])


def _backend(torch: Any) -> str:
    distributed = torch.distributed
    return str(distributed.get_backend()) if distributed.is_available() and distributed.is_initialized() else ""


def _meant(torch: Any, device: object) -> Any:
    """The device, as torch's own object."""
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        # A number alone is refused where there is no GPU; what it means is known all the same.
        with suppress(RuntimeError):
            return torch.device(device)
        return torch.device("cuda", device)
    return torch.device(device)


def _is_another(meant: Any, device: object) -> bool:
    """Whether torch, which keeps a device's number in one byte, has made another number of it."""
    written = str(device).rpartition(":")[2]
    return (meant.index or 0) < 0 or (written.isdecimal() and str(meant.index) != written)


def _device(torch: Any, device: object) -> tuple[str, str]:
    """The device of this rank, and what says so; "" where nothing does."""
    chosen = None if device is None else _meant(torch, device)
    # "cuda" alone is whatever is current.
    if chosen is not None and (chosen.type != "cuda" or chosen.index is not None):
        return str(chosen), GIVEN_DEVICE
    bound = _bound_device(torch)
    if bound is not None:
        return str(bound), BOUND_DEVICE
    # Asked before CUDA has been started, it would start it.
    if torch.cuda.is_initialized():
        return f"cuda:{torch.cuda.current_device()}", CURRENT_DEVICE
    return (str(chosen), GIVEN_DEVICE) if chosen is not None else ("", "")


def _bound_device(torch: Any) -> Any:
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return getattr(distributed.group.WORLD, "bound_device_id", None)


def _why_no_gpu(torch: Any, device: str, driver: str | None, context: Context) -> str:
    """Why there is no such GPU, as far as that is known without starting CUDA."""
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return ""
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return f"torch {torch.__version__} is built without CUDA"
    at = int(index or 0)
    from ddpdoctor.probes.driver import has_gpu_node

    if torch.cuda.is_initialized():
        count = torch.cuda.device_count()
        return "" if at < count else f"torch sees {plural(count, 'GPU')} there"
    if torch.version.cuda is not None and driver is None and not has_gpu_node(context):
        return "no NVIDIA driver is loaded there, and no GPU is in /dev"
    value = os.environ.get(CHOICE)
    if value is None or at < (shown := what_cuda_shows(value, None)).count:
        return ""
    if not value.strip():
        return f"{CHOICE} is set there and empty, which hides all GPUs"
    count = plural(shown.count, "GPU") if shown.count else "no GPU"
    return f"{CHOICE}={quoted(value)} shows {count}{f': {shown.stopped}' if shown.stopped else ''}"


def _gpu(torch: Any, device: str, host: str) -> tuple[str, str]:
    """What tells the GPU from the others, and within which scope."""
    kind, _, index = device.partition(":")
    if kind != "cuda" or not index.isdecimal():
        return "", ""
    shown = what_cuda_shows(os.environ.get(CHOICE, ""), None).taken
    word = shown[int(index)] if int(index) < len(shown) else index
    if word.startswith(("GPU-", "MIG-")):
        return word, ""
    if torch.cuda.is_initialized() and int(index) < torch.cuda.device_count():
        uuid = getattr(torch.cuda.get_device_properties(int(index)), "uuid", None)
        if uuid is not None:
            return f"GPU-{uuid}", ""
    return word, f"{host} {_cgroup()}"


def _cgroup() -> str:
    """The cgroup, by which a launcher may show each rank other GPUs under the same number."""
    try:
        with pathlib.Path("/proc/self/cgroup").open(encoding="utf-8", errors="replace") as file:
            return clip(file.read(4096), 1000)
    except OSError:
        return ""
