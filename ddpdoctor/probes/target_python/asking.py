"""Runs `inquiry.py` in the target Python's interpreter, and says what became of it in plain words."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any, Literal

import msgspec

from ddpdoctor.base.text import masked
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.files import working_folder
from ddpdoctor.probes.run_as import NotRunError, code_of, identity_for
from ddpdoctor.probes.subprocesses import EndedProgram, start

Mode = Literal["interpreter", "torch"]

INQUIRY = Path(__file__).with_name("inquiry.py")
SECONDS = {"interpreter": 10.0, "torch": 45.0}
"""How long each may take."""


class Answer(msgspec.Struct, frozen=True):
    """state, detail: as in `TargetPython`, or "not-run" where root doesn't run it. told: what it said before it ended, however it ended."""

    state: str
    detail: str = ""
    told: dict[str, Any] = {}
    ended: EndedProgram = EndedProgram()


def ask(context: Context, mode: Mode, seconds: float | None = None) -> Answer:
    """Ask the target Python, once for all probes.

    Both modes run side by side; "torch" imports torch there, which takes seconds. A target Python that doesn't answer as an interpreter
    isn't waited for any longer. seconds: `SECONDS` by default.
    """
    answer: Answer = context.once(f"target Python {mode}", lambda: _ask(context, mode, seconds or SECONDS[mode]))
    return answer


def why_silent(answer: Answer) -> Unknown:
    """The reason for what isn't known because the interpreter can't be asked."""
    return Unknown(f"the target Python can't be asked: {answer.detail}")


def maybe(told: dict[str, Any], name: str, doing: str) -> Any:
    """The answer to one question: a value (lists as tuples), or `Unknown` with what went wrong while `doing` it."""
    if name not in told:
        return Unknown(f"{doing} gave no answer")
    state, value = told[name]
    if state != "ok":
        return Unknown(f"{doing} failed: {value}")
    return tuple(value) if isinstance(value, list) else value


def ask_interpreter(context: Context, name: str, doing: str) -> Any:
    """One answer of the target Python about itself, as `maybe` has it."""
    answer = ask(context, "interpreter")
    return maybe(answer.told, name, doing) if answer.state == "ok" else why_silent(answer)


def last_lines(output: bytes, count: int = 25) -> str:
    """The end of what was printed, readable whatever the bytes are."""
    lines = output[-100_000:].decode("utf-8", "replace").strip().splitlines()
    return "\n".join(masked(line)[:500] for line in lines[-count:])


def _ask(context: Context, mode: Mode, seconds: float) -> Answer:
    unusable = _unusable(context.python)
    if unusable is not None:
        return unusable
    code = code_of(context.python)
    try:
        identity = identity_for(code)
    except NotRunError as error:
        return Answer("not-run", str(error))
    # As the secrets module makes them, which loads OpenSSL first.
    words = os.urandom(16).hex(), os.urandom(16).hex()
    until = time.monotonic() + seconds
    # Another user may not be allowed to read our files.
    script, stdin = (os.fspath(INQUIRY), b"") if identity is None else ("-", INQUIRY.read_bytes())
    started = start(
        [context.python, script, mode, *words, str(seconds), working_folder()],
        environ=context.environ,
        stdin=stdin,
        loads=code,
    )
    if mode == "torch":
        interpreter = ask(context, "interpreter")
        if interpreter.state != "ok":
            started.kill()
            return interpreter
    return _understood(context.python, started.wait_until(until), words, seconds)


def _unusable(python: str) -> Answer | None:
    """Tell what is wrong with the path itself; None if nothing."""
    if os.path.isdir(python):
        return Answer("not-executable", "it is a folder, without a bin/python in it")
    try:
        os.stat(python)
    except PermissionError:
        return Answer("not-executable", _closed(python))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        if os.path.islink(python):
            return Answer("missing", f"it is a link to {os.path.realpath(python)}, which doesn't exist any more")
        where = "there is no such file" if os.sep in python else "there is no such command on PATH"
        return Answer("missing", where)
    except OSError as error:
        return Answer("not-executable", f"it can't be looked at: {error.strerror}")
    if not os.access(python, os.X_OK):
        return Answer("not-executable", "it is a file that this user may not execute")
    return None


def _closed(python: str) -> str:
    """Say where its links lead, and the first folder on the way that keeps this user out."""
    target = Path(os.path.realpath(python))
    folder = next((parent for parent in reversed(target.parents) if not os.access(parent, os.X_OK)), target.parent)
    leads = "" if os.fspath(target) == python else f" (it is a link to {target})"
    return f"this user may not enter {folder}{leads}"


def _understood(python: str, ended: EndedProgram, words: tuple[str, str], seconds: float) -> Answer:
    told = _told(ended.stdout, words)
    if "too_old" in told:
        return Answer("too-old", f"it is Python {told['too_old']}; ddpdoctor asks Python 3.8 or later", told, ended)
    if told:
        return Answer("ok", "", told, ended)
    if ended.failed_to_start:
        # The file is there and executable: what is missing is the program that its first line or its ELF header names.
        missing = ended.failed_to_start == os.strerror(2)
        why = "the program that runs it, or its loader, isn't there" if missing else ended.failed_to_start
        return Answer("not-executable", f"it can't be started: {why}", ended=ended)
    if ended.timed_out:
        return Answer("hangs", f"no answer within {seconds:.0f} s", ended=ended)
    if ended.signal_name:
        return Answer("dies", f"it was ended by {ended.signal_name}", ended=ended)
    complaint = _complaint(ended.stderr)
    if ended.returncode and re.search(rb"(?m)^(?:Fatal Python error|Traceback \(most recent)", ended.stderr):
        return Answer("dies", f"it ended with exit code {ended.returncode}: {complaint}", ended=ended)
    printed = last_lines(ended.stdout, 1)[:100] or complaint[:100]
    said = f'it printed "{printed}"' if printed else "it printed nothing"
    return Answer("not-python", f"{said} and ended with exit code {ended.returncode}", ended=ended)


def _complaint(stderr: bytes) -> str:
    """The line that says most: Python's fatal error, else the last one."""
    text = last_lines(stderr, 200)
    fatal = re.search(r"(?m)^Fatal Python error: .*$", text)
    # The stack of a start that failed comes after the exception.
    named = re.findall(r"(?m)^\w*(?:Error|Exception|Exit)\b.*$", text)
    lines = [found for found in (fatal[0] if fatal else "", named[-1] if named else "") if found]
    return "; ".join(lines) or last_lines(stderr, 1)


def _told(stdout: bytes, words: tuple[str, str]) -> dict[str, Any]:
    """All that stands between the two words, put together."""
    told: dict[str, Any] = {}
    for block in re.findall(re.escape(words[0]).encode() + b"(.*?)" + re.escape(words[1]).encode(), stdout, re.DOTALL):
        try:
            told.update(_printable(json.loads(block)))
        except ValueError:
            continue  # Something was printed into the middle of it by another thread.
    return told


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return {name: _printable(item) for name, item in value.items()} if isinstance(value, dict) else value
