"""Makes the README's pictures: real reports of sick hosts, as a terminal shows them.

    python -m tests.picture docs/report.svg docs/netcheck.svg docs/smoke.svg

report.svg: this host in a shell with a few illnesses, which are real while it runs: a 64 MiB /dev/shm in a mount namespace
of its own, a low limit of open files, a setting that nothing reads and one that names an interface which isn't there.
netcheck.svg: three hosts out of network namespaces, one with a packet filter. Both need root.
smoke.svg: four ranks on this host, of which one, by the tests' own fault, sleeps where the others go on.
The target Python is the active environment.
"""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from tests.support.command import command, plain_environ
from tests.support.namespaces import network
from tests.support.netcheck_hosts import start

COLUMNS = 110
TERMINAL = {"TERM": "xterm-256color", "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
SETTINGS = {"NCCL_SOCKET_IFACE": "eth9", "GLOO_SOCKET_IFNAME": "eth9"}
FILTER = (
    "add table inet filter",
    "add chain inet filter input { type filter hook input priority 0 ; }",
    "add rule inet filter input tcp dport 32768-60999 ct state new drop",
)


def sick_host() -> tuple[str, str]:
    """The command, and its report with its colours, as ANSI codes."""
    check = shlex.join(command("check", "--nproc", "4"))
    sick = (
        "mount -t tmpfs -o size=64m tmpfs /dev/shm && ulimit -n 256 && hostname node07 && "
        "echo '192.0.2.2 node07' > /tmp/hosts && mount --bind /tmp/hosts /etc/hosts && " + check
    )
    line = shlex.join(["unshare", "--mount", "--uts", "bash", "-c", "mount -t tmpfs tmpfs /tmp && " + sick])
    environ = plain_environ() | SETTINGS | TERMINAL
    done = subprocess.run(["bash", "-c", line], env=environ, capture_output=True, text=True, check=False)
    return "ddpdoctor check --nproc 4", done.stdout


def sick_fleet() -> tuple[str, str]:
    """The same of netcheck, as node 0 prints it."""
    given = ("--master-addr", "node0", "--nnodes", "3")
    with network("node0", "node1", "node2") as hosts:
        for line in FILTER:
            hosts[1].run("nft", *line.split())
        running = [start(host, *given, "--node-rank", str(rank), environ=TERMINAL) for rank, host in enumerate(hosts)]
        ended = [one.end() for one in running]
    return shlex.join(["ddpdoctor", "netcheck", *given, "--node-rank", "0"]), ended[0].stdout


def sick_training() -> tuple[str, str]:
    """The same of smoke."""
    fault = {"DDPDOCTOR_SMOKE_FAULT": '{"rank": 2, "stage": "training", "kind": "sleep"}'}
    given = ("smoke", "--nproc", "4", "--timeout", "10")
    environ = plain_environ() | fault | TERMINAL
    done = subprocess.run(command(*given), env=environ, capture_output=True, text=True, check=False)
    return shlex.join(["ddpdoctor", *given]), done.stdout


PICTURES = {"report.svg": sick_host, "netcheck.svg": sick_fleet, "smoke.svg": sick_training}


def main() -> None:
    for target in map(Path, sys.argv[1:]):
        typed, report = PICTURES[target.name]()
        console = Console(record=True, width=COLUMNS, file=io.StringIO())
        console.print(Text(f"$ {typed}", "bold"))
        console.print(Text.from_ansi(report))
        target.parent.mkdir(exist_ok=True)
        console.save_svg(str(target), title=" ".join(typed.split()[:2]), theme=SVG_EXPORT_THEME)


if __name__ == "__main__":
    main()
