"""The real store and collectives of torch, run as one rank in the target Python, and what became of it in plain words."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any, Final

import msgspec

from ddpdoctor.base.private_folders import Needs, NoFolderError, private_folder
from ddpdoctor.base.text import masked
from ddpdoctor.network_check.protocol.messages import ABORTED, Collect, Collected, OrderFailed
from ddpdoctor.probes.subprocesses import EndedProgram, start
from ddpdoctor.probes.target_python.asking import last_lines

SCRIPT = Path(__file__).parents[2] / "probes" / "target_python" / "collective.py"

FOLDER: Final = Needs(prefix="ddpdoctor-netcheck-")

MAX_WORDS_LENGTH = 600
"""Characters of what torch said."""

LOG_PREFIX = re.compile(r"^(?:\[rank\d+\]:\s*)?\[[EWF]\d{4} [^\]]*\]\s*(?:\[c10d\]\s*)?")
""" "[W1121 12:00:00.123456789 socket.cpp:764] [c10d] ", as torch's C++ begins a line."""

NO_MESSAGE = re.compile(
    r"\s|frame #\d+|Exception raised from|Traceback|<omitting |<unknown function>|.*hostname of the client socket cannot be"
)
"""How a line of a stack begins, Python's or C++'s; and torch's complaint that the name servers don't know an address, which
does no harm."""

SOURCE_FOLDER = re.compile(r"(?<![^\s\]:])([^\s\]:/]*)/[^\s\]:]*/(?=\w+\.(?:cc|cpp|h|hpp|cu):\d+)")
""" "/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/" before "pair.cc:152"."""


async def collect(order: Collect, *, python: str, environ: Mapping[str, str]) -> Collected | OrderFailed:
    """Run this node's rank to its end, or kill it and all that it started after `order.seconds`, or when it is cancelled
    with ABORTED. An `OrderFailed` says that there was nothing to be tested, as where torch isn't installed.

    Args:
        order: what node 0 asked for.
        python: the target Python's interpreter.
        environ: the settings that training would inherit there.

    Raises:
        CancelledError: it was cancelled by something else; the rank is killed.
    """
    word = secrets.token_hex(16)
    told = json.dumps(
        {
            "word": word,
            "backend": order.backend,
            "master": order.master,
            "port": order.port,
            "rank": order.rank,
            "world_size": order.world_size,
            "seconds": order.seconds,
        }
    )
    with _log_of_nccl(order.backend, environ) as log:
        settings = {**environ, **_settings(order.backend, log)}
        began = asyncio.get_running_loop().time()
        started = start([python, os.fspath(SCRIPT), told], environ=settings)
        try:
            ended = await asyncio.to_thread(started.wait, order.seconds)
        except asyncio.CancelledError as error:
            started.kill()
            if error.args != (ABORTED,):
                raise
            ended = await asyncio.to_thread(started.wait, 1.0)
            ended = msgspec.structs.replace(ended, returncode=None, timed_out=True)
        seconds = asyncio.get_running_loop().time() - began
        return _understood(ended, word, seconds, _warnings(log))


@contextmanager
def _log_of_nccl(backend: str, environ: Mapping[str, str]) -> Iterator[Path | None]:
    """The file that it goes to for the time of the run; None with gloo, and where there is no place: then NCCL prints it."""
    if backend != "nccl":
        yield None
        return
    try:
        folder = Path(private_folder(environ, FOLDER).path)
    except NoFolderError:
        yield None
        return
    try:
        yield folder / "nccl"
    finally:
        rmtree(folder, ignore_errors=True)


def _settings(backend: str, log: Path | None) -> dict[str, str]:
    """Settings for this run alone."""
    # One thread is enough; resolving C++ addresses for a message may take torch minutes.
    settings = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_ADDR2LINE": "1"}
    if backend == "nccl":
        # Faults of the transport are to appear when NCCL connects, not at first use.
        settings |= {"NCCL_RUNTIME_CONNECT": "0", "NCCL_DEBUG": "INFO"}
    if log is not None:
        settings["NCCL_DEBUG_FILE"] = os.fspath(log)
    return settings


def _understood(ended: EndedProgram, word: str, seconds: float, warnings: str) -> Collected | OrderFailed:
    told = _told(ended.stdout, word)
    if not told:
        return OrderFailed(why=f"the target Python can't be asked: {_silence(ended, seconds)}")
    if "absent" in told:
        return OrderFailed(why=str(told["absent"])[:MAX_WORDS_LENGTH])
    ok = told.get("ok") is True
    stage = str(told.get("stage", "import"))[:MAX_WORDS_LENGTH]
    hung = ended.timed_out and not ok and "error" not in told
    words = "" if ok else SOURCE_FOLDER.sub(r"\1", _words(told, ended, seconds, warnings))
    return Collected(stage=stage, ok=ok, words=words[:MAX_WORDS_LENGTH], seconds=round(seconds, 3), hung=hung)


def _told(stdout: bytes, word: str) -> dict[str, Any]:
    """All that stands between the words, the later over the earlier."""
    told: dict[str, Any] = {}
    for block in stdout.split(word.encode()):
        if block.startswith(b"{") and block.endswith(b"}") and b"\n" not in block:
            told.update(json.loads(block))
    return told


def _words(told: dict[str, Any], ended: EndedProgram, seconds: float, warnings: str) -> str:
    """torch's own words, or how it ended with the last thing that was said before."""
    if "error" in told:
        words = masked(str(told["error"]))
        return f"{words}; NCCL: {warnings}" if warnings else words
    if ended.timed_out:
        end = f"no end within {seconds:.0f} s"
    elif ended.signal_name:
        end = f"ended by {ended.signal_name}"
    else:
        end = f"ended with exit code {ended.returncode}"
    said = warnings or _last_words(ended.stderr)
    return f'{end}; it last said "{said}"' if said else end


def _silence(ended: EndedProgram, seconds: float) -> str:
    if ended.failed_to_start:
        return f"it can't be started: {ended.failed_to_start}"
    if ended.timed_out:
        return f"no answer within {seconds:.0f} s"
    if ended.signal_name:
        return f"it was ended by {ended.signal_name}"
    said = last_lines(ended.stderr, 1) or last_lines(ended.stdout, 1)
    end = f"it ended with exit code {ended.returncode}"
    return f'{end} and said "{said[:100]}"' if said else end


def _last_words(stderr: bytes) -> str:
    """The last error that torch logged; else the last line that is a message: no frame of a stack, and not empty."""
    lines = [line for line in last_lines(stderr, 200).splitlines() if line.strip() and not NO_MESSAGE.match(line)]
    errors = [line for line in lines if LOG_PREFIX.match(line) and "[E" in line[:12]]
    said = next(reversed(errors or lines), "")
    return LOG_PREFIX.sub("", said.strip())[:300]


def _warnings(log: Path | None) -> str:
    """The last lines with WARN of NCCL's own log; "" where there are none."""
    if log is None:
        return ""
    try:
        lines = last_lines(log.read_bytes(), 2000).splitlines()
    except OSError:
        return ""
    found = [line.partition("NCCL WARN ")[2].strip() for line in lines if "NCCL WARN " in line]
    return "; ".join(found[-3:])[:300]
