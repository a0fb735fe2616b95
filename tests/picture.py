"""Makes the README's picture: a real report of this host in a shell with a few illnesses, as a terminal shows it.

    python -m tests.picture docs/report.svg

The illnesses are real while it runs: a 64 MiB /dev/shm in a mount namespace of its own (needs root), a low limit of open
files, a setting that nothing reads and one that names an interface which isn't there. The patient is the active environment.
"""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests.command import command, plain_environ

COLUMNS = 110
SETTINGS = {"NCCL_SOCKET_IFACE": "eth9", "GLOO_SOCKET_IFNAME": "eth9", "COLUMNS": str(COLUMNS)}


def sick_report() -> str:
    """The report with its colours, as ANSI codes."""
    check = shlex.join(command("check", "--nproc", "4"))
    sick = (
        "mount -t tmpfs -o size=64m tmpfs /dev/shm && ulimit -n 256 && hostname node07 && "
        "echo '192.0.2.2 node07' > /tmp/hosts && mount --bind /tmp/hosts /etc/hosts && " + check
    )
    line = shlex.join(["unshare", "--mount", "--uts", "bash", "-c", "mount -t tmpfs tmpfs /tmp && " + sick])
    environ = plain_environ() | SETTINGS | {"TERM": "xterm-256color", "FORCE_COLOR": "1"}
    return subprocess.run(["bash", "-c", line], env=environ, capture_output=True, text=True, check=False).stdout


def main() -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text("$ ddpdoctor check --nproc 4", "bold"))
    console.print(Text.from_ansi(sick_report()))
    target = Path(sys.argv[1])
    target.parent.mkdir(exist_ok=True)
    console.save_svg(str(target), title="ddpdoctor check", theme=MONOKAI)


if __name__ == "__main__":
    main()
