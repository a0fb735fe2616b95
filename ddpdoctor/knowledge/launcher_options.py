"""How each launcher is given the port of the job's store, and which launcher a job has. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.log import Log
from ddpdoctor.knowledge.frameworks import ACCELERATE, LIGHTNING, first_raised_in, framework_of
from ddpdoctor.knowledge.launchers import MPI, current_launch

TORCHRUN: Final = "torchrun"
DEEPSPEED: Final = "deepspeed"
MPIRUN: Final = "mpirun"
SRUN: Final = "srun"
SPAWN: Final = "mp.spawn"

PORT: Final = {
    TORCHRUN: "torchrun --master-port {} ...",
    ACCELERATE: "accelerate launch --main_process_port {} ...",
    DEEPSPEED: "deepspeed --master_port {} ...",
    MPIRUN: "mpirun -x MASTER_PORT={} ...",
    SRUN: "MASTER_PORT={} srun ...",
    LIGHTNING: "MASTER_PORT={} python ...",
    SPAWN: "MASTER_PORT={} python ...",
}
"""The command with which each launcher's ranks meet at another port."""
BESIDE: Final = {
    TORCHRUN: "on one node, `torchrun --standalone` takes a free one itself",
    ACCELERATE: "on one node, 0 lets it take a free one itself; its configuration file has it as main_process_port",
    MPIRUN: "Intel MPI's and MPICH's take -genv MASTER_PORT in place of -x",
    LIGHTNING: "on one node and with no MASTER_PORT set, Lightning takes a free one itself",
    SPAWN: "where the script sets MASTER_PORT or an init_method itself, it is to be changed there",
}
ANY: Final = (
    "torchrun takes it as --master-port, accelerate launch as --main_process_port, deepspeed as --master_port, and what python, srun"
    " or mpirun starts as MASTER_PORT"
)
"""Where nothing tells which launcher it is."""

_PROGRAMS: Final = {
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), TORCHRUN),
    **dict.fromkeys(("accelerate", "accelerate-launch", "accelerate.commands.launch"), ACCELERATE),
    **dict.fromkeys(("deepspeed", "deepspeed.launcher.runner"), DEEPSPEED),
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"), MPIRUN),
    "srun": SRUN,
}
_LIES_IN: Final = (
    # accelerate starts ranks by torchrun's own calls, so it comes first.
    (ACCELERATE, ("/accelerate/commands/",)),
    (DEEPSPEED, ("/deepspeed/launcher/",)),
    (TORCHRUN, ("/torch/distributed/run.py", "/torch/distributed/launcher/")),
)
_OF_ACCELERATE: Final = "ACCELERATE_"
"""How the names of the settings begin that it gives its ranks."""


def launcher_of_command(words: Sequence[str]) -> str:
    """Name the launcher that a command starts ranks by: in `srun torchrun train.py` the last one; "" for none."""
    named = [
        _PROGRAMS[name] for word in words[: place_of_script(words)] if (name := word.rpartition("/")[2]) in _PROGRAMS
    ]
    return named[-1] if named else ""


def place_of_script(words: Sequence[str]) -> int:
    """Find the first word of a command that is a file of Python: what follows it is the script's own. Where none is, the command's length."""
    return next((place for place, word in enumerate(words) if word.endswith(".py")), len(words))


def launcher_of_log(log: Log) -> str:
    """Name the launcher of the run that the log is of, as far as its tracebacks and labels tell; "" else."""
    if name := first_raised_in(log, _LIES_IN):
        return name
    if log.launcher not in PORT and framework_of(log) == LIGHTNING:
        return LIGHTNING
    # Where the log's label is Lightning's, it has started the ranks itself.
    return {"lightning": LIGHTNING}.get(log.launcher, log.launcher if log.launcher in PORT else "")


def launcher_of_settings(environment: Environment) -> str:
    """Name the launcher that has left these settings; "" outside of a job."""
    launch = current_launch(environment)
    if launch is None:
        return ""
    if any(setting.name.startswith(_OF_ACCELERATE) for setting in environment.settings):
        return ACCELERATE
    if launch.launcher in ("PMI", *(name for name, *_ in MPI)):
        return MPIRUN
    return {"torchrun": TORCHRUN, "Slurm": SRUN}.get(launch.launcher, "")


def with_port(launcher: str, port: str) -> tuple[str, str]:
    """Word the command that has the ranks meet at that port, and what is to be known beside. The command is "" where
    the launcher isn't known: the words then tell of each."""
    return (PORT[launcher].format(port), BESIDE.get(launcher, "")) if launcher in PORT else ("", ANY)
