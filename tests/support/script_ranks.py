"""Runs scripts on two ranks over gloo, as torchrun would: one process imports torch once, and forks each rank from there.

What it runs has no GPU: a stand-in for `torch.cuda` says which GPU each rank asks for, of as many as a request says that there are.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.command import ROOT, plain_environ
from tests.support.waiting import slowdown

WORLD = 2
SECONDS = 60.0
"""After which ranks are ended, on a core of its own: nothing here needs so long."""


class Ran(NamedTuple):
    """How a script has run. codes: negative for a signal. said, words: what each rank wrote to standard output and standard error."""

    codes: list[int]
    said: list[str]
    words: list[str]


class Ranks:
    """The process that runs them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(
        self,
        script: Path,
        arguments: Sequence[str] = (),
        *,
        environ: Mapping[str, str],
        gpus: int = 0,
    ) -> Ran:
        """Run a script in its folder.

        Args:
            script: it.
            arguments: of it; {rank} stands for the rank.
            environ: beside what torchrun sets.
            gpus: of the stand-in; 0: there is none.
        """
        assert self._process.stdin
        assert self._process.stdout
        request = {
            "script": script.name,
            "folder": str(script.parent),
            "arguments": list(arguments),
            "environ": dict(environ),
            "gpus": gpus,
            "seconds": SECONDS * slowdown(),
        }
        print(json.dumps(request), file=self._process.stdin, flush=True)
        codes = json.loads(self._process.stdout.readline())
        outputs = [
            [(script.parent / f"rank-{rank}.{name}").read_text() for rank in range(WORLD)] for name in ("out", "err")
        ]
        return Ran(codes, *outputs)


@contextmanager
def started_ranks() -> Iterator[Ranks]:
    """The process, and its end."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.script_ranks"],
        cwd=ROOT,
        env=plain_environ() | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Ranks(process)
        assert process.stdin
        process.stdin.close()


# --- in that process ------------------------------------------------------------------------------------------------------------


def serve() -> None:
    """Import what scripts import, and what DDP imports by itself, and run one after the other."""
    import torch._dynamo  # noqa: F401
    import torch.utils.data.distributed  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


def _run(request: dict[str, Any]) -> list[int]:
    from torch.distributed import TCPStore

    # The launcher's, as torchrun's agent has it: the ranks are its clients.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pids = [_fork(rank, store.port, request) for rank in range(WORLD)]
    codes: dict[int, int] = {}
    signal.signal(signal.SIGALRM, lambda *_: _end([pid for pid in pids if pid not in codes]))
    signal.setitimer(signal.ITIMER_REAL, request["seconds"])
    while len(codes) < WORLD:
        pid, status = os.wait()
        codes[pid] = os.waitstatus_to_exitcode(status)
        if codes[pid]:
            _end([other for other in pids if other not in codes])
    signal.setitimer(signal.ITIMER_REAL, 0)
    return [codes[pid] for pid in pids]


def _end(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _fork(rank: int, port: int, request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.chdir(request["folder"])
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"rank-{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        of_launcher = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": WORLD, "LOCAL_WORLD_SIZE": WORLD}
        os.environ.update({name: str(number) for name, number in of_launcher.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0", **request["environ"])
        sys.argv = [request["script"], *(argument.format(rank=rank) for argument in request["arguments"])]
        sys.path[:0] = [os.getcwd(), *filter(None, os.environ.get("STAND_INS", "").split(":"))]  # noqa: PTH109
        _stand_in_for_gpus(request["gpus"])
        code = _code_of(request["script"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _code_of(script: str) -> int:
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        if ended.code is None:
            return 0
        return ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _stand_in_for_gpus(count: int) -> None:
    import torch

    current = [0]

    def choose(device: int) -> None:
        if device >= count:
            raise RuntimeError("CUDA error: invalid device ordinal")
        current[0] = device
        print(f"chooses cuda:{device}")

    def move(moved: Any, *_: object) -> Any:
        print(f"is on cuda:{current[0]}")
        return moved

    if count:
        torch.cuda.set_device = choose
        torch.nn.Module.cuda = torch.Tensor.cuda = move  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    serve()
