"""Asks py-spy for the Python stacks of processes, which it reads out of their memory without stopping them. Where it does so as
another user, that user may have it say anything, and as much as it likes."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, Final, TypeVar

import msgspec

from ddpdoctor.base.async_work import within
from ddpdoctor.base.ownership import ROOT
from ddpdoctor.base.text import masked
from ddpdoctor.facts.hang import Frame
from ddpdoctor.knowledge.torch_frames import PARENTS_FRAMES
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.programs import find_program, interpreter_of
from ddpdoctor.probes.run_as import (
    NotRunError,
    RunAsUser,
    environ_for,
    identity_for,
    identity_of,
    is_wary,
    working_folder_for,
)

SECONDS: Final = 2.0
"""A dump takes some 20 ms on a quiet machine."""
MAX_AT_ONCE: Final = 8
MAX_RETRIES: Final = 2
"""For a process whose stack was being changed while it was read."""
MAX_FRAMES: Final = 100
MAX_THREADS: Final = 64
MAX_OUTPUT_BYTES: Final = 16 << 20
"""Of each stream of py-spy's that are kept."""

NAMESPACES: Final = ("ns/mnt", "ns/user")
UNRESTRICTED_PTRACE: Final = "0"
"""Yama's setting by which users may look into their own processes."""

Frames = tuple[Frame, ...]
T = TypeVar("T")


def _says_something(record: logging.LogRecord) -> bool:
    """asyncio warns of a process that ends just as it is killed: its exit code is lost, for which nobody asks any more."""
    return "will report returncode 255" not in str(record.msg)


logging.getLogger("asyncio").addFilter(_says_something)


class PySpyTrouble(str, Enum):
    """Why there is no stack."""

    NONE = ""
    NO_PROGRAM = "py-spy isn't installed"
    NO_START = "py-spy can't be started"
    DENIED = "this user may not read its memory"
    CLOSED = "its own user may not read its memory"
    GONE = "it has ended"
    NO_PYTHON = "py-spy finds no Python in it"
    SLOW = "py-spy gave no answer in time"
    TORN = "its stack could not be read"


class Spied(msgspec.Struct, frozen=True, kw_only=True):
    """frames: of the main thread, the innermost first. others: (name, frames) of the other Python threads. said: py-spy's own
    words where there are no frames."""

    frames: Frames = ()
    others: tuple[tuple[str, Frames], ...] = ()
    trouble: PySpyTrouble = PySpyTrouble.NONE
    said: str = ""


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int | None = None


class _Thread(msgspec.Struct):
    """Thread in `py-spy dump --json`; what it prints beside this isn't needed."""

    frames: list[_Frame]
    thread_name: str | None = None
    os_thread_id: int | None = None


def py_spy() -> str | None:
    """The program that was installed with this interpreter, else the one on PATH; for root none that others could replace."""
    beside = Path(sys.executable).with_name("py-spy")
    if beside.is_file():
        return os.fspath(beside)
    found = find_program("py-spy", os.environ.get("PATH"))
    try:
        others = found and identity_for([file for file in (found, interpreter_of(found)) if file])
    except NotRunError:
        return None
    return None if others else found


async def spy(pids: Iterable[int], *, seconds: float = SECONDS) -> dict[int, Spied]:
    """Read where these processes are, by pid; none is held up. seconds: for each."""
    program = py_spy()
    turns = asyncio.Semaphore(MAX_AT_ONCE)

    async def read(pid: int) -> Spied:
        spied = Spied(trouble=PySpyTrouble.TORN if program else PySpyTrouble.NO_PROGRAM)
        async with turns:
            for _ in range(1 + MAX_RETRIES):
                if program and spied.trouble is PySpyTrouble.TORN:
                    spied = await _dump(program, pid, seconds)
        return spied

    wanted = tuple(dict.fromkeys(pids))
    return dict(zip(wanted, await side_by_side(map(read, wanted)), strict=True))


async def side_by_side(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at the same time, and return what each gives. Where we are stopped, each is cancelled once, and all have ended before this does.

    Raises:
        asyncio.CancelledError: we are stopped.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
    return [task.result() for task in tasks]


async def _dump(program: str, pid: int, seconds: float) -> Spied:
    # Without --nonblocking it would stop the process meanwhile.
    command = (program, "dump", "--json", "--nonblocking", "--pid", str(pid))
    try:
        code, output, complaint = await run_at(pid, command, seconds)
    except TimeoutError:  # Which is an OSError, too.
        return Spied(trouble=PySpyTrouble.SLOW)
    except OSError as error:
        return Spied(trouble=PySpyTrouble.NO_START, said=f"{program}: {error.strerror or error}")
    if code == 0:
        return understood(pid, output)
    spied = refused(pid, complaint)
    closed = spied.trouble is PySpyTrouble.DENIED and memory_reader(pid, Proc()) is not None
    return msgspec.structs.replace(spied, trouble=PySpyTrouble.CLOSED) if closed else spied


async def run_at(
    pid: int, command: tuple[str, ...], seconds: float, pass_fds: tuple[int, ...] = ()
) -> tuple[int, bytes, bytes]:
    """Run py-spy at that process, as `run` does, with no more rights than it takes."""
    if identity := memory_reader(pid, Proc()):
        # It may lie where other users can't go, which is for root to say, and not for them.
        with suppress(PermissionError):
            return await run(command, seconds, pass_fds, identity)
    return await run(command, seconds, pass_fds)


async def run(
    command: tuple[str, ...], seconds: float, pass_fds: tuple[int, ...] = (), identity: RunAsUser | None = None
) -> tuple[int, bytes, bytes]:
    """Run a command, and return its exit code and what it wrote to stdout and stderr.

    It is killed where it takes longer, or where we are stopped. It raises `OSError` where it can't be started, `TimeoutError` where
    it took longer. pass_fds: descriptors that it keeps. identity: as whom it runs, None for who we are.
    """
    # In a session of its own a Ctrl-C doesn't end it, but us, who end it.
    spying = await asyncio.create_subprocess_exec(
        *command,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        env=environ_for(identity, {name: os.environ[name] for name in os.environ if not name.startswith("RUST_")}),
        cwd=working_folder_for(identity),
        pass_fds=pass_fds,
        start_new_session=True,
        user=identity and identity.uid,
        group=identity and identity.gid,
        extra_groups=identity and identity.groups,
    )
    assert spying.stdout is not None
    assert spying.stderr is not None
    try:
        output, complaint, code = await within(
            seconds, asyncio.gather(_read(spying.stdout), _read(spying.stderr), spying.wait())
        )
        return code, output, complaint
    finally:
        if spying.returncode is None:
            with suppress(ProcessLookupError):
                spying.kill()
            # Reading the memory of a process that waits in the kernel may itself wait there, deaf to any signal.
            with suppress(TimeoutError):
                await within(1.0, spying.wait())


async def _read(stream: asyncio.StreamReader) -> bytes:
    """Read a stream to its end; only so much of it is kept."""
    pieces: list[bytes] = []
    left = MAX_OUTPUT_BYTES
    while piece := await stream.read(1 << 16):
        pieces.append(piece[:left])
        left -= len(pieces[-1])
    return b"".join(pieces)


def understood(pid: int, output: bytes) -> Spied:
    """Understand what `py-spy dump --json` printed of this process."""
    try:
        threads = msgspec.json.decode(output, type=list[_Thread])
    except msgspec.DecodeError as error:
        return Spied(trouble=PySpyTrouble.TORN, said=str(error))
    main = _main_thread(pid, threads)
    if main is None or not main.frames:
        return Spied(trouble=PySpyTrouble.TORN, said="the main thread has no frames")
    others = tuple(
        (masked(thread.thread_name or "")[:100], _frames(thread))
        for thread in threads[:MAX_THREADS]
        if thread is not main and thread.frames
    )
    return Spied(frames=_frames(main), others=others)


def _main_thread(pid: int, threads: list[_Thread]) -> _Thread | None:
    """The kernel's number tells it for certain, but not from outside of a container."""
    by_number = next((thread for thread in threads if thread.os_thread_id == pid), None)
    by_name = next((thread for thread in threads if thread.thread_name == "MainThread"), None)
    return by_number or by_name or (threads[0] if len(threads) == 1 else None)


def _frames(thread: _Thread) -> Frames:
    frames: list[Frame] = []
    for frame in thread.frames[:MAX_FRAMES]:
        if frame.filename.endswith(PARENTS_FRAMES):
            break
        line = max(frame.line or 0, 0)
        frames.append(Frame(masked(frame.name)[:200], masked(frame.filename)[:1000], line))
    return tuple(frames)


def refused(pid: int, complaint: bytes) -> Spied:
    """Why it printed nothing."""
    text = masked(complaint[:4000].decode("utf-8", "replace"))
    if "Permission Denied" in text or "Operation not permitted" in text or "os error 1)" in text:
        trouble = PySpyTrouble.DENIED
    elif not Path(f"/proc/{pid}").exists():
        trouble = PySpyTrouble.GONE
    elif "Failed to find python version" in text or "is not a python" in text.lower():
        trouble = PySpyTrouble.NO_PYTHON
    else:
        trouble = PySpyTrouble.TORN
    return Spied(trouble=trouble, said=next((line.strip()[:200] for line in text.splitlines() if line.strip()), ""))


def memory_reader(pid: int, proc: Proc) -> RunAsUser | None:
    """Decide as whom this process is read: None for who we are.

    Root's rights are needed where Yama lets users look into their processes' parents alone, and for a container's, whose
    files another user can't enter. That a process is closed to its own user is no such reason: it can bring that about.
    """
    if not is_wary():
        return None
    scope = proc.text("sys/kernel/yama/ptrace_scope", 16)  # Without Yama there is no such file.
    is_contained = any(proc.link(f"{pid}/{name}") != proc.link(f"self/{name}") for name in NAMESPACES)
    if scope not in ("", UNRESTRICTED_PTRACE) or is_contained:
        return None
    status = proc.status(pid)
    uids, gids = ({int(number) for number in status.get(name, "").split()} for name in ("Uid", "Gid"))
    if len(uids) != 1 or len(gids) != 1 or uids == {ROOT}:
        return None
    return identity_of(uids.pop())._replace(gid=gids.pop())
