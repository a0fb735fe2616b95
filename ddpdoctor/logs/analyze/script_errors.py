"""Errors of a script: how sure it is that its own line is wrong, and those for which the log shows more than a mistake, a missing module, a
failed program, a server out of reach. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import takewhile
from typing import Final

import msgspec

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import listed, one_line
from ddpdoctor.facts.log import Log, LogFrame, LoggedException, LogLine
from ddpdoctor.knowledge.python_commands import python_of, versions_installed
from ddpdoctor.knowledge.python_packages import PACKAGES
from ddpdoctor.logs.analyze.error_meanings import Meaning, meaning_of
from ddpdoctor.logs.analyze.failures import Failure
from ddpdoctor.logs.exceptions import (
    PYTHON,
    is_in_replica,
    is_nested,
    is_of_launcher,
    library_of,
    raiser_of,
    short_name,
    with_slashes,
    without_pythons,
)
from ddpdoctor.logs.launch_failures import MissingKind, why_missing

# --- whose fault it is --------------------------------------------------------------------------------------------------


class BlamedCode(Enum):
    """What the log shows of who is at fault for an exception that looks like a mistake in the script."""

    SCRIPT = "a line of the script's own raised it"
    ARGUMENTS = "a library refused what it was handed"
    LIBRARY = "a library raised it about itself: it is used wrongly, or is at fault"
    UNKNOWN = "nothing tells where it was raised"


_OF_ARGUMENTS: Final = compile_lazily(
    r"^(?:(?:Value|Type|Key|Index|Attribute|Lookup|Argument|Name|Syntax|Indentation|Import|ModuleNotFound|Overflow|ZeroDivision|UnicodeDecode|UnicodeEncode"
    r"|FileNotFound|FileExists|IsADirectory|NotADirectory|Permission)Error"
    r"|\w*(?:Config|Valid|Decod|Pars|Scann|Usage|Option|Argument|Interpolation|Cast|Schema|Repo|Revision|Entry|Missing|NotFound|Unknown|Unidentified|Unsupported|Unrecogni[sz]ed)\w*)$"
)
"""Exceptions by which a library says that something that it was given won't do."""
_OF_FILES: Final = compile_lazily(r"\[(?:Errno|WinError) \d+\] ")
"""What the operating system says of a name that it was given."""
_REFUSED: Final = compile_lazily(r"4\d\d Client Error\b")
"""A server's word on what it was asked for."""
_RAISES: Final = compile_lazily(r"raise\b|[rbfu]{0,2}['\"]")
"""Before Python 3.8 the last line of the statement is shown, which is of the message mostly."""
_DEMANDS: Final = compile_lazily(
    r"(?i)\b(?:should|must|ha(?:s|ve) to|needs? to|expect(?:s|ed)|got|required?|requires|invalid|at (?:least|most)|divisible|multiple|(?:not |un)equal|match(?:es)?|positive|greater|less|larger"
    r"|smaller|between|unknown|unsupported|one of)\b"
)
"""Words of an assertion on what a library was handed."""
_COMPLAINS: Final = compile_lazily(
    r"(?i)\b(?:shapes?|sizes?|dim(?:ension)?s?|dtypes?|scalar types?|same (?:device|dtype|type)|indices|index|out of (?:range|bounds)|expect(?:s|ed)"
    r"|must (?:match|be|have)|invalid|requires? grad|backward through|grad_fn|in-?place|leaf variable|not implemented for|channels?|elements?)\b"
)
"""Words by which torch's C++ and Python's own complain of what they were handed: shapes, dtypes, devices, indices, the graph."""
_READERS: Final = compile_lazily(
    r"/(?:PIL|pandas|librosa|soundfile|torchaudio|cv2|h5py|pyarrow|av|decord|torchvision/(?:io|datasets)|datasets/(?:formatting|packaged_modules))(?:/|\.py$)"
)
"""Code that reads files, tables and their parts."""
_OF_READING: Final = compile_lazily(r"(?:Value|Key|Index|OS|IO|EOF|Runtime|Unicode\w{1,9})Error$|Libsndfile")
"""How it says that these aren't as they should be."""
_OF_ITSELF: Final = compile_lazily(
    r"(?i)\bno\b.{0,60}\b(?:available|found|support(?:ed|s)?)\b|\b(?:not|isn't|un)\s?(?:available|installed|implemented|compiled|built)\b|\bplease (?:report|file|open|upgrade|update"
    r"|install)|\bbugs?\b|\binternal(?:ly)?\b|\bnever happen|\bunreachable\b|\bout of sync\b|\binconsisten|\bincompatib|\bversions?\b|\bunexpected(?:ly)?\b(?! (?:keyword|key|argument|token))"
)
"""Words of a library about itself, and not about what it was handed."""


_SCRIPTS_MODULE: Final = "'__main__'"
"""The script itself, in a message on what it lacks."""


def fault_of(raised: LoggedException, log: Log) -> BlamedCode:
    """Tell by its frames, its words and the ranks that raised it what the log shows of who is at fault."""
    if not raised.frames:
        return BlamedCode.UNKNOWN
    inner = without_pythons(raised.frames)
    if not inner and raised.own is None and _SCRIPTS_MODULE not in raised.message:
        return BlamedCode.UNKNOWN
    if not inner or not library_of(inner[-1].path):
        return BlamedCode.SCRIPT
    kind, last = short_name(raised.exception), raised.frames[-1]
    if known_meaning(raised, log) or _REFUSED.match(raised.message):
        return BlamedCode.ARGUMENTS
    if _OF_ITSELF.search(raised.message) or is_nested(raised):
        return BlamedCode.LIBRARY
    if _OF_ARGUMENTS.match(kind) and (_RAISES.match(last.code) or not last.code or _OF_FILES.match(raised.message)):
        return BlamedCode.ARGUMENTS
    if last.code.startswith("assert") and _DEMANDS.search(raised.message):
        return BlamedCode.ARGUMENTS
    if library_of(last.path) == PYTHON and kind != "RuntimeError":
        return BlamedCode.ARGUMENTS if _OF_ARGUMENTS.match(kind) else BlamedCode.LIBRARY
    if _READERS.search(with_slashes(inner[-1].path)) and _OF_READING.match(kind):
        return BlamedCode.ARGUMENTS
    between = {library_of(frame.path) for frame in _of_libraries(inner)} - {PYTHON, raiser_of(raised)}
    complains = not last.code.startswith("assert") and _COMPLAINS.search(raised.message)
    # Packages hand data on to NumPy mostly as they got it, to torch in a form of their own.
    hands_on = raiser_of(raised) == "numpy" or (raiser_of(raised) == "torch" and not between)
    return BlamedCode.ARGUMENTS if complains and hands_on else BlamedCode.LIBRARY


def known_meaning(raised: LoggedException, log: Log) -> Meaning | None:
    """Tell what it means; where it has no words itself, by those with which DataParallel passes it on."""
    if not raised.message and is_in_replica(raised):
        raised = msgspec.structs.replace(raised, message=f"Caught {short_name(raised.exception)} in replica")
    return meaning_of(raised, log)


def meaning_of_words(text: str, line: LogLine, log: Log) -> Meaning | None:
    """Tell what a line means by which a script ends itself, without a traceback."""
    return meaning_of(LoggedException(exception="", message=text, line=line, began=line), log)


def _of_libraries(frames: Sequence[LogFrame]) -> list[LogFrame]:
    """List the innermost calls in a row that are no line of the script."""
    return list(takewhile(lambda frame: library_of(frame.path), reversed(frames)))


def is_surely_the_scripts(raised: LoggedException, log: Log) -> bool:
    """Whether the log shows that the script, its arguments or its data are at fault, or else tells the very cause."""
    told = module_missing(raised) or server_unreached(raised) or is_of_a_program(raised)
    return bool(told) or fault_of(raised, log) in (BlamedCode.SCRIPT, BlamedCode.ARGUMENTS)


def said_of(raised: LoggedException) -> str:
    """Return the exception and its words; where it has none that a person can read, the line of code that raised it tells more."""
    name, code = short_name(raised.exception), raised.frames[-1].code if raised.frames else ""
    tells = raised.message[:1].isalpha() or not code.startswith("assert")
    words = raised.message if tells else f"{code}: {raised.message}".removesuffix(": ")
    return f"{name}: {words}" if words else name


def fault_words(raised: LoggedException, log: Log) -> str:
    """Say where it was raised, who called that, and what may be wrong; "" where it is the script's own line."""
    if meaning := known_meaning(raised, log):
        return meaning.cause
    fault, package = fault_of(raised, log), raiser_of(raised)
    if fault is BlamedCode.SCRIPT or (fault is BlamedCode.ARGUMENTS and not package):
        return ""
    if fault is BlamedCode.UNKNOWN:
        missing = (
            "No line of the script is in its traceback" if raised.frames else "No traceback tells where it was raised"
        )
        return f"{missing}: mostly it comes of a mistake in the script or its arguments; but a library may also have raised it about itself."
    last = without_pythons(raised.frames)[-1]
    path = last.path.replace("\\", "/")
    within = f" in {last.function}" if last.function else ""
    place = (
        f"{package} ({path[path.rfind(f'{package}/') :]}, line {last.line}{within})"
        if f"{package}/" in path
        else package
    )
    called = (
        f"which {raised.own.path.replace(chr(92), '/').rpartition('/')[2]}, line {raised.own.line}, called"
        if raised.own
        else "and the log doesn't show which line of the script called it"
    )
    if fault is BlamedCode.ARGUMENTS:
        return f"{place}, {called}, refuses what it was given: by the script, its arguments or its data."
    return (
        f"It was raised within {place}, {called}. Either the script uses {package} wrongly, or {package} itself is at fault, or doesn't "
        "go with the other packages: this log alone can't tell."
    )


_NO_FILE: Final = compile_lazily(
    r"\[Errno 2\] No such file or directory: (?P<quote>['\"])(?P<file>[^'\"]{1,4000})(?P=quote)"
)


def _fixes_of_a_missing_file(raised: LoggedException) -> tuple[Fix, ...]:
    """Say how to see which part of a path is missing: what names it mostly is far from the line that opens it."""
    found = _NO_FILE.match(raised.message)
    is_program = bool(raised.frames) and raised.frames[-1].path.endswith("subprocess.py")
    if not found or is_program or short_name(raised.exception) != "FileNotFoundError":
        return ()
    file = found["file"]
    relative = (
        ""
        if file.startswith("/") or file[1:2] == ":"
        else "; the path is relative: it counts from the folder in which the job was started"
    )
    return (
        Fix(
            f"{file} isn't there: see on that host which part of the path is missing, and correct it where it is set (an option, a settings file, "
            f"an environment variable), or bring the data there{relative}",
            (shlex.join(("namei", file)),),
        ),
    )


_ASKS: Final = compile_lazily(r"(?i)\b(?:set|(?:re-?)?(?:run|try)|export|pass)\b(?P<what>(?:(?![.!?;](?:\s|$)).)*)")
"""A sentence that asks for something, from there on."""
_SETTINGS: Final = compile_lazily(r"(?<![\w=])[A-Z][A-Z0-9_]{3,40}=[\w.:/-]+(?<![.:])")
"""Of the environment."""


def fault_fixes(raised: LoggedException, log: Log) -> tuple[Fix, ...]:
    """Say what decides: what the message asks for itself, and which release it is of the package that raised it."""
    if meaning := known_meaning(raised, log):
        return meaning.fixes
    if found := _fixes_of_a_missing_file(raised):
        return found
    settings = [setting for asked in _ASKS.finditer(raised.message) for setting in _SETTINGS.findall(asked["what"])]
    exports = tuple(f"export {setting}" for setting in settings)
    asked = (Fix("Its own words ask for another run, with", exports),) if exports else ()
    package = raiser_of(raised)
    if not package or fault_of(raised, log) is not BlamedCode.LIBRARY:
        return asked
    return (
        *asked,
        Fix(
            f"See which version of {package} that is, and look for these words among its issues and in its release notes: a newer or an older "
            "one may not say it",
            (versions_installed(python_of(log), package, "torch"),),
        ),
    )


# --- a module that is missing -------------------------------------------------------------------------------------------


APEX: Final = "apex"
_OF_APEX: Final = (
    Fix(
        "Of Apex torch has nearly all itself, and nothing to build: mixed precision, fused AdamW, SyncBatchNorm, layer norm",
        (
            "# before: model, opt = amp.initialize(model, opt, opt_level='O1')",
            "# after:  with torch.autocast('cuda', dtype=torch.bfloat16): loss = model(batch)   # float16: and torch.amp.GradScaler",
        ),
    ),
    Fix(
        "NVIDIA's Apex isn't on PyPI (the apex there is a web framework): it is built from its source, and what to type on that host it tells",
        ("ddpdoctor explain apex",),
    ),
)
_MISSING: Final = compile_lazily(r"No module named '(?P<module>[\w.]+)'")
_NEEDED: Final = compile_lazily(
    r"(?:\w{1,200} requires the (?:🤗 )?|This modeling file requires the following packages that were not found in your environment: )(?P<module>\w+)"
    r"(?: library but it was not found in your environment\.|\. Run `pip install )"
)
"""What transformers says of a package that a class of its needs; it says that in words for people, not by the module's name."""


def module_missing(raised: LoggedException) -> str:
    """Name the module that the exception says isn't there; "" for any other."""
    found = _MISSING.match(raised.message)
    if found and short_name(raised.exception) == "ModuleNotFoundError":
        return found["module"]
    needed = _NEEDED.match(raised.message)
    named = (needed["module"], needed["module"].lower()) if needed else ()
    return next((module for module in named if module in PACKAGES), "")


def missing_module_fixes(module: str, log: Log) -> tuple[Fix, ...]:
    """Say what to do where that module is missing."""
    python = shlex.quote(python_of(log))
    top, _, rest = module.partition(".")
    if rest and module not in PACKAGES:
        code = f"'import {top}; print({top})'"
        return (
            Fix(
                f"There is a {top}, but no {module}: see which it is; it is of another version, or hides the one meant",
                (f"{python} -c {code}",),
            ),
        )
    if top == APEX:
        return _OF_APEX
    own = Fix(
        f"If {module} is a file or folder of your own: start the job in the folder that it lies in, or name that folder",
        ('export PYTHONPATH="$PWD"',),
    )
    package = PACKAGES.get(module)
    if package is None:
        # Who installs by a module's name what is the user's own file gets a stranger's package.
        return (
            own,
            Fix(
                f"If {module} is a package: start the job in the environment that has it, the wrong one may be active; to install it, "
                f"look up what it is called: its name on PyPI may be another, and {module} there a stranger's"
            ),
        )
    return (
        Fix(
            f"If {module} is a package: install {package} for the Python that ran, or start the job in the environment that has it; "
            "the wrong one may be active",
            (f"{python} -m pip install {package}",),
        ),
        own,
    )


# --- a program that the script starts -----------------------------------------------------------------------------------


_STARTS_RANKS: Final = compile_lazily(
    r"""Command ['"](?:\[['"])?(?:\S*[/\\])?(?:python[\d.]*|torchrun|accelerate|deepspeed|colossalai|horovodrun|srun|sbatch|mpirun|mpiexec|ssh|pdsh|ray)\b"""
)
"""Its own words are elsewhere, and say more."""
PROGRAM_FAILED_CAUSE: Final = "A program that the script starts and waits for failed; what it wrote itself stands before the traceback, if it wrote anything."


def is_of_a_program(raised: LoggedException) -> bool:
    """Whether a line of the script's own started a program that failed, and that starts no ranks."""
    named = short_name(raised.exception) == "CalledProcessError" and not _STARTS_RANKS.match(raised.message)
    # What a launcher has started as a rank may be a wrapper around the rank itself.
    return named and raised.own is not None and raised.line.rank is None


def program_that_failed(failures: Sequence[Failure]) -> Failure | None:
    """Find the failure that is such a program's, where all that is told beside it follows from it."""
    ended = (
        failure.exited is None or failure.exited.said_by == "subprocess" or failure.exited.told_to
        for failure in failures
    )
    raised = (failure.raised is None or is_of_launcher(failure.raised) for failure in failures)
    if not (all(ended) and all(raised)) or any(failure.effects for failure in failures):
        return None
    return next((failure for failure in failures if failure.raised and is_of_a_program(failure.raised)), None)


# --- a program that nobody finds --------------------------------------------------------------------------------------


_OF_SLURM: Final = compile_lazily(r"s(?:batch|run|alloc|queue|info|cancel|control|acct|acctmgr|eff)")


def missing_program_words(text: str) -> str:
    """Say why the programs that a line names aren't found; "" where it names none."""
    return "; ".join(reason for _, reason in why_missing([one_line(text)]).values())


def missing_program_fixes(texts: Iterable[str]) -> tuple[Fix, ...]:
    """Say what to do where programs aren't found, as those lines say."""
    missing = why_missing(map(one_line, texts))
    fixes = [_missing_program_fix(kind, programs) for kind, (programs, _) in missing.items()]
    if any("torchrun" in programs for programs, _ in missing.values()):
        fixes.append(
            Fix("torchrun is a module of torch, too", ("python -m torch.distributed.run --nproc-per-node=N train.py",))
        )
    return tuple(fixes)


def _missing_program_fix(kind: MissingKind, programs: Sequence[str]) -> Fix:
    if kind is MissingKind.FUNCTION:
        commands = ("#!/bin/bash -l", "source /etc/profile.d/modules.sh   # Lmod: /etc/profile.d/lmod.sh")
        return Fix("Start the job script as a login shell, or load it there", commands)
    if kind is MissingKind.OPTION:
        text = "End the line above it with a backslash, and nothing behind that. This shows where something is behind one, a space for example"
        return Fix(text, (r"grep -nE '\\[[:space:]]+$' JOB_SCRIPT",))
    if kind is MissingKind.RETURN:
        text = "Write the script with the line ends of Unix, and let git and the editor leave them so"
        return Fix(text, (r"sed -i 's/\r$//' JOB_SCRIPT",))
    if kind is MissingKind.DENIED:
        files = " ".join(map(shlex.quote, programs))
        text = "Mark it as a program, or give it to its interpreter: bash SCRIPT, python SCRIPT"
        return Fix(text, (f"chmod +x {files}", f"findmnt -no OPTIONS -T {files}   # noexec: nothing there may be run"))
    if kind is MissingKind.FILE:
        files = " ".join(map(shlex.quote, programs))
        return Fix("See there what that is", (f"ls -l {files}; head -1 {files}",))
    if all(map(_OF_SLURM.fullmatch, programs)):
        return Fix(
            "Slurm's programs are on its own nodes alone: go to a login node, or load them there",
            ("module load slurm",),
        )
    text = f"Activate the environment that has {listed(programs)} in the job script itself, or give the full path"
    return Fix(text, ("source /path/to/venv/bin/activate", "conda activate NAME"))


# --- a server that doesn't answer ---------------------------------------------------------------------------------------


_CLIENTS: Final = compile_lazily(
    r"(?:^|/)(?:urllib/request\.py|http/client\.py|ftplib\.py|(?:urllib3|requests|httpx|httpcore|aiohttp|huggingface_hub|botocore|gcsfs|s3fs)/.{0,300}\.py)$"
)
"""What fetches: not torch's store, nor sockets of the script's own."""
_OF_CLIENTS: Final = compile_lazily(r"(?:urllib3?|requests|httpx|httpcore|aiohttp|huggingface_hub|botocore)\.")
"""Their exceptions."""
_UNREACHED: Final = compile_lazily(
    r"Connection (?:refused|reset by peer|timed out|aborted)|[Nn]ame or service not known|[Nn]ame resolution|nodename nor servname"
    r"|No address associated with hostname|Network is unreachable|No route to host|[Tt]imed out|Max retries exceeded|[Cc]an(?:no|')t connect"
    r"|[Cc]ouldn't connect|Remote end closed connection|CERTIFICATE_VERIFY_FAILED|Tunnel connection failed|All connection attempts failed"
)
SERVER_UNREACHED_CAUSE: Final = (
    "A server that the script asks over the network doesn't answer: its name isn't found, nobody listens there, or a firewall or a "
    "missing proxy is between. Compute nodes often have no way to the Internet."
)
SERVER_UNREACHED_FIXES: Final = (
    Fix("See from that host whether the server answers, and whether a proxy is set", ("env | grep -i _proxy", "curl -sSI URL")),
    Fix(
        "Or fetch it before the job, on a node that has a way out, and let the job read it from disk; for Hugging Face's Hub",
        ("export HF_HUB_OFFLINE=1",),
    ),
)  # fmt: skip


def server_unreached(raised: LoggedException) -> bool:
    """Whether the exception says that a server of the script's can't be reached."""
    by_client = any(_CLIENTS.search(frame.path.replace("\\", "/")) for frame in raised.frames)
    return (by_client or bool(_OF_CLIENTS.match(raised.exception))) and bool(
        _UNREACHED.search(f"{raised.exception}: {raised.message}")
    )
