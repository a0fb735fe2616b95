"""What a part of the kit works with, and the list of all parts."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from tests.support.command import ROOT

MARK = "DDPDOCTOR_GPU_KIT"
"""In the environment of all that the kit starts: what is left of a part is found by it."""
KEPT_OUTPUT = 20_000
"""Characters of a command's output that are kept."""
LONGEST_SEEN = 8_000
"""Characters, as JSON, of one observation in the record; what is longer is cut."""
OWN_TRACEBACK = re.compile(r'(?m)^  File "[^"]*/ddpdoctor/(?:cli|engine|registry|examination|report|probes|jobs)\b')
"""A user's training may print tracebacks through `run`, and has none of these files in it."""
OUTPUT = "output.txt"
LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")


class FailedError(Exception):
    """What was seen is not what must be."""


class NotPossibleError(Exception):
    """This machine lacks something that the part needs."""


class Ran(NamedTuple):
    """How a command ended. code: as subprocess has it; None where it was ended at its deadline."""

    code: int | None
    stdout: str
    stderr: str
    seconds: float


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to work on. On a rehearsal `gpus` are those of the stand-in, and torch trains on the CPU."""

    gpus: int
    rehearsal: bool = False
    environ: dict[str, str] = {}
    """What all commands get on top of the kit's own environment."""

    @property
    def device(self) -> str:
        return "cpu" if self.rehearsal else "cuda"

    @property
    def backend(self) -> str:
        return "gloo" if self.rehearsal else "nccl"

    @property
    def ranks(self) -> int:
        """How many can train at once: one a GPU, four at most."""
        return min(self.gpus, 4)


class Kit:
    """One part at work.

    Args:
        machine: what there is.
        folder: the part's own, empty; what it keeps lies in `folder / "kept"`.
    """

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine = machine
        self.folder = folder
        self.prefix: list[str] = []
        """In front of every command: what runs it in another namespace."""
        self.seen: dict[str, Any] = {}
        self.differs: list[str] = []

    def saw(self, name: str, value: Any) -> None:
        """Note an observation; it stands in the record whatever comes of the part."""
        text = json.dumps(value, default=str)
        self.seen[name] = value if len(text) <= LONGEST_SEEN else f"{text[:LONGEST_SEEN]} ... ({len(text)} characters)"

    def note(self, text: str) -> None:
        """Add to what is shown where the part fails; it is on disk at once, so that it outlives a part that is killed."""
        with (self.folder / OUTPUT).open("a") as file:
            file.write(text + "\n")

    def hold(self, condition: object, otherwise: str) -> None:
        """Fail the part, with these words, unless the condition holds."""
        if not condition:
            raise FailedError(otherwise)

    def compare(self, what: str, expected: object, found: object) -> None:
        """Note a difference from what the code or the fixtures say, and go on."""
        if expected != found:
            self.differs.append(f"{what}: expected {expected!r}, found {found!r}")

    def needs_gpus(self, count: int) -> None:
        """End the part here where there are fewer."""
        if self.machine.gpus < count:
            raise NotPossibleError(f"takes {count} GPUs, and there is {self.machine.gpus}")

    def needs_gpu_itself(self, why: str) -> None:
        """End the part here on a rehearsal, in which nothing runs on a GPU."""
        if self.machine.rehearsal:
            raise NotPossibleError(f"a rehearsal without a GPU: {why}")

    def needs_program(self, name: str) -> str:
        """The path of that program; the part ends here where it isn't there."""
        path = shutil.which(name, path=self.environ()["PATH"])
        if path is None:
            raise NotPossibleError(f"{name} is not installed")
        return path

    def needs_root(self, why: str) -> None:
        """End the part here for an ordinary user."""
        if os.geteuid() != 0:
            raise NotPossibleError(f"takes root: {why}")

    def keep(self, name: str, content: str | bytes) -> None:
        """Keep a file of the real world, to become a fixture."""
        path = self.folder / "kept" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    def environ(self, **settings: str) -> dict[str, str]:
        """The environment of what a part starts: ours, without a launcher's settings."""
        own = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
        packages = ":".join(filter(None, [str(ROOT), own.get("PYTHONPATH", "")]))
        kits = {"PATH": programs(own.get("PATH", os.defpath)), "PYTHONPATH": packages, "COLUMNS": "150"}
        return {**own, **self.machine.environ, **kits, MARK: str(self.folder), **settings}

    def run(self, command: Sequence[str | Path], seconds: float = 60, **settings: str) -> Ran:
        """Run a command to its end, or to its deadline."""
        words = [*self.prefix, *(str(word) for word in command)]
        began = time.monotonic()
        code: int | None = None
        # Files and no pipes: whatever a command leaves running would keep a pipe open, and us waiting.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen(
                words,
                env=self.environ(**settings),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                end_group(process.pid)
                with suppress(subprocess.TimeoutExpired):  # One in the kernel dies when it returns from there.
                    process.wait(timeout=5)
            stdout, stderr = (_text_of(file) for file in (out, err))
        took = time.monotonic() - began
        ended = f"exit {code}" if code is not None else f"ended after {seconds:.0f} s"
        said = "\n".join(text[-KEPT_OUTPUT:] for text in (stdout, stderr) if text)
        self.note(f"$ {shlex.join(words)}\n{said}\n[{ended}, {took:.1f} s]")
        return Ran(code, stdout, stderr, took)

    def ddpdoctor(self, *arguments: str | Path, seconds: float = 90, **settings: str) -> Ran:
        """Run one of ddpdoctor's commands, which may find what it likes and must not break."""
        ran = self.run([sys.executable, "-m", "ddpdoctor", *arguments], seconds, **settings)
        self.hold(ran.code is not None, f"ddpdoctor {shlex.join(map(str, arguments))} did not end in {seconds:.0f} s")
        self.hold(not OWN_TRACEBACK.search(ran.stderr), "ddpdoctor printed a traceback of its own")
        return ran

    def report(self, *arguments: str | Path, seconds: float = 90, **settings: str) -> dict[str, Any]:
        """What it says with --json."""
        ran = self.ddpdoctor(*arguments, "--json", seconds=seconds, **settings)
        try:
            found: dict[str, Any] = json.loads(ran.stdout)
        except ValueError:
            raise FailedError(f"ddpdoctor {arguments[0]} --json printed no JSON, exit code {ran.code}") from None
        return found

    def snapshot(self, *arguments: str) -> dict[str, Any]:
        """This host's facts, kept for the fixtures as well."""
        ran = self.ddpdoctor("snapshot", *arguments)
        self.hold(ran.code == 0, f"ddpdoctor snapshot ended with exit code {ran.code}")
        self.keep("snapshot.json", ran.stdout)
        found: dict[str, Any] = json.loads(ran.stdout)
        return found

    def asked_of_torch(self, code: str, seconds: float = 60, rehearsed: Any = None, **settings: str) -> Any:
        """What this Python prints as JSON, with torch imported.

        Args:
            rehearsed: the answer of a rehearsal, whose torch knows no GPU.
        """
        if self.machine.rehearsal and rehearsed is not None:
            return rehearsed
        ran = self.run([sys.executable, "-c", f"import json, torch\n{code}"], seconds, **settings)
        self.hold(ran.code == 0, f"torch itself failed: {(ran.stderr.strip().splitlines() or ['no word'])[-1]}")
        return json.loads(ran.stdout.strip().splitlines()[-1])

    @contextmanager
    def started(self, code: str, seconds: float = 60) -> Iterator[int]:
        """The pid of a Python that runs this code, once it has printed "ready"; ended whatever happens."""
        path = self.folder / f"started-{time.monotonic_ns()}.txt"
        with path.open("wb") as output:
            process = subprocess.Popen(
                [*self.prefix, sys.executable, "-c", code],
                env=self.environ(), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            until = time.monotonic() + seconds
            while "ready" not in path.read_text(errors="replace"):
                self.hold(process.poll() is None, f"it ended with exit code {process.returncode}")
                self.hold(time.monotonic() < until, f"it was not ready in {seconds:.0f} s")
                time.sleep(0.05)
            yield process.pid
        finally:
            process.kill()
            process.wait()
            self.note(f"[what a process printed]\n{path.read_text(errors='replace')[-KEPT_OUTPUT:]}")

    @contextmanager
    def training(
        self, ranks: int | None = None, *, fault: str = "", settings: Mapping[str, str] | None = None
    ) -> Iterator[Training]:
        """A real DDP training by torchrun, ended whatever happens.

        Args:
            ranks: all that the machine has GPUs for by default.
            fault: "KIND@STEP" of rank 0, or of the last rank; see tests/gpu/training.py.
        """
        job = Training(self, ranks or self.machine.ranks, fault, settings or {})
        try:
            yield job
        finally:
            job.end()
            self.note(f"[what the training printed]\n{job.printed()[-KEPT_OUTPUT:]}")


class Training:
    """A torchrun of tests/gpu/training.py. Markers of a rank: "rank-N.pid", "rank-N.step-K", "rank-N.fault"."""

    def __init__(self, kit: Kit, ranks: int, fault: str, settings: Mapping[str, str]) -> None:
        self.ranks = ranks
        self.folder = kit.folder / f"training-{time.monotonic_ns()}"
        self.folder.mkdir()
        script = Path(__file__).with_name("training.py")
        own = {"OMP_NUM_THREADS": "1", "GPU_KIT_FOLDER": str(self.folder), "GPU_KIT_FAULT": fault}
        with (self.folder / "output.txt").open("wb") as output:
            self.process = subprocess.Popen(
                [*kit.prefix, *torchrun(ranks), str(script), kit.machine.device],
                env=kit.environ(**own, **settings, **{MARK: str(self.folder)}),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait_for(self, marker: str, seconds: float = 60) -> str:
        """The marker's text, once a rank has left it."""
        until = time.monotonic() + seconds
        while True:
            with suppress(FileNotFoundError):
                return (self.folder / marker).read_text()
            if self.process.poll() is not None and not (self.folder / marker).exists():
                raise FailedError(f"the training ended with exit code {self.process.returncode} before {marker}")
            if time.monotonic() > until:
                raise FailedError(f"the training left no {marker} in {seconds:.0f} s")
            time.sleep(0.05)

    def pids(self) -> list[int]:
        """Of the ranks, by rank, once all of them have begun."""
        return [int(self.wait_for(f"rank-{rank}.pid")) for rank in range(self.ranks)]

    def until_it_trains(self) -> None:
        """Wait until each rank has done a step with the others."""
        for rank in range(self.ranks):
            self.wait_for(f"rank-{rank}.step-1")

    def kill_launcher(self) -> None:
        """Kill torchrun as the kernel does where memory is short: its ranks are told nothing."""
        mark = b"\0-m\0torch.distributed.run\0"
        for pid in marked(str(self.folder)):
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if mark in words and words.startswith(os.fsencode(sys.executable)):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=20)

    def printed(self) -> str:
        return (self.folder / "output.txt").read_text(errors="replace")

    def end(self) -> None:
        end_all_marked(str(self.folder))
        with suppress(subprocess.TimeoutExpired):  # The part's end tells of what can't be ended.
            self.process.wait(timeout=10)


def torchrun(ranks: int) -> list[str]:
    """The launch of a job on this host alone, whose own name need not resolve: --standalone meets under that name."""
    meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    return [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", *meeting, f"--nproc-per-node={ranks}"]


def programs(path: str) -> str:
    """PATH, and behind it what lies beside this Python and in a folder of unpacked wheels: ninja and py-spy are such programs."""
    beside = [
        str(Path(sys.executable).parent),
        *(f"{folder}/bin" for folder in sys.path if (Path(folder) / "bin").is_dir()),
    ]
    return ":".join(dict.fromkeys([*path.split(":"), *beside]))


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def end_group(leader: int) -> None:
    """Kill a session that we started, and nobody else's."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def environ_of(pid: int) -> str:
    """What that process was started with; "" where it can't be read."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def marked(mark: str) -> list[int]:
    """The processes, other than this one, whose environment has the kit's mark and that text in it."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208
    return [pid for pid in pids if pid != os.getpid() and has_mark(environ_of(pid), mark)]


def has_mark(environ: str, mark: str) -> bool:
    """Whether it is of that folder or one below: "check" is no beginning of "checkpoint"."""
    return f"{MARK}={mark}\0" in environ or f"{MARK}={mark}/" in environ


def end_all_marked(mark: str, seconds: float = 10) -> list[int]:
    """Kill all that have the mark, and wait until they are gone; those that don't go."""
    until = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < until:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    return left


class Part(NamedTuple):
    """name: what --only takes. seconds: what it takes as a rule. beside: others that are so, too, may run at the same time."""

    name: str
    title: str
    seconds: float
    work: Callable[[Kit], None]
    beside: bool = False

    def deadline(self, unit: float) -> float:
        """Seconds after which it is ended, and has failed. unit: seconds of an import of torch on this machine."""
        return 1.5 * self.seconds + 20 + 8 * min(unit, 10)


PARTS: list[Part] = []
"""The most telling first (tests/gpu/parts): where the time is short, the last are left out."""


def part(
    name: str, title: str, seconds: float = 20, *, beside: bool = False
) -> Callable[[Callable[[Kit], None]], Callable[[Kit], None]]:
    """Register a part of the kit."""

    def registered(work: Callable[[Kit], None]) -> Callable[[Kit], None]:
        PARTS.append(Part(name, title, seconds, work, beside))
        return work

    return registered
