"""What a log itself tells of an illness beyond its page: a title with its figures, and remedies that fit them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from shlex import quote
from typing import Final, NamedTuple

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.wording import listed, plural, ranks_named
from ddpdoctor.checkpoints.model_wrappers import WRITERS, prefix_parts
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.knowledge.frameworks import ACCELERATE
from ddpdoctor.knowledge.launchers import number
from ddpdoctor.logs.analyze.launcher_options import launcher_of_log, with_port
from ddpdoctor.logs.analyze.sightings import said, word

STORE_PORT: Final = 29500
"""Everybody's default."""
LOWEST_PORT: Final = 1024
HIGHEST_PORT: Final = 65535
"""Those below are root's."""
_LISTED: Final = re.compile(r"Process (\d+) has \d")
"""A process that torch lists as a holder of the GPU."""
_MUCH: Final = re.compile(r"Process (\d+) has [\d.]+ GiB")


class Particulars(NamedTuple):
    """In place of the page's title, of its section on fixes, and of that on the reason; empty where that one will do."""

    summary: str = ""
    fixes: tuple[Fix, ...] = ()
    cause: str = ""


def particulars(slug: str, seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Empty where the log tells no more than that there is this illness."""
    of_it = _OF.get(slug)
    return of_it(seen, log) if of_it and seen else Particulars()


def _gcc_too_new(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """The newest gcc that nvcc takes, by its own header, or by torch, which names the first one that it doesn't."""
    newest = word(seen, "newest_gcc")
    if not newest and (below := word(seen, "gcc_below")):
        major, _, minor = below.partition(".")
        newest = major if int(minor) else str(int(major) - 1)
    if not newest:
        return Particulars()
    conda = f"conda install -c conda-forge gxx_linux-64={quote(newest)}"
    return Particulars(
        f"The C++ compiler is newer than nvcc takes, which is gcc {newest} at most",
        (
            Fix(
                f"Install gcc {newest}, or an older one, beside it, and name it; build again in a fresh folder",
                (f"export CC=gcc-{quote(newest)} CXX=g++-{quote(newest)}",),
            ),
            Fix("Without root, conda has it, and sets CC and CXX when its environment is activated anew", (conda,)),
            Fix("Or take a newer CUDA toolkit, and torch's build for that"),
        ),
    )


def _apex_cuda_mismatch(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Apex's setup.py has compared before it built anything."""
    cuda = word(seen, "torch_cuda")
    home = (f"export CUDA_HOME=/usr/local/cuda-{quote(cuda)}",) if cuda else ()
    return Particulars(
        f"Apex wasn't built: nvcc is of another CUDA than torch, which is of {cuda or 'another'}",
        (
            Fix(
                f"Point CUDA_HOME to the toolkit of torch's version{f', {cuda}' if cuda else ''}, and build again", home
            ),
            Fix("Or install the torch that was made for the nvcc that is there"),
            Fix("See which toolkits are here, and which commands build it", ("ddpdoctor explain apex",)),
        ),
        "Apex's setup.py builds its extensions only with a toolkit of torch's own version, down to the minor one. It compares first:"
        " nothing was built.",
    )


def _cuda_home_missing(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Of a header alone it isn't known that there is no nvcc: pip's and conda's packages come one by one."""
    header = word(seen, "header")
    if not header or any(not one.words.get("header") for one in seen):
        return Particulars()
    return Particulars(
        f"The compiler doesn't find {header}, a header of the CUDA toolkit: not all of that is installed"
    )


def _slurm_launch_mismatch(seen: Sequence[SignMatch], log: Log) -> Particulars:
    devices, tasks = word(seen, "devices"), word(seen, "tasks")
    if not devices or not tasks:
        return Particulars()
    return Particulars(
        f"Lightning is to use {plural(int(devices), 'device')} a node, and Slurm starts {plural(int(tasks), 'task')} there",
        (
            Fix(
                "Start a task for each device, by srun's options or the batch script's #SBATCH lines",
                (f"srun --ntasks-per-node={devices} --gpus-per-node={devices} python train.py",),
            ),
            Fix(f"Or use as many devices as there are tasks: Trainer(devices={tasks})"),
        ),
    )


def _port_in_use(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """By the launcher that the log is of; of none that is known the page tells."""
    port = number(word(seen, "port")) or STORE_PORT
    launcher = ACCELERATE if any("Tried to launch" in one.sign for one in seen) else launcher_of_log(log)
    command, beside = with_port(launcher, str(port + 1 if LOWEST_PORT <= port < HIGHEST_PORT else STORE_PORT))
    if not command:
        return Particulars()
    return Particulars(
        fixes=(
            Fix(
                f"End what holds the port, or take another one, the same on all nodes{f' ({beside})' if beside else ''}",
                (command,),
            ),
        )
    )


def _duplicate_gpu(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Slices of one GPU have the same PCI address."""
    if not said(log, "mig-multi-instance"):
        return Particulars()
    return Particulars(
        "Ranks are on MIG slices of one GPU, which NCCL takes for that GPU twice",
        (
            Fix("Run one rank on one slice: mostly NCCL can't connect slices", ("torchrun --nproc-per-node=1 train.py",)),
            Fix("Or have MIG switched off, for ranks on whole GPUs: that ends the slices of everybody on this host", ("sudo nvidia-smi -mig 0",)),
            Fix("Or try a release of NCCL of 2026, which connects slices if it is told to", ("export NCCL_MULTI_RANK_GPU_ENABLE=1",)),
        ),
        "NCCL tells GPUs apart by their PCI addresses, and slices of one GPU have the same.",
    )  # fmt: skip


def _memory_of_ranks(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Where the holders that torch lists are ranks of this very run, by their launcher's word."""
    ranks = {str(one.pid): one.rank for one in log.exited if one.pid and one.rank is not None}
    found = sorted({pid for one in seen for pid in _LISTED.findall(one.line.text) if pid in ranks}, key=int)
    if not found:
        return Particulars()
    own = sorted({rank for pid in found if (rank := ranks[pid]) is not None})
    verb = "is" if len(found) == 1 else "are"
    return Particulars(
        f"{'Process' if len(found) == 1 else 'Processes'} {listed(found, 4)}, which {'holds' if verb == 'is' else 'hold'} that GPU,"
        f" {verb} {ranks_named(own)} of this very run",
        (Fix('Call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before anything else that touches CUDA'),),
    )


def _zombie_gpu_process(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Beside the sign of this illness torchrun has killed ranks of an attempt before."""
    held = sorted({pid for one in seen for pid in _MUCH.findall(one.line.text)}, key=int)
    who = f": {'process' if len(held) == 1 else 'processes'} {listed(held, 4)}" if held else ""
    return Particulars(
        f"Ranks of an attempt before, which torchrun killed, seem to hold the GPU still{who}",
        cause="They didn't end when torchrun told them to, so it killed them, and started new ones while the driver had not taken"
        " their memory back: a thread that hangs in the driver keeps a killed process from ending.",
    )


def _prefixed_by(prefix: str) -> str:
    """Empty for a prefix of a known wrapper, of which the page tells."""
    if all(part in WRITERS for part in prefix_parts(prefix)):
        return ""
    return f"The one state dict is of a module that holds the other one's as its {prefix.removesuffix('.')}: it fits only one built so."


def _ckpt_module_prefix(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Where both lists of keys stand in the log, which prefix it is, and on which side."""
    model, saved = word(seen, "model_prefix"), word(seen, "saved_prefix")
    if saved and not model:
        return Particulars(
            f"The checkpoint's keys begin with {saved}, and the model's are the same without it",
            (
                Fix(
                    "Take the prefix off, once for all",
                    (f"ddpdoctor fix-checkpoint --strip-prefix {quote(saved)} FILE",),
                ),
                Fix(
                    "Or while it is loaded",
                    (f"model.load_state_dict({{k.removeprefix({saved!r}): v for k, v in state.items()}})",),
                ),
            ),
            _prefixed_by(saved),
        )
    if model and not saved:
        path = ["model", *model.removesuffix(".").split(".")]
        inner = (f"{'.'.join(path)}.load_state_dict(state)",) if all(map(str.isidentifier, path)) else ()
        return Particulars(
            f"The model's keys begin with {model}, and the checkpoint's are the same without it",
            (
                Fix("Load it before the model is wrapped, or into the model within the wrapper", inner),
                Fix(
                    "Or put the prefix before the keys while it is loaded",
                    (f"model.load_state_dict({{{model!r} + k: v for k, v in state.items()}})",),
                ),
            ),
            _prefixed_by(model),
        )
    if not model:
        return Particulars()
    return Particulars(
        f"The model's keys begin with {model}, and the same ones of the checkpoint with {saved}",
        (
            Fix(
                "Put the one in the other's place while it is loaded",
                (f"model.load_state_dict({{{model!r} + k.removeprefix({saved!r}): v for k, v in state.items()}})",),
            ),
            Fix("Or wrap the model, where it is loaded, as it was wrapped when it was saved"),
        ),
    )


_OF: Final[dict[str, Callable[[Sequence[SignMatch], Log], Particulars]]] = {
    "ckpt-module-prefix": _ckpt_module_prefix,
    "gcc-too-new": _gcc_too_new,
    "apex-cuda-mismatch": _apex_cuda_mismatch,
    "cuda-home-missing": _cuda_home_missing,
    "slurm-launch-mismatch": _slurm_launch_mismatch,
    "port-in-use": _port_in_use,
    "duplicate-gpu": _duplicate_gpu,
    "zombie-gpu-process": _zombie_gpu_process,
    "missing-set-device": _memory_of_ranks,
    "gpu-memory-held-by-others": _memory_of_ranks,
}
