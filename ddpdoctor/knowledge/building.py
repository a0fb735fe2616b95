"""Needs of who builds CUDA extensions: whose rule rejects which nvcc and compiler, and the commands that help.

Pure: facts in, words and commands out.
"""

from __future__ import annotations

import re
import shlex

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.text import dotted
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.cgroup import Cgroup
from ddpdoctor.facts.driver import Driver
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.machine import Machine
from ddpdoctor.facts.packages import Packages
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.facts.toolchain import Compiler, Nvcc, Toolchain
from ddpdoctor.facts.torch import Torch
from ddpdoctor.facts.visible import visible_gpus
from ddpdoctor.knowledge.installing import capabilities, driver_cuda, replacing
from ddpdoctor.knowledge.privileges import NEEDS_ROOT
from ddpdoctor.knowledge.python_commands import in_target_python, pip_install
from ddpdoctor.knowledge.wheels import (
    ARCHITECTURE,
    ARCHITECTURES,
    CUDA_TAGS,
    cuda_tag,
    index_url,
    numbers,
    release,
    runs_here,
    runs_on,
)

APEX_REPOSITORY = "https://github.com/NVIDIA/apex"

GCC_MAX = {
    "11.0": 9, "11.1": 10, "11.2": 10, "11.3": 10, "11.4": 11, "11.5": 11, "11.6": 11, "11.7": 11, "11.8": 11,
    "12.0": 12, "12.1": 12, "12.2": 12, "12.3": 13, "12.4": 13, "12.5": 13, "12.6": 13, "12.7": 13, "12.8": 14,
    "12.9": 14, "13.0": 15,
}  # fmt: skip
"""Newest major gcc per nvcc: torch 2.13's own table (torch.utils.cpp_extension.CUDA_GCC_VERSIONS, whose upper bounds are
exclusive); 11.8, which it lacks, as 11.7. The header in the toolkit itself goes before it."""

APT, DNF = ("debian", "ubuntu", "linuxmint", "pop"), ("rhel", "centos", "rocky", "almalinux", "ol")
"""Distributions (ID in /etc/os-release) with packages gcc-13 and gcc-toolset-13."""

MEMORY_PER_COMPILER = 3 * 1024**3
"""Bytes that one nvcc at work on a kernel for a few architectures takes at its peak: a rule of thumb."""


def minor_only(version: str) -> str:
    """ "12.8" of "12.8.1"."""
    return ".".join(version.split(".")[:2])


def rejects(consumer: str, nvcc: str, torch_cuda: str, *, skips_check: bool = False) -> str:
    """Why that consumer won't build with this nvcc for a torch of that CUDA, or "".

    torch.utils.cpp_extension rejects another major with a RuntimeError and only warns of another minor; DeepSpeed (0.19)
    takes any pair within 10, 11 or 12 and only equals elsewhere, unless DS_SKIP_CUDA_CHECK=1; Apex's setup.py takes
    nothing but equals.
    """
    torch_cuda = minor_only(torch_cuda)
    if nvcc == torch_cuda:
        return ""
    if numbers(nvcc)[:1] != numbers(torch_cuda)[:1]:
        return "torch's build tools refuse an nvcc of another major version"
    if consumer == "apex":
        return "Apex's setup.py takes no nvcc but the one of exactly torch's CUDA version"
    if consumer == "deepspeed" and not skips_check and nvcc.partition(".")[0] not in ("10", "11", "12"):
        return "DeepSpeed takes no other minor version of this CUDA"
    return ""


def gcc_limit(nvcc: Nvcc) -> int | None:
    """The newest major gcc for this nvcc, None for a toolkit that we don't know."""
    return nvcc.gcc_max if nvcc.gcc_max is not None else GCC_MAX.get(nvcc.version)


def too_new(compiler: Maybe[Compiler | None], limit: int) -> Compiler | None:
    """The compiler, if it is a gcc above the limit."""
    if compiler is None or isinstance(compiler, Unknown) or compiler.kind != "gcc":
        return None
    major = compiler.version.partition(".")[0]
    return compiler if major.isdecimal() and int(major) > limit else None


def limit_exceeded(toolchain: Toolchain, nvcc: Nvcc) -> int | None:
    """The newest major gcc for this nvcc, where a compiler that would be used here is newer."""
    limit = gcc_limit(nvcc)
    compilers = (toolchain.compiler, toolchain.nvcc_compiler)
    return limit if limit and any(too_new(compiler, limit) for compiler in compilers) else None


def home_of(nvcc: Nvcc) -> str:
    """The CUDA_HOME that makes torch take this nvcc."""
    return nvcc.path.removesuffix("/bin/nvcc")


def matching_nvcc(toolchain: Toolchain, torch_cuda: str) -> Nvcc | None:
    """A whole nvcc of exactly that CUDA version: torch's own choice if it is one, else another on this host."""
    wanted = minor_only(torch_cuda)
    return next((nvcc for nvcc in toolchain.nvccs if nvcc.version == wanted and nvcc.whole), None)


def toolkit_fixes(toolchain: Toolchain, target_python: TargetPython, torch_cuda: str) -> tuple[Fix, ...]:
    """Advise how to come to an nvcc of torch's CUDA version without root: one that is there already, else one to install."""
    wanted = minor_only(torch_cuda)
    prefix, release = shlex.quote(target_python.prefix), shlex.quote(wanted)
    if nvcc := matching_nvcc(toolchain, torch_cuda):
        home = home_of(nvcc)
        text = f"Use the CUDA {wanted} toolkit that is here already"
        commands = [f"export CUDA_HOME={shlex.quote(home)} PATH={shlex.quote(home + '/bin')}:$PATH"]
    elif target_python.environment_kind == "conda":
        text = f"Install the CUDA {wanted} toolkit into your conda environment"
        install = f"conda install -p {prefix} -c nvidia/label/cuda-{release}.0 cuda-toolkit"
        commands = [install, f"export CUDA_HOME={prefix}"]
    else:
        text = (
            f"Install the CUDA {wanted} toolkit into your home folder, which needs no root; download the runfile first: "
            f"https://developer.nvidia.com/cuda-{wanted.replace('.', '-')}-0-download-archive"
        )
        commands = [
            f"sh cuda_{release}.*_linux*.run --silent --toolkit --toolkitpath=$HOME/cuda-{release}",
            f"export CUDA_HOME=$HOME/cuda-{release} PATH=$HOME/cuda-{release}/bin:$PATH",
        ]
    return (Fix(text, tuple(commands)),)


def wheel_fix(
    target_python: TargetPython,
    nvcc: str,
    torch: Torch,
    driver: Maybe[Driver],
    gpus: Maybe[Gpus],
    machine: Maybe[Machine],
    packages: Maybe[Packages],
) -> Fix | None:
    """Advise to take the torch that was made with this nvcc's CUDA instead; None where there is none, or it wouldn't run on this
    driver and these GPUs."""
    tag = cuda_tag(nvcc)
    releases = sorted(version for version, tags in CUDA_TAGS.items() if tag in tags)
    jetson = not isinstance(machine, Unknown) and machine.jetson
    if not releases or jetson:
        return None
    # An index that the table lacks is taken for the one before it.
    made_for = ARCHITECTURES[max((known for known in ARCHITECTURES if known <= tag), default="cu118")]
    if not runs_here(tag, driver_cuda(driver, machine), capabilities(gpus), made_for):
        return None
    parsed = release(torch.version)
    if parsed and (parsed.major, parsed.minor) in releases:
        wanted, text = f"torch=={parsed.public}", f"the build of torch {parsed.public} for CUDA {nvcc}"
    elif releases[-1] == max(CUDA_TAGS):
        wanted, text = "torch", f"the newest torch, whose wheels for CUDA {nvcc} begin with {dotted(releases[0])}"
    else:
        last = dotted(releases[-1])
        wanted, text = f"torch=={last}.*", f"torch {last}, the last with wheels for CUDA {nvcc}"
    names = replacing(packages, wanted)
    return Fix(f"Or change torch: install {text}", (pip_install(target_python, *names, "--index-url", index_url(tag)),))


def gcc_fixes(limit: int, machine: Maybe[Machine]) -> tuple[Fix, ...]:
    """Advise how to come to a gcc that nvcc takes, with this host's own package manager or without root."""
    os_id = "" if isinstance(machine, Unknown) or isinstance(machine.os_id, Unknown) else machine.os_id
    architecture = "x86_64" if isinstance(machine, Unknown) else machine.architecture
    install: tuple[str, ...] = ()
    if os_id in APT:
        install = (f"sudo apt-get install gcc-{limit} g++-{limit}", f"export CC=gcc-{limit} CXX=g++-{limit}")
    elif os_id in DNF:
        install = (f"sudo dnf install gcc-toolset-{limit}", f"source /opt/rh/gcc-toolset-{limit}/enable")
    conda = shlex.quote(f"gxx_linux-{'64' if architecture == 'x86_64' else architecture}={limit}")
    return (
        Fix(
            f"Without root, install gcc {limit} from conda-forge; activating the environment again sets CC and CXX",
            (f"conda install -c conda-forge {conda}",),
        ),
        Fix(f"Or install gcc {limit} beside the other {NEEDS_ROOT}, and name it in the shell that builds", install),
    )


def architecture_list(gpus: Maybe[Gpus], environment: Maybe[Environment]) -> str | None:
    """TORCH_CUDA_ARCH_LIST for the GPUs that training sees ("8.0;9.0"), None where they aren't known."""
    if isinstance(gpus, Unknown):
        return None
    seen = [visible_gpu.gpu.compute_capability for visible_gpu in visible_gpus(gpus, environment)]
    found = {capability for capability in seen if not isinstance(capability, Unknown)}
    return ";".join(f"{major}.{minor}" for major, minor in sorted(found)) or None


def jobs(machine: Maybe[Machine], cgroup: Maybe[Cgroup]) -> tuple[int, str] | None:
    """MAX_JOBS by memory and cores, and the reason; None where neither is known."""
    limits: list[Maybe[float | None]] = []
    room = []
    if not isinstance(machine, Unknown):
        limits.append(machine.usable_cores)
        room += [machine.memory_available] if isinstance(machine.memory_available, int) else []
    if not isinstance(cgroup, Unknown):
        limits += [cgroup.cpu_limit, cgroup.cpuset_cores]
        if isinstance(cgroup.memory_limit, int):
            used = cgroup.memory_used if isinstance(cgroup.memory_used, int) else 0
            cache = cgroup.memory_reclaimable if isinstance(cgroup.memory_reclaimable, int) else 0
            room.append(cgroup.memory_limit - max(0, used - cache))
    cores = [count for count in limits if isinstance(count, (int, float))]
    if not cores or not room:
        return None
    by_memory, by_cores = min(room) // MEMORY_PER_COMPILER, int(min(cores))
    count = max(1, min(by_memory, by_cores, 32))
    return count, f"{by_cores} cores, {min(room) / 1024**3:.0f} GiB free, and about 3 GiB for each compiler"


def serves(architecture: str, capability: tuple[int, int]) -> bool:
    """Whether code for an architecture runs on a GPU of that compute capability; True of one that isn't known."""
    return not ARCHITECTURE.fullmatch(architecture) or runs_on(capability, (architecture,))


def readable(symbol: str) -> str:
    """ "c10::Error::Error" for "_ZN3c105ErrorC2ENS_...": the name alone, without arguments; the symbol if it can't."""
    rest = re.sub(r"^_Z(?:T[VTISWH])?N[rVKRO]*", "", symbol)
    names: list[str] = []
    while found := re.match(r"(\d+)", rest):
        length = int(found[1])
        names.append(rest[found.end() : found.end() + length])
        rest = rest[found.end() + length :]
    if names and re.match(r"[CD]\d", rest):
        names.append(("~" if rest[0] == "D" else "") + names[-1])
    return "::".join(names) or symbol


def old_strings(symbols: tuple[str, ...]) -> bool:
    """Whether one names std::string by its old ABI ("Ss"), which torch wheels before 2.6 used."""
    return any(re.search(r"^[^E]*E.*Ss|[PRK]Ss", symbol) and "__cxx11" not in symbol for symbol in symbols)


def build_commands(
    toolchain: Toolchain,
    target_python: TargetPython,
    home: str,
    architectures: str | None = None,
    count: int | None = None,
) -> tuple[str, ...]:
    """Write the commands that build Apex for this target Python with the toolkit in `home`, from the source tree at hand or a fresh
    clone."""
    folder = toolchain.apex_source
    settings = []
    if target_python.environment_kind in ("venv", "conda"):  # Its ninja is on PATH only while it is activated.
        settings.append(f"PATH={shlex.quote(target_python.prefix + '/bin')}:$PATH")
    settings.append(f"CUDA_HOME={shlex.quote(home)}")
    settings += [f"TORCH_CUDA_ARCH_LIST={shlex.quote(architectures)}"] if architectures else []
    settings += [f"MAX_JOBS={count}"] if count else []
    options = ["-v", "--no-build-isolation", "--no-cache-dir"]
    if folder and toolchain.apex_source_style == "options":
        pip = target_python.pip_version if isinstance(target_python.pip_version, str) else "24"
        for flag in ("--cpp_ext", "--cuda_ext"):
            old = [int(part) for part in pip.split(".")[:2] if part.isdecimal()] < [23, 1]
            options += [f"--global-option={flag}"] if old else ["--config-settings", f"--build-option={flag}"]
    else:
        settings += ["APEX_CPP_EXT=1", "APEX_CUDA_EXT=1"]
    return (
        pip_install(target_python, "packaging", "setuptools", "wheel", "ninja"),
        f"cd {shlex.quote(folder)}" if folder else f"git clone {APEX_REPOSITORY} && cd apex",
        " ".join([*settings, pip_install(target_python, *options, ".")]),
        in_target_python(target_python, "-c", "import torch, amp_C, apex_C, fused_layer_norm_cuda, syncbn"),
    )
