"""Illnesses for the closed loop: how each is made, and what is to become of it. The README's table is made of the same list.

Each is made, judged and mended in one bash, so that what a fix exports or unsets counts from then on, as in a user's own.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import msgspec

from tests.support.command import ROOT
from tests.support.namespaces import network
from tests.support.netcheck_hosts import sudo_shim
from tests.support.own_pids import own_pids


class Done(msgspec.Struct, frozen=True):
    """How one command ended."""

    code: int
    stdout: str
    stderr: str


class Shell:
    """A bash that a user sits at, in a folder of their own.

    around: what stands before `bash` on its command line: namespaces, another user.
    """

    def __init__(self, folder: Path, around: Sequence[str] = ()) -> None:
        self.folder = folder / "home"
        self.folder.mkdir()
        self._said = folder / "said"
        self._said.mkdir()
        shims = folder / "shims"
        shims.mkdir()
        sudo_shim(shims)
        ours = shims / "ddpdoctor"
        ours.write_text(
            f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} -m ddpdoctor "$@"\n'
        )
        ours.chmod(0o755)
        binaries = Path(sys.executable).parent
        environ = {
            "PATH": f"{shims}:{binaries}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "VIRTUAL_ENV": sys.prefix,
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._bash = subprocess.Popen(
            [*around, "bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=self.folder,
            env=environ,
            text=True,
        )

    def do(self, command: str) -> Done:
        """Runs it in this shell, word for word, to its end."""
        assert self._bash.stdin
        assert self._bash.stdout
        out, err = self._said / "out", self._said / "err"
        print(
            f"{{ {command}\n}} </dev/null >{shlex.quote(str(out))} 2>{shlex.quote(str(err))}; echo done $?",
            file=self._bash.stdin,
        )
        self._bash.stdin.flush()
        line = self._bash.stdout.readline()
        assert line.startswith("done "), f"the shell ended at: {command}"
        return Done(int(line.split()[1]), out.read_text(errors="replace"), err.read_text(errors="replace"))

    def answered(self, command: str, answer: str) -> Done:
        """Runs it at a terminal, and types that when it asks."""
        return self.do(f"echo {shlex.quote(answer)} | script -qefc {shlex.quote(command)} /dev/null")

    def close(self) -> None:
        assert self._bash.stdin
        self._bash.stdin.close()
        try:
            self._bash.wait(10)
        except subprocess.TimeoutExpired:
            self._bash.kill()
            self._bash.wait()


@contextmanager
def at_home(folder: Path) -> Iterator[Shell]:
    """On this host as it is."""
    shell = Shell(folder)
    try:
        yield shell
    finally:
        shell.close()


@contextmanager
def with_mounts(folder: Path) -> Iterator[Shell]:
    """In a mount namespace, where what it mounts is nobody else's."""
    shell = Shell(folder, ["unshare", "--mount"])
    try:
        yield shell
    finally:
        shell.close()


USER = ("setpriv", "--reuid=65533", "--regid=65533", "--clear-groups", "--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override", "--bounding-set=-all,+dac_override")  # fmt: skip
"""A user whom limits bind, and who may read all files, since the interpreter may lie in root's home."""


@contextmanager
def as_user(folder: Path) -> Iterator[Shell]:
    """As another user than root, whom no limit of processes binds."""
    shell = Shell(folder, USER)
    try:
        yield shell
    finally:
        shell.close()


@contextmanager
def on_a_node(folder: Path) -> Iterator[Shell]:
    """On n1, one of two hosts that have a network, names and files of their own."""
    with network("n1", "n2") as (first, _):
        # Files that `ip netns exec` mounts over /etc/hosts and others are this shell's for as long as it lives.
        shell = Shell(folder, first.command())
        try:
            yield shell
        finally:
            shell.close()


@contextmanager
def with_own_pids(folder: Path) -> Iterator[Shell]:
    """As in a container: with processes and ports of its own, and a first process that adopts orphans."""
    with own_pids() as host:
        shell = Shell(folder, host.prefix)
        try:
            yield shell
        finally:
            shell.close()


class Illness(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table.

    slug: what `check` must find. made: bash lines that make a healthy shell ill; words: the same for the README, where the
    lines themselves say too little. options: of `check`. fix: which of the printed fixes is carried out, from 0.
    carried_out: its commands, `...` for what differs from host to host.

    smoke_says: what smoke prints while it is ill; "" where it passes all the same. Then job is a command that fails
    while it is ill and works afterwards, job_words the same for the README, and job_says what it prints. Without a job the
    illness costs time alone, or bites on several hosts, which harmless says: shown is then a command that says what is wrong,
    ill, while it is there, and well afterwards.
    """

    name: str
    slug: str
    made: str
    carried_out: str
    options: str = ""
    fix: int = 0
    words: str = ""
    smoke_says: str = ""
    job: str = ""
    job_words: str = ""
    job_says: str = ""
    harmless: str = ""
    shown: str = ""
    ill: str = ""
    well: str = ""
    answer: str = ""
    """What is typed when the fix's command asks."""
    thorough: bool = False
    """Only with -m thorough: much like another, and each takes two cores some four seconds."""
    place: Callable[[Path], AbstractContextManager[Shell]] = at_home
    prepared: str = ""
    """Bash lines for what a healthy user has, too."""


SAVE_PINNED = """
import sys, torch
torch.serialization.location_tag = lambda storage: "".join(["cuda:", "3"])
torch.save(torch.nn.Linear(4, 4).state_dict(), sys.argv[1])
"""
LOAD = "import torch; torch.load('ckpt.pt')"
JOIN = (
    "import datetime, torch.distributed as d; "
    "d.init_process_group('gloo', rank=0, world_size=1, timeout=datetime.timedelta(seconds=3))"
)
LOADER = (
    "import torch; data = torch.zeros(64, 2 ** 20); "
    "list(torch.utils.data.DataLoader(data, batch_size=16, num_workers=2))"
)
MANY_BATCHES = "import torch; list(torch.utils.data.DataLoader(range(1000), num_workers=2))"
SAVE = "import tempfile, torch; torch.save(torch.zeros(2 ** 20), tempfile.mkdtemp() + '/ckpt.pt')"
THREADS = (
    "import threading, time; all = [threading.Thread(target=time.sleep, args=(1,)) for _ in range(80)]; "
    "[one.start() for one in all]"
)
GLOO_LISTENS = """
import ipaddress, torch.distributed as d
d.init_process_group('gloo', init_method='file:///proc/self/cwd/meeting', rank=0, world_size=1)
for line in list(open('/proc/net/tcp'))[1:]:
    local, state = line.split()[1], line.split()[3]
    if state == '0A':
        print('gloo listens on', ipaddress.ip_address(bytes.fromhex(local[:8])[::-1]))
d.destroy_process_group()
"""
"""In a network of its own, in which nobody else listens. The file for the meeting is gone afterwards."""
ORPHANED = """
import os, torch, torch.distributed as d
os.environ.update(MASTER_PORT='29713', TORCHELASTIC_USE_AGENT_STORE='False')
d.init_process_group('gloo')
open(f'rank-{d.get_rank()}.ready', 'x').close()
d.all_reduce(torch.ones(1)) if d.get_rank() else d.barrier()
"""
"""Rank 0 keeps the store, and so the port; each rank waits in another collective."""
TAKE_THREADS = (
    "import os, torch; more = 2 * torch.get_num_threads() > len(os.sched_getaffinity(0)); "
    "print('two ranks take', 'more' if more else 'no more', 'threads than there are cores')"
)
"""torch takes at most as many as there are cores with MKL, whatever is asked for."""
LISTEN = "import socket, time; s = socket.socket(); s.bind(('', 29713)); s.listen(); open('listening', 'x').close(); time.sleep(600)"
SECONDS = 120
"""How long a state is waited for; it is reached within a few seconds, but on a machine that has much else to do."""


def python(code: str) -> str:
    return f"python -c {shlex.quote(code)}"


def until(state: str, shows: str) -> str:
    """Bash that waits for a state, a test of bash's own; where it isn't reached in time, it fails with what that file holds."""
    late = f'echo "waited {SECONDS} s for" {shlex.quote(state)}; cat {shows}; false'
    return f"ends=$((SECONDS + {SECONDS})); until {state} || ((SECONDS > ends)); do sleep 0.1; done; {state} || {{ {late}; }} >&2"


def listener() -> str:
    """A process in the background that listens on MASTER_PORT, from the moment at which the line is done."""
    return f"{python(LISTEN)} > listener 2>&1 & {until('[ -e listening ]', 'listener')}"


def orphans() -> str:
    """Ranks that wait for ever, whose torchrun was killed, once that can be told."""
    proven = """[ "$(ddpdoctor zombies --json 2>&1 | tee zombies | grep -c '"proven"')" = 2 ]"""
    return (
        f"echo {shlex.quote(ORPHANED)} > train.py; "
        "MASTER_PORT=29714 python -m torch.distributed.run --nproc-per-node 2 --master-port 29714 train.py > out 2>&1 & "
        f"{{ {until('[ -e rank-0.ready -a -e rank-1.ready ]', 'out')}; }} && kill -9 $! && {{ {until(proven, 'zombies')}; }}"
    )


ORPHANS_PREPARED = "export MASTER_ADDR=127.0.0.1 MASTER_PORT=29713 GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1"
ILLNESSES = (
    Illness(
        name="an interface's name of another host",
        thorough=True,
        slug="gloo-ifname-not-found",
        made="export GLOO_SOCKET_IFNAME=eth9",
        carried_out="export GLOO_SOCKET_IFNAME=eth0",
        smoke_says="Unable to find address for: eth9",
        place=on_a_node,
    ),
    Illness(
        name="the hostname means the loopback",
        slug="hostname-resolves-loopback",
        prepared="export MASTER_ADDR=n2 MASTER_PORT=29500 NNODES=2",
        made="sed 's/.* n1$/127.0.1.1 n1/' /etc/hosts > hosts; cp hosts /etc/hosts",
        words="`/etc/hosts`: `127.0.1.1 n1`, in a job over two nodes",
        carried_out="{ sed ... /etc/hosts; echo '10.77.0.11 n1'; } > ~/hosts.new; sudo cp ~/hosts.new /etc/hosts",
        harmless="on one host; over two, gloo fails, see netcheck's table",
        shown=python(GLOO_LISTENS),
        ill="gloo listens on 127.0.1.1",
        well="gloo listens on 10.77.0.11",
        place=on_a_node,
    ),
    Illness(
        name="a left-over process holds the port",
        thorough=True,
        slug="port-in-use",
        prepared="export MASTER_ADDR=127.0.0.1 MASTER_PORT=29713",
        made=listener(),
        words="a listener on `MASTER_PORT`",
        carried_out="ps -o pid,user,lstart,args -p ...; kill ...",
        job=python(JOIN),
        job_words="`init_process_group`",
        job_says="EADDRINUSE",
        place=on_a_node,
    ),
    Illness(
        name="another job holds the port",
        thorough=True,
        slug="port-in-use",
        prepared="export MASTER_ADDR=127.0.0.1 MASTER_PORT=29713",
        made=listener(),
        fix=1,
        words="a listener on `MASTER_PORT`",
        carried_out="export MASTER_PORT=$(...)",
        job=python(JOIN),
        job_words="`init_process_group`",
        job_says="EADDRINUSE",
        place=on_a_node,
    ),
    Illness(
        name="a rank whose torchrun was killed keeps the port",
        thorough=True,
        slug="port-in-use",
        prepared=ORPHANS_PREPARED,
        made=orphans(),
        words="`kill -9` of torchrun, while one rank waits in `all_reduce` and the other in `barrier`",
        carried_out="ddpdoctor zombies --kill ...",
        answer="y",
        job=python(JOIN),
        job_words="`init_process_group`",
        job_says="EADDRINUSE",
        place=with_own_pids,
    ),
    Illness(
        name="ranks whose torchrun was killed",
        slug="orphaned-rank",
        prepared=ORPHANS_PREPARED,
        made=orphans(),
        words="`kill -9` of torchrun, while one rank waits in `all_reduce` and the other in `barrier`",
        carried_out="ddpdoctor zombies --kill ...",
        answer="y",
        harmless="the old ranks keep their memory and their port",
        shown="echo $(pgrep -fc '[t]rain.py') ranks of train.py run",
        ill="2 ranks of train.py run",
        well="0 ranks of train.py run",
        thorough=True,
        place=with_own_pids,
    ),
    Illness(
        name="a blank behind the master's address",
        thorough=True,
        slug="launcher-env-inconsistent",
        prepared="export MASTER_ADDR=127.0.0.1 MASTER_PORT=29713",
        made="export MASTER_ADDR='127.0.0.1 '",
        carried_out="export MASTER_ADDR=127.0.0.1",
        job=python(JOIN),
        job_words="`init_process_group`",
        job_says="127.0.0.1 ",
        place=on_a_node,
    ),
    Illness(
        name="a misspelt setting",
        thorough=True,
        slug="setting-misspelt",
        made="export GLOO_SOCKET_IFNAM=lo",
        carried_out="unset GLOO_SOCKET_IFNAM; export GLOO_SOCKET_IFNAME=lo",
        harmless="what it asks for isn't done",
        shown=python(GLOO_LISTENS),
        ill="gloo listens on 10.77.0.11",
        well="gloo listens on 127.0.0.1",
        place=on_a_node,
    ),
    Illness(
        name="a value that torch rejects",
        thorough=True,
        slug="setting-invalid",
        made="export TORCH_DISTRIBUTED_DEBUG=verbose",
        carried_out="unset TORCH_DISTRIBUTED_DEBUG",
        smoke_says="must be OFF, INFO, or DETAIL",
    ),
    Illness(
        name="a setting left over from debugging",
        thorough=True,
        slug="setting-dangerous",
        made="export TORCH_DISTRIBUTED_DEBUG=DETAIL",
        words="`export TORCH_DISTRIBUTED_DEBUG=DETAIL`, which torch 2.13 doesn't survive over gloo",
        carried_out="unset TORCH_DISTRIBUTED_DEBUG",
        smoke_says="killed by SIGSEGV in training",
    ),
    Illness(
        name="a stale settings file, of a torchrun job's environment",
        thorough=True,
        slug="torchelastic-leftover",
        prepared="export MASTER_ADDR=127.0.0.1 MASTER_PORT=29713",
        made="echo 'export TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_MAX_RESTARTS=0' > job.env; source job.env",
        words="`source job.env`, with `TORCHELASTIC_USE_AGENT_STORE=True` in it",
        carried_out="unset TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_USE_AGENT_STORE",
        job=python(JOIN),
        job_words="`init_process_group`",
        job_says="timed out",
        place=on_a_node,
    ),
    Illness(
        name="too many threads",
        thorough=True,
        slug="omp-threads",
        options="--nproc 2",
        prepared="export OMP_NUM_THREADS=1",
        made="export OMP_NUM_THREADS=64",
        carried_out="export OMP_NUM_THREADS=...",
        harmless="costs time alone",
        shown=python(TAKE_THREADS),
        ill="two ranks take more threads than there are cores",
        well="two ranks take no more threads than there are cores",
    ),
    Illness(
        name="few open files",
        thorough=True,
        slug="nofile-limit",
        options="--nproc 2",
        prepared="ulimit -S -n 4096",
        made="ulimit -S -n 256",
        carried_out="ulimit -n ...",
        job=python(MANY_BATCHES),
        job_words="a DataLoader with workers",
        job_says="Too many open files",
    ),
    Illness(
        name="few threads",
        thorough=True,
        slug="pids-limit",
        options="--nproc 2",
        made="ulimit -S -u 60",
        carried_out="ulimit -u $(ulimit -Hu)",
        job=python(THREADS),
        job_words="a program with 80 threads",
        job_says="can't start new thread",
        place=as_user,
    ),
    Illness(
        name="a small /dev/shm",
        slug="shm-too-small",
        options="--nproc 2",
        prepared="mount -t tmpfs -o size=2g none /dev/shm",
        made="mount -o remount,size=16m /dev/shm",
        carried_out="sudo mount -o remount,size=...g /dev/shm",
        job=python(LOADER),
        job_words="a DataLoader with workers",
        job_says="No space left on device",
        place=with_mounts,
    ),
    Illness(
        name="no room for temporary files",
        thorough=True,
        slug="disk-full",
        prepared="mkdir scratch; export TMPDIR=$PWD/scratch",
        made="mount -t tmpfs -o size=1m none scratch",
        fix=1,
        carried_out="mkdir -p .../tmp && export TMPDIR=.../tmp",
        job=python(SAVE),
        job_words="`torch.save` to a temporary folder",
        job_says="unexpected pos",
        place=with_mounts,
    ),
    Illness(
        name="a checkpoint pinned to a GPU",
        slug="ckpt-device-pin",
        options="--checkpoint ckpt.pt",
        prepared=python("import torch; torch.save(torch.nn.Linear(4, 4).state_dict(), 'ckpt.pt')"),
        made=f"{python(SAVE_PINNED)} ckpt.pt",
        words="saved as from `cuda:3`",
        carried_out="ddpdoctor fix-checkpoint ckpt.pt",
        job=python(LOAD),
        job_words="`torch.load`",
        job_says="Attempting to deserialize object on a CUDA device",
    ),
    Illness(
        name="a file of your own called torch.py",
        thorough=True,
        slug="torch-shadowed",
        made="echo 'print(1)' > torch.py",
        carried_out="mv .../torch.py .../torch_of_mine.py",
        smoke_says="torch-shadowed",
    ),
    Illness(
        name="the working folder was deleted and made anew",
        thorough=True,
        slug="working-folder-gone",
        prepared="mkdir work; cd work",
        made='rm -r "$PWD"; mkdir "$PWD"',
        carried_out='cd "$PWD"',
        smoke_says="The working folder was deleted",
    ),
)


def table() -> str:
    """The README's: a row an illness."""
    rows = [
        "| illness | made by | `check` says | the fix, carried out word for word | while it is ill |",
        "|---|---|---|---|---|",
    ]
    for illness in ILLNESSES:
        cells = (
            illness.name + " \\*" * illness.thorough,
            illness.words or _code(illness.made),
            f"`{illness.slug}`",
            _code(illness.carried_out),
            _while_ill(illness),
        )
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows)


def _code(lines: str) -> str:
    return f"`{lines}`"


def _while_ill(one: Illness) -> str:
    if one.smoke_says:
        return f'smoke fails: "{one.smoke_says}"'
    if one.job:
        return f'{one.job_words} fails: "{one.job_says.strip()}"; smoke passes'
    seen = f"{one.ill}; " if one.shown else ""
    return f"{seen}smoke passes: {one.harmless}"
