"""Command lines: tells an interpreter, a launcher or a helper by its own, and writes one without its secrets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from functools import lru_cache

from ddpdoctor.engine.redaction import legible, redact_text

MAX_COMMAND_LENGTH = 1000
MAX_WORDS_LENGTH = 8 * MAX_COMMAND_LENGTH
"""Characters of a command that are looked through for secrets: what is shown of it may be short for what was taken out."""

_INTERPRETER = re.compile(r"(?:python|pypy|ipython)[\d.]*(?:-dbg|-config|t|d|m)?$")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")

LAUNCHING_MODULES = (
    "torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic", "torchrun", "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli", "accelerate", "deepspeed.launcher.runner", "deepspeed.launcher.launch", "deepspeed",
    "horovod.runner.launch", "horovod.runner", "colossalai.cli",
)  # fmt: skip
LAUNCHING_PROGRAMS = (
    "torchrun", "deepspeed", "horovodrun", "colossalai", "srun", "slurmstepd", "mpirun", "mpiexec", "mpiexec.hydra",
    "orterun", "orted", "prte", "prted", "prterun", "prun", "hydra_pmi_proxy", "hydra_bstrap_proxy", "mpispawn", "jsrun", "aprun",
)  # fmt: skip
_SUBCOMMANDS = {"accelerate": "launch", "accelerate-launch": "", "fabric": "run"}
"""Programs that launch only by this first word."""

_HELPER_SCRIPTS = (
    "from multiprocessing.resource_tracker import",
    "from multiprocessing.semaphore_tracker import",
    "from multiprocessing.forkserver import",
)
_COMPILE_WORKER = "torch/_inductor/compile_worker/"
_TOOLS = (
    "ddpdoctor", "wandb", "wandb-service", "tensorboard", "mlflow", "pip", "py-spy", "nvitop", "gpustat", "jupyter",
    "jupyter-lab", "jupyter-notebook", "ray", "conda", "mamba", "poetry", "pipenv", "pdm", "hatch",
)  # fmt: skip
"""Programs that are run beside a training, or started by it, and have its settings."""
SPAWNED = "from multiprocessing.spawn import spawn_main"
FORK_SERVER = "from multiprocessing.forkserver import"


@lru_cache(maxsize=4096)
def is_interpreter(path: str) -> bool:
    """Whether a program by that name is Python."""
    return bool(_INTERPRETER.search(_name(path.removesuffix(" (deleted)"))))


def names_python(name: str) -> bool:
    """Whether a process by that name (comm) is a Python, or one that torch has named ("pt_main_thread", "pt_data_worker")."""
    return is_interpreter(name) or name.startswith("pt_")


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def program_and_arguments(words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Tell what an interpreter was told to run, and its arguments: ("-m torch.distributed.run", ...), ("train.py", ...),
    ("-c ...", ...); of any other program its own name. ("", ()) where there is none, as with an interactive one."""
    if not words:
        return "", ()
    if not is_interpreter(words[0]):
        return words[0], tuple(words[1:])
    at = 1
    while at < len(words):
        word = words[at]
        # "-um torch.distributed.run" is one option of several letters.
        if found := re.fullmatch(r"(?s)-[bBdEhiIOPqRsSuvVx?]*([mc])(.*)", word):
            rest = words[at + 1 :] if not found[2] else (found[2], *words[at + 1 :])
            return f"-{found[1]} {rest[0] if rest else ''}", tuple(rest[1:])
        if not word.startswith("-") or word == "-":
            return word, tuple(words[at + 1 :])
        at += 2 if word in _WITH_VALUE else 1
    return "", ()


@lru_cache(maxsize=4096)
def is_launcher(words: tuple[str, ...]) -> bool:
    """Whether that command starts ranks, torch's or MPI's."""
    what, arguments = program_and_arguments(words)
    if what.startswith("-m "):
        name = what[3:]
        if name not in LAUNCHING_MODULES:
            return False
    else:
        # slurmstepd calls itself "slurmstepd: [4711.0]", in one word.
        name = _name(what).partition(":")[0]
        if name.endswith(".py"):
            path = what.removesuffix(".py").replace("/", ".")
            return any("." in module and path.endswith(f".{module}") for module in LAUNCHING_MODULES)
    if name in _SUBCOMMANDS:
        first = next((argument for argument in arguments if not argument.startswith("-")), "")
        return _SUBCOMMANDS[name] in ("", first)
    return what.startswith("-m ") or name in LAUNCHING_PROGRAMS


def is_accelerate(words: Sequence[str]) -> bool:
    """Whether that is accelerate's launcher, which starts a single process itself, and gives that no rank."""
    what = program_and_arguments(words)[0]
    return what.startswith("-m accelerate") or _name(what) in ("accelerate", "accelerate-launch")


def is_helper(words: Sequence[str]) -> bool:
    """Whether it is multiprocessing's resource tracker or fork server, or a compile worker of torch's."""
    return any(word.startswith(_HELPER_SCRIPTS) or _COMPILE_WORKER in word for word in words[1:6])


def is_tool(words: Sequence[str]) -> bool:
    """Whether it is something that doesn't train, whatever its settings say."""
    return _package_or_program(words) in _TOOLS


def is_ddpdoctor(words: Sequence[str]) -> bool:
    return _package_or_program(words) == "ddpdoctor"


def _package_or_program(words: Sequence[str]) -> str:
    what = program_and_arguments(words)[0]
    return what[3:].partition(".")[0] if what.startswith("-m ") else _name(what).removesuffix(".py")


def is_fork_server(words: Sequence[str]) -> bool:
    return any(word.startswith(FORK_SERVER) for word in words[1:6])


def is_spawned(words: Sequence[str]) -> bool:
    """Whether it was started by multiprocessing's method "spawn"."""
    return any(word.startswith(SPAWNED) for word in words[1:6])


@lru_cache(maxsize=4096)
def command(words: tuple[str, ...]) -> str:
    """Write a command as a shell would take it, without its secrets, cut."""
    length, shown = 0, []
    for word in words:
        length += len(word) + 1
        if length > MAX_WORDS_LENGTH:
            shown.append("...")
            break
        shown.append(word)
    return redact_text(legible(shlex.join(shown)))[:MAX_COMMAND_LENGTH]


def command_of_others(words: tuple[str, ...]) -> str:
    """Write the program and what it runs, but no arguments: of other users' there may be secrets of any form among them."""
    what, arguments = program_and_arguments(words)
    if not words or not what or what == words[0]:
        # A shell, node or java: the script is the first argument.
        is_path = words[1:] and words[1].startswith(("/", "./")) and not set(words[1]) & set("=@:? ")
        shown = words[: 2 if is_path else 1]
        arguments = words[len(shown) :]
    else:
        shown = (words[0], what.partition(" ")[0]) if what.startswith("-c ") else (words[0], *what.split(" ", 1))
    return command(shown) + (" ..." if arguments or what.startswith("-c ") else "")
