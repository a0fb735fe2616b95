"""What an exception is worth by its kind: one that a launcher raises for its ranks, one that reports another rank's end, an ordinary
mistake in a script. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from sys import stdlib_module_names
from typing import Final

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.facts.log import LogFrame, LoggedException, LogLine
from ddpdoctor.knowledge.loader_messages import loader_fault
from ddpdoctor.knowledge.torch_frames import PYTHONS_FOLDERS, WITHOUT_FOLDER
from ddpdoctor.logs.launch_failures import programs_missing

OF_LAUNCHERS: Final = {
    "ChildFailedError", "ProcessRaisedException", "ProcessExitedException", "CalledProcessError",
    "RemoteTraceback", "RendezvousGracefulExitError", "WorkerGroupError",
    "WorkerTrainingFailedError", "UnhealthyNodeException", "TerminalWorkerGroupFailure", "NoRestartRequested",
}  # fmt: skip
"""Raised in the launcher, or around a whole script, for what happened elsewhere."""

_LAUNCHES: Final = compile_lazily(
    r"/(?:bin|Scripts)/(?:torchrun|accelerate|accelerate-launch|deepspeed)(?:\.exe(?:/__main__\.py)?|-script\.py)?$"
    r"|torch/distributed/(?:run|launch)\.py$"
    r"|torch/distributed/launcher/|accelerate/commands/|deepspeed/launcher/"
)
"""A script or a module of theirs."""
_SPAWN: Final = "torch/multiprocessing/spawn.py"

_BUILDERS: Final = r"ninja|nvcc|hipcc|cmake|make|[gc]\+\+|gcc|cc|clang|clang\+\+"
_SURVEYORS: Final = r"nvidia-smi|rocm-smi|hostname|ldconfig|which|where"
_TOOLS: Final = rf"{_BUILDERS}|{_SURVEYORS}|git|pip|ffmpeg|curl|wget|tar|unzip|cp|mv|rm|mkdir"
_FAILED: Final = r"""Command ['"](?:\[['"])?(?:\S*[/\\])?"""
"""What stands before the program in subprocess's words, with and without a shell."""
OF_A_TOOL: Final = rf"{_FAILED}(?:{_TOOLS})(?![\w.+-])"
"""The start of what CalledProcessError says of a program that is no rank: its failure is its caller's own."""
_OF_THE_MACHINE: Final = compile_lazily(rf"{_FAILED}(?:{_BUILDERS}|{_SURVEYORS})(?![\w.+-])")
"""Of those, the ones whose failure no line of the script explains."""

OF_A_CHILD: Final = (
    rf"(?!(?:\S{{0,200}}/)?(?:{_TOOLS})(?![\w.+-])).{{1,300}}"
    r" exited with (?:(?:a )?(?:non-zero|return|exit|error) )+(?:status|code):? (?P<code>-?[1-9]\d{0,3})\b"
)
"""How a script that starts others tells of one that failed."""

_HOROVODS: Final = "Horovod detected that one or more processes exited"

_OF_PIP: Final = ("pip._internal.", "pip._vendor.")
"""Exceptions of pip's own, by which a package could not be had or built: no mistake in a script."""
_MISTAKES: Final = {
    "AttributeError", "IndexError", "KeyError", "NameError", "TypeError", "UnboundLocalError", "ValueError", "ZeroDivisionError",
}  # fmt: skip

_BARE: Final = {"Empty", "Full", "StopIteration", "TimeoutError", "CancelledError"}
"""Raised without a message, by queues, iterators and those that wait."""

FROM_OUTSIDE: Final = {"KeyboardInterrupt", "SignalException", "SIGTERMException"}
"""Somebody pressed Ctrl-C, or the launcher was told to end; Lightning raises the last where a rank gets SIGTERM."""

RAISED_WITHIN: Final = " raised:"
"""With this the message ends of an exception that stands for another one, as of a compiler's backend: the next line tells which."""

_OF_PEERS: Final = compile_lazily(
    r"Connection (?:was )?(?:closed|reset) by (?:remote )?peer|Broken pipe|ncclRemoteError|remote process exit"
    r"|CheckpointException ranks:|got 0 bytes|Watchdog caught|[Tt]imed out waiting|Socket Timeout|was aborted|NCCL communicator was aborted"
)
"""How a rank says that another one went away, never came, or failed in what they save together."""

_TOLD_ABOVE: Final = compile_lazily(
    r"(?i)\b(?:see|check|look|read|refer)\b.{0,60}\b(?:above|further up)\b(?: for| to see| to find)?(?: the| its)?(?: actual| original| real| root| underlying)?"
    r" (?:error|exception|traceback|cause|reason)s?\b"
    r"|\b(?:see|check|look|read|refer)\b.{0,40}\b(?:errors?|exceptions?|tracebacks?|stack ?traces?|error messages?) (?:\w+ ){0,2}above(?=\W*$|[.!,;:)]| for\b)"
    r"|\bnot the (?:actual|real|original) error\b|\blook up to see\b"
)
"""Words of an exception that only tells where the error is to be read."""

_OF_DISTRIBUTED: Final = compile_lazily(
    r"^torch\.distributed\.|^(?:torch\.)?(?:Dist\w+Error|Rendezvous\w+Error)$|^torch\.AcceleratorError$|^c10"
)
_OF_AN_ARGUMENT: Final = compile_lazily(
    r"^(?:(?:Unsupported data type for HCCL|Input tensor data type is not supported for NCCL) process group|Device index must not be negative"
    r"|Default process group (?:has not been|is not) initialized|trying to initialize the default process group twice)"
)
"""What torch.distributed says of what the script, or its command, handed it."""
_OF_A_CALL: Final = compile_lazily(
    r"^(?:CUDA error: (?:too many resources requested for launch|invalid configuration argument|operation not permitted when stream is capturing"
    r"|peer mapping resources exhausted)|cuDNN error: CUDNN_STATUS_NOT_SUPPORTED\. This error may appear if you passed in a non-contiguous input)"
)
"""What CUDA and cuDNN say of what they were asked for, whatever the machine is like."""
_OF_LIBRARIES: Final = compile_lazily(
    r"^(?:CUDA |cuda runtime error \(|NCCL [eE]rror|cuDNN error|CUBLAS_|nccl[A-Z]\w+:|\[enforce fail|\[\S*gloo/|.*INTERNAL ASSERT FAILED"
    r"|.*version [`'][^']+' not found \(required by |Could not load (?:the )?(?:lib\w|\S{1,200}\.so\b)|numpy\.dtype size changed|numpy\.core\.multiarray failed"
    r"|oneCCL: |\S+ backend failed\b|Native API failed\b|(?:\[Rank:\d+\] )?FATAL ERROR :: MODULE:|synStatus=|Graph compile failed\b"
    r"|Collective call returned error|Bad StatusOr access: |(?:RESOURCE_EXHAUSTED|INTERNAL|UNAVAILABLE|ABORTED|DEADLINE_EXCEEDED): "
    r"|\((?:Fatal|PreconditionNotMet|Unavailable|ResourceExhausted|External|Unimplemented|ExecutionTimeout)\) "
    r"|\S{1,200}/ccsrc/\S{1,200}\.cc:\d+ |XLA:[A-Z]+ "
    r"|Ascend collective communication initialization failed|Device \d+ call rt\w+ failed"
    r"|Numpy is not available|Error building extension '|cublas runtime error|miopenStatus\w+$|.{0,200}NPU function error: "
    r"|The current installed version of \S+ \([\d.]+\) is less than the minimum)"
)
"""Words of a library about itself and the machine: no mistake that a script's line shows. Among them the kinds of Paddle's errors, the places
of MindSpore's, and the statuses of XLA."""


_REINSTALL: Final = compile_lazily(r"\b[Rr]e-?install(?:ing)?\b")
_IN_A_PACKAGE: Final = compile_lazily(r"/(?:site|dist)-packages/")
"""Where a package itself finds that it doesn't go with another one, the script isn't at fault."""


_FROM_A_WORKER: Final = compile_lazily(r"^Caught \w+ in (?:DataLoader worker|replica|pin memory thread)")


_VALUES: Final = compile_lazily(r"'[^']*'|\"[^\"]*\"|(?:(?<!\S)|(?<=['\"]))[^\s/\d'\"]*[/\d]\S*")
BEGINNING: Final = 40
"""Characters of a message that tell what it is about."""
_RAISES_WORDS: Final = compile_lazily(r"raise [\w.]+\((?!\)|[rbu]*['\"])")
"""Words that were gathered: a sentence that stands in the code is the exception's own."""
_RAISES_STDERR: Final = compile_lazily(r"raise [\w.]+\(.{0,300}\bstderr\b")
"""The message is all that a program, which the script started, wrote of its own failure."""
_MAX_LINES_OF_STDERR: Final = 200
_MAX_LINES_TO_MESSAGE: Final = 8
"""Lines from an exception to the traceback that is its message."""


def is_passed_on(raised: LoggedException, behind: LoggedException) -> bool:
    """Whether it was raised again for a worker, or another process, whose own traceback comes behind it: that is its message, and begins
    on another line."""
    if _FROM_A_WORKER.search(raised.message):
        return True
    alone = not raised.message or raised.line.text.rstrip(": ").endswith(raised.exception)
    code = raised.frames[-1].code if raised.frames else ""
    apart = behind.began.number - raised.line.number
    near = 0 < apart <= _MAX_LINES_TO_MESSAGE
    told = 0 < apart <= _MAX_LINES_OF_STDERR and bool(_RAISES_STDERR.match(code))
    words = near and alone and bool(_RAISES_WORDS.match(code))
    return (words or told) and not (is_cut(raised) or is_from_outside(raised) or is_of_launcher(raised))


def exception_in(line: LogLine) -> LoggedException | None:
    """Read the exception that a line without a traceback is; None, where it is none."""
    if not NAMED.match(line.text):
        return None
    name, _, message = line.text.partition(":")
    return LoggedException(exception=name, message=message.strip(), line=line, began=line)


def may_be_caught(raised: LoggedException) -> bool:
    """Whether somebody may have caught it: one that nobody caught goes back to the script's first line, or to that of `python -m`."""
    headless = "Traceback" not in raised.began.text
    return bool(raised.frames) and not _OUTERMOST.match(raised.frames[0].function) and not headless


_REPLICAS: Final = "torch/nn/parallel/parallel_apply.py"
"""Where DataParallel calls a replica of the model."""


def is_in_replica(raised: LoggedException) -> bool:
    """Whether it was raised in a copy of the model that DataParallel made for one of its GPUs."""
    return any(with_slashes(frame.path).endswith(_REPLICAS) for frame in raised.frames)


def is_optional(raised: LoggedException) -> bool:
    """Whether it is of an import, and nothing was called: scripts try them, and do without."""
    return short_name(raised.exception) in ("ImportError", "ModuleNotFoundError") and all(
        frame.function == "<module>" or frame.path.startswith("<") for frame in raised.frames
    )


def ends_its_run(raised: LoggedException) -> bool:
    """Whether nobody caught it, so that a run of one process, or of that launcher, is over behind it. A process that multiprocessing starts begins
    in a string; what a logger writes before a launcher's last words is no announcement of them; and how far a message goes that begins below the
    name, nobody knows, unless it is another process's exception."""
    if not raised.frames or is_cut(raised) or may_be_caught(raised) or raised.frames[0].path.startswith("<"):
        return False
    text = raised.line.text.rstrip()
    if text.endswith(":") and not text.endswith("Traceback (most recent call last):") and not is_of_launcher(raised):
        return False
    return not raised.announced or is_within_launcher(raised)


def short_name(exception: str) -> str:
    """Take the module from an exception's name: "torch.distributed.DistNetworkError" is "DistNetworkError"."""
    return exception.rpartition(".")[2]


def kind_of(raised: LoggedException) -> tuple[object, ...]:
    """Return what exceptions have in common that are one mistake: type, place and message, whatever values it names."""
    return raised.exception, raised.own, _VALUES.sub("", raised.message)[:BEGINNING]


def is_alike(one: LoggedException, other: LoggedException) -> bool:
    """Whether they are one mistake. The place of one whose traceback the log doesn't show to its end is unknown."""
    (exception, own, words), (others, own_of_other, words_of_other) = kind_of(one), kind_of(other)
    return (exception, words) == (others, words_of_other) and (own == own_of_other or None in (own, own_of_other))


def is_of_launcher(raised: LoggedException) -> bool:
    """Whether it only says that some process failed. torch.multiprocessing.spawn raised a bare Exception for that until torch 1.5."""
    if is_cut(raised):
        return any(_LAUNCHES.search(with_slashes(frame.path)) for frame in raised.frames)
    spawns = raised.exception == "Exception" and _innermost(raised).endswith(_SPAWN)
    if raised.message.startswith(_HOROVODS):
        return True
    tells_exit = raised.exception in ("RuntimeError", "OSError") and bool(re.match(OF_A_CHILD, raised.message))
    kind = short_name(raised.exception)
    return spawns or tells_exit or (kind in OF_LAUNCHERS and not is_of_a_tool(raised))


def is_cut(raised: LoggedException) -> bool:
    """Whether the log breaks off before its exception."""
    return not raised.exception


def is_nested(raised: LoggedException) -> bool:
    """Whether a library's exception only tells of this one, whose own traceback the log may lack."""
    return f"{RAISED_WITHIN} {raised.exception}: " in raised.line.text


def is_bare(raised: LoggedException) -> bool:
    """Whether nothing of its traceback is in the log: it may be of the script, or of a library that found the machine at fault."""
    return not raised.frames and raised.began == raised.line


def says_nothing(raised: LoggedException) -> bool:
    """Whether it only tells that something didn't come, to the code that waited: what that was, the exception says that this led to."""
    return not raised.message and short_name(raised.exception) in _BARE


def is_mistake(raised: LoggedException) -> bool:
    """Whether its kind alone tells that the script is wrong, and no machine."""
    return raised.exception in _MISTAKES


def is_from_outside(raised: LoggedException) -> bool:
    """Whether the run was told to end."""
    return short_name(raised.exception) in FROM_OUTSIDE


def is_of_parent(raised: LoggedException) -> bool:
    """Whether it is of a process that was being started, and got no more from the one that started it: that one failed, or ended."""
    if short_name(raised.exception) not in ("EOFError", "UnpicklingError") or not raised.frames:
        return False
    # Where two processes' tracebacks are mixed, only the call itself tells.
    return "reduction.pickle.load(from_parent)" in raised.frames[-1].code


def is_told_above(raised: LoggedException) -> bool:
    """Whether it says itself that the error stands elsewhere, before it."""
    return bool(_TOLD_ABOVE.search(raised.message))


def tells_of_another(raised: LoggedException) -> bool:
    """Whether it only reports another failure: that a rank, the process that started it, or one that it waits for is gone or late, or that
    the error stands above."""
    if is_of_parent(raised) or is_told_above(raised):
        return True
    over_network = _is_distributed(raised) or short_name(raised.exception) in ("RuntimeError", "BrokenPipeError")
    return over_network and bool(_OF_PEERS.search(raised.message))


def is_ordinary(raised: LoggedException) -> bool:
    """Whether it is what a mistake in a script looks like: an exception of Python's or of a library that the script's line explains."""
    of_machine = is_of_a_tool(raised) and _OF_THE_MACHINE.match(raised.message)
    return not (
        is_cut(raised)
        or (is_within_launcher(raised) and not programs_missing(raised.message))
        or _is_distributed(raised)
        or (_OF_LIBRARIES.search(raised.message) and not _OF_A_CALL.search(raised.message))
        or loader_fault(raised.message)
        or is_of_launcher(raised)
        or of_machine
        or raised.exception.startswith(_OF_PIP)
        or (_REINSTALL.search(raised.message) and _IN_A_PACKAGE.search(_innermost(raised)))
    )


def is_within_launcher(raised: LoggedException) -> bool:
    """Whether it is one of a launcher's own process, which runs nothing of the script's."""
    paths = [with_slashes(frame.path) for frame in raised.frames]
    by_module = bool(paths) and "runpy" in paths[0]
    return any(_LAUNCHES.search(path) for path in (paths if by_module else paths[:1]))


def with_slashes(path: str) -> str:
    """Write a path of Windows as the others are written."""
    return path.replace("\\", "/")


def _innermost(raised: LoggedException) -> str:
    return with_slashes(raised.frames[-1].path) if raised.frames else ""


def is_of_a_tool(raised: LoggedException) -> bool:
    """Whether a program failed that is no rank."""
    return short_name(raised.exception) == "CalledProcessError" and bool(re.match(OF_A_TOOL, raised.message))


def _is_distributed(raised: LoggedException) -> bool:
    within = "torch/distributed/" in _innermost(raised) and not _OF_AN_ARGUMENT.search(raised.message)
    return within or bool(_OF_DISTRIBUTED.search(raised.exception))


# --- calls of the script's own ------------------------------------------------------------------------------------------


_LIBRARIES: Final = compile_lazily(
    r"(?:^|/)(?:site-packages|dist-packages|lib(?:64)?/python\d[\d.]*)/|^<(?!ipython-input|stdin>)|/bin/[^/.]+$"
)
_OF_WINDOWS: Final = compile_lazily(
    r"(?:^|/)(?:lib/(?P<module>\w+)|scripts/[^/]+(?:\.exe(?:/.*)?|-script\.py)$)", re.IGNORECASE
)
"""Python's own modules lie in Lib itself there, where a script's may lie, too."""
_PY_SPYS: Final = (
    *PYTHONS_FOLDERS,
    *("torch/", "lightning/", "pytorch_lightning/", "lightning_fabric/", "accelerate/", "transformers/", "deepspeed/"),
)
"""py-spy leaves out the folders in which Python looks for modules."""
_KNOWN: Final = (
    r"torch\w*|transformers|accelerate|deepspeed|datasets|peft|trl|timm|diffusers|lightning\w*"
    r"|pytorch_lightning|mmcv|mmengine|mmdet|mmseg|fairseq|detectron2|megatron|ray|apex|numpy|PIL"
)
_NOT_INSTALLED: Final = compile_lazily(
    r"(?:^|/)(?P<torch>torch)/(?:(?:nn|cuda|amp|autograd|optim|jit|fx|_\w+|utils/data|utils/_\w+|multiprocessing|distributed/(?:fsdp|checkpoint|elastic"
    r"|algorithms|launcher|rpc|tensor|optim|_\w+))/\w|(?:_\w+|functional|serialization|utils/checkpoint"
    r"|distributed/(?:distributed_c10d|run|rendezvous|device_mesh))\.py$)"
    rf"|^(?:\.{{3}}|\u2026|[<\[(]\.{{3}}[>\])])/?(?P<known>{_KNOWN})/"
    rf"|(?:^|/)(?P<checkout>{_KNOWN})/(?P=checkout)/"
    r"|/modules/(?P<models>transformers_modules)/"
    r"|^(?P<cython>[A-Za-z]\w*)/(?:\w+/)*\w+\.(?:pyx|pxi)$"
)
"""A package's file that lies elsewhere: torch built from its source, one of whose path the beginning was left out, of a package in the checkout of
that name, the code that a model of transformers brings along, or what Cython has compiled, which shows the path that it was built from."""
PYTHON: Final = "Python"


def own_frame(frames: Sequence[LogFrame]) -> LogFrame | None:
    """Find the innermost frame that is in nobody's library."""
    return next((frame for frame in reversed(frames) if not is_of_library(frame.path)), None)


def is_of_library(path: str) -> bool:
    """Whether a file is of somebody's package, or Python's own."""
    if "\\" not in path:
        return (
            bool(_LIBRARIES.search(path) or _NOT_INSTALLED.search(path))
            or path in WITHOUT_FOLDER
            or path.startswith(_PY_SPYS)
        )
    path = with_slashes(path)
    if _LIBRARIES.search(path) or _NOT_INSTALLED.search(path):
        return True
    found = _OF_WINDOWS.search(path)
    return bool(found and (not found["module"] or found["module"] in stdlib_module_names))


_PACKAGE: Final = compile_lazily(
    r".*/(?:(?:site|dist)-packages/(?:[^/]+\.egg/)?|modules/(?=transformers_modules/))(?P<name>[^/]+?)(?:\.pyc?)?(?:/|$)"
)


def package_of(path: str) -> str:
    """Name the installed package that a file is of, as it is imported; "" for one that isn't installed as such."""
    found = _PACKAGE.match(with_slashes(path))
    return found["name"] if found else ""


def script_of(raised: LoggedException) -> str:
    """Return the path of the script that was started, which is the outermost one of a traceback; "" where its frames don't tell."""
    return next((frame.path for frame in raised.frames if not library_of(frame.path)), "")


def library_of(path: str) -> str:
    """Name the package that a file is of, wherever it lies, `PYTHON` for its own modules; "" for a file of nobody's package."""
    if not is_of_library(path):
        return ""
    found = _NOT_INSTALLED.search(with_slashes(path))
    return package_of(path) or (next(filter(None, found.groups())) if found else PYTHON)


def without_pythons(frames: Sequence[LogFrame]) -> list[LogFrame]:
    """Drop the innermost calls that are within Python's own modules: who called those, handed them something."""
    own = list(takewhile(lambda frame: library_of(frame.path) == PYTHON, reversed(frames)))
    return list(frames[: len(frames) - len(own)])


def raiser_of(raised: LoggedException) -> str:
    """Name the package within which it was raised; "" where that is the script, or not known."""
    inner = without_pythons(raised.frames)
    return library_of(inner[-1].path) if inner else ""


_HYDRAS: Final = "hydra/_internal/"


def is_told_better_by(raised: LoggedException, outer: LoggedException) -> bool:
    """Whether the exception that it led to says more: hydra only tried whether a name is there; or the same package caught what one of its own
    lines raised, and put it into more words."""
    if is_cut(outer) or is_told_above(outer):
        return False
    inner = without_pythons(raised.frames)
    if inner and _HYDRAS in with_slashes(inner[-1].path):
        return True
    package, name, others = raiser_of(raised), short_name(raised.exception), short_name(outer.exception)
    kin = name != others and others.endswith(name)
    same = package not in ("", "torch", PYTHON) and package == raiser_of(outer)
    return same and (is_mistake(raised) or kin) and len(outer.message) > len(raised.message)


# --- what is said before an exception, or beside it ---------------------------------------------------------------------


LAST_ERROR: Final = "Last error:"
"""What torch puts, on a line of its own, before NCCL's own word on an error of its."""
IN_A_LOGGER: Final = "--- Logging error ---"
"""What Python prints before the exception by which a logger itself failed, and before those which that one was to tell of."""
ENDS_NOTHING: Final = compile_lazily(
    r"Exception ignored (?:in|on|while)\b|--- Logging error ---$|Error in atexit\._run_exitfuncs:"
    r"|(?:We expect that some modules will need time to support|.{0,80}modules must be compiled with) NumPy 2(?:\.0)?\.$"
)
"""Python prints them of a destructor, a logger or the end of a process that has done its work, and goes on; numpy 2 of a module that was compiled
for numpy 1 (numpy/core/_multiarray_umath.py): what imports that may do without, else it raises an exception of its own."""
_OF_A_PART: Final = compile_lazily(
    r"Exception in thread \S|Process [\w-]+-\d+(?::\d+)*:$|(?:Task|Future) exception was never retrieved"
)
"""A thread, a task or a process of the script ends by it, and the script itself may go on."""
_OUTERMOST: Final = compile_lazily(r"<module>$|_run_module_as_main$|<cell line: ")
"""Functions in which the main thread of a process begins."""
LINES_OF_ANOTHER_RUN: Final = 6
"""Lines behind an exception that nobody caught, by which they are of another run: fewer, its own process may still write."""
OF_ERRORS_MODULES: Final = r"(?:[a-z_]\w*\.)+(?:exceptions|errors|exc)\.[A-Z]\w*(?<!Warning)(?::(?= )|$)|subprocess\.TimeoutExpired: |pyarrow\.lib\.Arrow\w+: "
"""The line of one whose name doesn't tell that it is an exception, but whose module does, or is known for it."""
NAMED: Final = compile_lazily(rf"[A-Za-z_][\w.]*(?:Error|Exception)(?::|$)|StopIteration(?:: |$)|{OF_ERRORS_MODULES}")
"""The line of an exception, by its name."""
LEVEL: Final = r"[^A-Za-z]{0,40}(?:[A-Za-z][\w.]{0,59}(?![\w.])[^A-Za-z]{1,20}){0,2}"
"""What stands before the level that a logger puts before its message: clocks, brackets, its name."""
LOGGED: Final = compile_lazily(rf"{LEVEL}(?:ERROR|WARNING|WARN)(?![A-Za-z_])")
"""What `logging.exception` writes before the traceback of an exception that the script has caught."""
INFORMS: Final = compile_lazily(
    rf"{LEVEL}(?:INFO|DEBUG)(?![A-Za-z_])"
    r"(?=.*(?i:\b(?:fail\w*|fallback|fall\w* back|could ?n[o']t|cannot|can't|not (?:there|usable|found|available|installed|supported)"
    r"|unavailable|missing|skip\w*|ignor\w+|without|disabled|retr(?:y|ies|ying)|error|exception)\b))"
)
"""A line that only informs may stand before any traceback; one that speaks of what isn't there announces it."""
_IS_RAISED_AGAIN: Final = compile_lazily(r"\.engine\.train_loop\b.*: Exception during training:$")
"""detectron2's trainer logs it so, raises it again, and its hooks write how long the training took."""


def announcement(before: Sequence[str]) -> str:
    """Find the line before a traceback that announces it; "" where none does. asyncio writes one between."""
    if not before:
        return ""
    if before[0].startswith("future: <") and len(before) > 1:
        before = before[1:]
    line = before[0].strip()
    if _IS_RAISED_AGAIN.search(line):
        return ""
    return line if any(pattern.match(line) for pattern in (ENDS_NOTHING, _OF_A_PART, LOGGED, INFORMS)) else ""
