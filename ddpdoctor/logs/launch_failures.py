"""What launchers write when they can't start a run's processes, or lose a node. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import Final

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import listed
from ddpdoctor.facts.log import ProcessExit

GIVES_UP: Final = (
    "was unable to reliably start one or more daemons",
    "has lost communication with a remote daemon",
    "daemon has unexpectedly failed after launch",
    "does not know how to route a message to the specified daemon",
    "not enough slots available in the system",
    "nodes which are allocated for this job are already filled",
    "was unable to find the specified executable file",
    "was unable to launch the specified application",
    "but not enough node entries",
    "execvp error on file ",
)
"""Open MPI 3 to 5, whose daemons are ORTE's and later PRTE's, and MPICH end the whole run with these words."""
BESIDE_GIVING_UP: Final = ("ORTE_ERROR_LOG: ", "PRTE ERROR: ", "Remote daemon: ")
"""What Open MPI writes before or behind that it gives up: where in it, and which node."""
STARTS_AGAIN: Final = "Worker group FAILED. "
"""By which torchrun's agent tells that an attempt failed, behind which rank it was."""
TERMINATIONS: Final = (1, 2, 10, 12, 15)
"""Signals by which a process is told to end; SIGUSR1 and SIGUSR2 are what schedulers send before a limit, and end who doesn't heed them."""
FAILED: Final = "failed (exitcode: "
"""By which a launcher of torchrun's tells once in each attempt that a rank of its own failed."""
REQUEUED: Final = compile_lazily(r"DUE TO (?:JOB REQUEUE|NODE FAILURE|PREEMPTION)")
"""Slurm's reasons for which it may start a job again, whose output goes to the same file with --open-mode=append."""
MODULE: Final = "module"
"""What clusters load programs by."""
_PROGRAM: Final = r"(?<![\w./+-])([\w./+-]{1,200})"
_QUOTED: Final = rf"[\u2018'`\"]?{_PROGRAM}[\u2019'\"]?"
_NO_PROGRAM: Final = compile_lazily(
    r"(?:^|: )([\w.+-]{1,200}): command not found(?!: )|: command not found: ([\w.+-]{1,200})"
    rf"|\bexecve\(\): {_PROGRAM}: No such file or directory|{_QUOTED}: executable file not found in \$PATH"
    rf"|^\S+: \d+: (?:exec: )?{_PROGRAM}: not found$"
    rf"|^'([\w.:\\/+-]{{1,200}})' is not recognized as an internal or external command\b|(?:^|: )The term '([\w.:\\/+-]{{1,200}})' is not recognized as (?:the|a) name of a "
    r"|Command ['\"](?:\['?)?([\w./+-]{1,200})\b.{0,400} returned non-zero exit status 127\.?$"
    r"|(?:^|: )launcher '([\w.-]{1,60})' not installed\.$"
    rf"|(?:(?:^|[\s/])env:|: failed to (?:run command|execute)|: execution of) {_QUOTED}: No such file or directory"
)
"""Shells, those of Windows among them, slurmstepd, container runtimes, DeepSpeed's launcher, and the tools that start a program for others."""
_RETURN: Final = "$'\\r'"
"""As bash writes a carriage return that it takes for a program."""
_WITH_RETURN: Final = compile_lazily(
    rf"(?:^|: )({re.escape(_RETURN)}): command not found"
    rf"|env: [\u2018'`\"]?{_PROGRAM}(?:\\r|\^M)[\u2019'\"]?: No such file or directory"
    rf"|^\S+: {_PROGRAM}\^M: bad interpreter"
)
"""A line that ends as Windows has it: within a script, and its first one, which names the interpreter."""
_MAY_NOT_RUN: Final = compile_lazily(
    r"(?:^(?:/\S{1,100}/)?(?:ba|da|z|k)?sh: (?:(?:line )?\d+: )?|^\S+: line \d+: |\bexecve\(\): )"
    r"([\w./+-]{1,200}\.(?:sh|bash|py|slurm|sbatch|run)): Permission denied$"
)
"""A script that isn't marked as a program; of a file that can't be written a shell says the same."""
_OF_A_SHELL: Final = compile_lazily(r"command not found|: not found$|' is not recognized as ")
_TRAINS: Final = compile_lazily(
    r"python[\d.]*|torchrun|srun|accelerate|deepspeed|colossalai|horovodrun|mpirun|mpiexec(?:\.\w+)?|prterun|orted|ray|conda|apptainer|singularity|docker|uv"
)
_ATTEMPT: Final = compile_lazily(r"(?:^|[/_-])attempt_(\d+)(?:/|$)")
_GIVES_UP: Final = compile_lazily("|".join(map(re.escape, GIVES_UP)))


def gives_up(text: str) -> bool:
    """Whether a launcher ends the run with that line."""
    return bool(_GIVES_UP.search(text))


def is_of_launching(text: str) -> bool:
    """Whether the line is about the processes' start, before any rank could say something."""
    return gives_up(text) or any(word in text for word in BESIDE_GIVING_UP)


def programs_missing(text: str) -> list[str]:
    """Name the programs that could not be started, since nobody finds them."""
    return [program for _, program in _not_started(text)]


def _not_started(text: str) -> list[tuple[MissingKind, str]]:
    def named_by(pattern: re.Pattern[str]) -> list[str]:
        return [next(filter(None, found.groups())) for found in pattern.finditer(text)]

    return [
        *((MissingKind.of(program), program) for program in named_by(_NO_PROGRAM)),
        *((MissingKind.RETURN, program) for program in named_by(_WITH_RETURN)),
        *((MissingKind.DENIED, program) for program in named_by(_MAY_NOT_RUN)),
    ]


def ends_the_run(text: str) -> bool:
    """Whether a program that isn't found, as that line says, was to train: not where a shell misses a mere helper, as `module` or `nvidia-smi`."""
    programs = _not_started(text)
    helper = MissingKind.FUNCTION, MissingKind.IN_PATH
    may_train = (
        program != _RETURN and (kind not in helper or _TRAINS.fullmatch(program)) for kind, program in programs
    )
    return bool(programs) and (_OF_A_SHELL.search(text) is None or any(may_train))


class MissingKind(Enum):
    """The way in which the shell looks for a program that it doesn't find, as the reason tells it."""

    FUNCTION = "`{}` isn't found: it is a function of login shells"
    OPTION = "the job script runs {} as a program, since the line before it doesn't go on"
    FILE = "there is no file {} on that host, or its first line names an interpreter that isn't there"
    IN_PATH = "PATH doesn't lead to {}"
    RETURN = "the job script has the line ends of Windows, which the shell takes for part of what it is to run ({})"
    DENIED = "{} may not be run: it isn't marked as a program, or its file system allows none"

    @classmethod
    def of(cls, program: str) -> MissingKind:
        """Tell how a program of that name is looked for."""
        if program == MODULE:
            return cls.FUNCTION
        if program.startswith("-"):
            return cls.OPTION
        return cls.FILE if "/" in program else cls.IN_PATH


def why_missing(texts: Iterable[str]) -> dict[MissingKind, tuple[list[str], str]]:
    """Tell of the programs that could not be started, as those lines say, why, of each kind together: which they are, and the reason."""
    kinds: dict[MissingKind, list[str]] = {}
    for kind, program in dict.fromkeys(missing for text in texts for missing in _not_started(text)):
        kinds.setdefault(kind, []).append(program)
    return {kind: (kinds[kind], kind.value.format(listed(kinds[kind]))) for kind in MissingKind if kind in kinds}


def attempt_of_file(name: str) -> int | None:
    """Number the attempt by a file's folder: torchrun gives each one of its own."""
    found = _ATTEMPT.search(name)
    return int(found[1]) if found else None


def ends_attempt(exited: ProcessExit) -> bool:
    """Whether a launcher says by it that an attempt of its ranks failed: it may start them again now."""
    return exited.said_by == "torchrun" and not exited.told_to and FAILED in exited.line.text


def may_start_again(exited: ProcessExit) -> bool:
    """Whether what the ranks have said may be said again by those of another attempt."""
    return ends_attempt(exited) or bool(REQUEUED.search(exited.error))
