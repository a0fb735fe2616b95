"""Parts for the tests of the GPU kit's own machinery."""

from __future__ import annotations

import subprocess
import sys
import time

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
