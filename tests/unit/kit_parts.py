"""Parts for the tests of the GPU kit's own machinery."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.gpu.kit import FailedError, Kit, NotPossibleError, part


@part("test-hangs", "starts a process and waits for ever", 1)
def hangs(kit: Kit) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], env=kit.environ(), start_new_session=True
    )
    (kit.folder / "pid").write_text(str(process.pid))
    time.sleep(600)


@part("test-fails", "sees what must not be", 1)
def fails(kit: Kit) -> None:
    kit.run([sys.executable, "-c", "print('what it printed')"])
    kit.saw("number", 7)
    kit.compare("a colour", "red", "blue")
    raise FailedError("two and two are five")


@part("test-not-possible", "lacks something", 1)
def not_possible(kit: Kit) -> None:
    raise NotPossibleError("there is no such machine")


@part("test-breaks", "has a bug", 1)
def breaks(kit: Kit) -> None:
    raise KeyError("bug")


@part("test-dies", "kills itself", 1)
def dies(kit: Kit) -> None:
    import os

    os.kill(os.getpid(), 9)


@part("test-passes", "keeps a file", 1)
def passes(kit: Kit) -> None:
    kit.keep("recorded.txt", "from the real world")


def meets(other: str) -> Callable[[Kit], None]:
    def work(kit: Kit) -> None:
        shared = kit.folder.parent.parent
        (shared / f"there-{other}").touch()
        until = time.monotonic() + 20
        while len(list(shared.glob("there-*"))) < 2:
            kit.hold(time.monotonic() < until, "the other one did not come")
            time.sleep(0.05)

    return work


part("test-meets-one", "waits for the other one", 1, beside=True)(meets("one"))
part("test-meets-two", "waits for the other one", 1, beside=True)(meets("two"))


@part("test-tells-names", "sees and keeps what its machine can be told by", 1)
def tells_names(kit: Kit) -> None:
    told = f"{socket.gethostname()} at {Path.home()} in {kit.folder}"
    kit.saw("told", told)
    kit.keep("told.txt", told)
    kit.keep("dump", b"\x80\x02" + told.encode())
    kit.saw("much", "x" * 100_000)
