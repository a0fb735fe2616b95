"""Reads the settings: the environment, NCCL's configuration files, and rendezvous files that lie there already."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

import msgspec

from ddpdoctor.base.ownership import who_misleads
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.redaction import REDACTED, is_secret_name, legible, redact_facts, redact_text
from ddpdoctor.facts.environment import Environment, IgnoredLine, Setting, UnreadableFile
from ddpdoctor.knowledge.known_settings import known_settings, one_slip_from, read_by_nothing
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.files import open_regular
from ddpdoctor.probes.mounts import mount_of, read_mounts
from ddpdoctor.probes.waiting import within

FILE_SECONDS = 3.0
"""How long the files may take: the home folder may lie on a server that doesn't answer."""

MAX_FILE_BYTES = 256 * 1024
MAX_VALUE_LENGTH = 32 * 1024
MAX_IGNORED_LINES = 20

PREFIXES = (
    "NCCL_", "OFI_NCCL_", "TORCH_", "TORCHELASTIC_", "PYTORCH_", "PET_", "GLOO_", "TP_", "CUDA_", "CUDNN_", "CUBLAS_",
    "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "OMPI_COMM_WORLD_", "PMI_", "MV2_COMM_WORLD_", "I_MPI_",
    "HSA_", "HIP_", "ROCR_", "ROCM_", "RCCL_", "FI_", "UCX_", "SHARP_COLL_", "NVSHMEM_", "DDPDOCTOR_", "ACCELERATE_",
)  # fmt: skip
NAMES = {
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE", "NNODES", "MASTER_ADDR", "MASTER_PORT",
    "INIT_METHOD", "DIST_INIT_METHOD", "DIST_URL", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMIX_RANK",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "TMPDIR",
    "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_DISABLE_REQUIRE", "GPU_DEVICE_ORDINAL",
    "MAX_JOBS", "TRITON_CACHE_DIR", "XDG_CACHE_HOME", "CC", "CXX",
    "JOB_COMPLETION_INDEX", "JOBSET_NAME", "KUBERNETES_SERVICE_HOST",
    "SLURM_JOB_PARTITION", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_PROCID",
    "SLURM_LOCALID", "SLURM_NODEID",
    "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES", "SLURM_NODELIST",
    "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST", "SLURMD_NODENAME", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE",
    "SLURM_CPUS_PER_GPU", "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_ON_NODE",
    "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPU_BIND", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_GPU", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST", "SLURM_MPI_TYPE", "SLURM_PTY_PORT",
    "SLURM_RESTART_COUNT",
}  # fmt: skip


def probe(context: Context) -> Environment:
    own = [Setting(name, value) for name, value in context.environ.items() if matters(name)]
    files = within(FILE_SECONDS, lambda: _read_files(context))
    read = _Files() if isinstance(files, Unknown) else files
    settings = sorted(for_facts(own), key=lambda setting: setting.name) + list(for_facts(read.settings))
    found = within(FILE_SECONDS, lambda: _rendezvous_files(context, [setting.value for setting in own]))
    return Environment(
        settings=tuple(settings),
        configuration_files=files if isinstance(files, Unknown) else files.paths,
        unreadable_files=tuple(read.unreadable),
        ignored_lines=tuple(read.ignored[:MAX_IGNORED_LINES]),
        undecodable=tuple(
            sorted(
                legible(setting.name)
                for setting in own
                if legible(setting.name + setting.value) != setting.name + setting.value
            )
        ),
        file_init=found,
    )


def matters(name: str) -> bool:
    """Whether a variable of that name has a say in training."""
    return (
        name.startswith(PREFIXES)
        or name in NAMES
        or name in known_settings()
        or name in read_by_nothing()
        or bool(one_slip_from(name))
    )


def for_facts(settings: Iterable[Setting]) -> Iterable[Setting]:
    """Cut, legible and without their secrets."""
    for setting in settings:
        name = setting.name
        # The name, or what follows its prefix, speaks of a secret. The known settings are known to hold none.
        is_secret = name not in known_settings() and (is_secret_name(name) or is_secret_name(name.partition("_")[2]))
        value = REDACTED if setting.value and is_secret else legible(setting.value[:MAX_VALUE_LENGTH])
        yield redact_facts(Setting(legible(name), value, setting.origin))


class _Files(msgspec.Struct):
    paths: tuple[str, ...] = ()
    settings: list[Setting] = []
    unreadable: list[UnreadableFile] = []
    ignored: list[IgnoredLine] = []


def _read_files(context: Context) -> _Files:
    """NCCL's files in its own order: the first to set a name wins, and the environment came before them all."""
    found = _Files()
    named = context.environ.get("NCCL_CONF_FILE", "")
    home = home_of(os.getuid())
    for path in filter(None, [named or (home and f"{home}/.nccl.conf"), "/etc/nccl.conf"]):
        content = _content(context, path)
        shown = legible(path)
        if isinstance(content, bytes):
            found.paths = (*found.paths, shown)
            _parse(shown, content, found)
        elif content.reason != "No such file or directory" or path == named:
            found.unreadable.append(UnreadableFile(shown, content.reason))
    return found


def home_of(uid: int) -> str:
    """The user's home folder by the user database, which NCCL asks and not $HOME; "" where it knows none."""
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return ""


def _content(context: Context, path: str) -> bytes | Unknown:
    """The file's bytes; only so many, and never of something that blocks, like a named pipe."""
    try:
        place = context.path(path) if path.startswith("/") else context.path(f"{os.getcwd()}/{path}")  # noqa: PTH109
        if path == "/dev/null":
            return b""
        descriptor = open_regular(place)
    except (OSError, ValueError) as error:
        return Unknown(getattr(error, "strerror", None) or str(error))
    try:
        if foothold := who_misleads(descriptor, place):
            return Unknown(f"not for everybody's eyes, and {foothold.words}")
        content = os.read(descriptor, MAX_FILE_BYTES + 1)
    except OSError as error:
        return Unknown(error.strerror or str(error))
    finally:
        os.close(descriptor)
    if len(content) > MAX_FILE_BYTES:
        return Unknown(f"larger than {MAX_FILE_BYTES // 1024} KiB, so not a list of settings")
    if b"\0" in content:
        return Unknown("not a text file")
    return content


def _parse(path: str, content: bytes, found: _Files) -> None:
    """Read a file as NCCL does: "#" only in the first column, everything up to "=" is the name, all behind it the value."""
    for number, raw in enumerate(content.split(b"\n"), 1):
        line = raw.decode("utf-8", "replace")
        if line.startswith("#") or not line.strip():
            continue
        name, equals, value = line.partition("=")
        why = _why_ignored(name, equals, value)
        if why:
            found.ignored.append(IgnoredLine(path, number, redact_text(line.strip()[:200]), why))
        if equals and matters(name) and all(setting.name != name for setting in found.settings):
            found.settings.append(Setting(name, value, path))


def _why_ignored(name: str, equals: str, value: str) -> str:
    if not equals:
        return "no ="
    if name != name.strip() or " " in name.strip():
        return "name with spaces or export"
    if value.endswith("\r"):
        return "Windows line end"
    if value[:1] in ("'", '"'):
        return "quotes are part of the value"
    if name.startswith(("TORCH_", "GLOO_", "CUDA_", "OMP_")):
        return "set too late for its reader"
    return ""


def _rendezvous_files(context: Context, values: Iterable[str]) -> tuple[tuple[str, int, str], ...]:
    """Find the files that file:// addresses among the values name and that are there."""
    mounts = read_mounts(context)
    found = []
    for path in sorted({path for value in values for path in _file_urls(value)}):
        try:
            state = context.path(path).stat()
        except (OSError, ValueError):
            continue
        kind = "" if isinstance(mounts, Unknown) else mount_of(path, mounts).kind
        found.append((legible(path), state.st_size, kind))
    return tuple(found)


def _file_urls(value: str) -> Iterable[str]:
    for url in re.findall(r"file://[^\s,;'\"]+", value):
        try:
            path = unquote(urlsplit(url).path)
        except ValueError:
            continue
        if path.startswith("/"):
            yield path
