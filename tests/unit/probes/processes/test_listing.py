"""The look at processes, over made-up /proc trees: odd content, what can't be read, containers, and who holds what."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ddpdoctor.base.unknown import Facts, Unknown
from ddpdoctor.facts.gpus import Gpu, GpuHolder, Gpus
from ddpdoctor.facts.processes import Process, Processes, ProcessRole
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.proc import TICKS, Proc
from ddpdoctor.probes.processes import listing, reading_limits
from ddpdoctor.probes.processes.command_lines import command, command_of_others
from ddpdoctor.probes.processes.description import container_and_unit
from ddpdoctor.probes.processes.reading_limits import read_each

ID = "0123456789ab" + "c" * 52


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "WATCH_SECONDS", 0.01)


class Tree:
    """A made-up root with processes in its /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc").mkdir()
        (root / "dev" / "shm").mkdir(parents=True)

    def add(
        self,
        pid: int,
        parent: int = 1,
        words: bytes = b"python3\0train.py\0",
        *,
        environ: bytes = b"",
        name: bytes = b"python3",
        state: str = "S",
        executable: str = "/usr/bin/python3",
        opened: tuple[str, ...] = (),
        maps: bytes = b"",
        cgroup: bytes = b"0::/\n",
        threads: tuple[bytes, ...] = (),
        inside: str = "",
        living: int = 3,
    ) -> Path:
        folder = self.root / "proc" / str(pid)
        folder.mkdir()
        fields = f"{state} {parent} {pid} {pid} 0 -1 4194304 0 0 0 0 150 50 0 0 20 0 {living} 0 {pid * 100} 0 256 0"
        (folder / "stat").write_bytes(b"%d (%s) %s" % (pid, name, fields.encode()))
        status = f"Name:\tx\nUid:\t4242\t4242\t4242\t4242\nTracerPid:\t7\nNSpid:\t{pid}\t{inside}\n"
        (folder / "status").write_text(status)
        (folder / "cmdline").write_bytes(words)
        (folder / "environ").write_bytes(environ)
        (folder / "maps").write_bytes(maps)
        (folder / "cgroup").write_bytes(cgroup)
        (folder / "io").write_text("rchar: 10\nwchar: 5\nsyscr: 1\n")
        (folder / "wchan").write_text("futex_do_wait")
        (folder / "exe").symlink_to(executable)
        for number, thread in enumerate((name, *threads)):
            (folder / "task" / str(pid + number)).mkdir(parents=True)
            (folder / "task" / str(pid + number) / "comm").write_bytes(thread + b"\n")
            (folder / "task" / str(pid + number) / "schedstat").write_text("1000000000 5 20\n")
        for kind in ("fd", "fdinfo", "ns"):
            (folder / kind).mkdir()
        for number, link in enumerate(opened):
            (folder / "fd" / str(number)).symlink_to(link)
            (folder / "fdinfo" / str(number)).write_text(f"pos:\t0\nflags:\t010000{number % 2}\n")
        (folder / "ns" / "pid").symlink_to("pid:[1]")
        (folder / "ns" / "net").symlink_to("net:[2]")
        return folder

    def sockets(self, pid: int, port: int, inode: int) -> None:
        """That process's table of sockets: one that listens."""
        (self.root / "proc" / str(pid) / "net").mkdir()
        row = (
            f"   0: 00000000:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 {inode} 1 0 100 0"
        )
        (self.root / "proc" / str(pid) / "net" / "tcp").write_text(f"  sl  local_address rem_address st\n{row}\n")

    def look(self, gpus: Facts | Unknown | None = None) -> Processes:
        context = Context("python", root=self.root, environ={})
        if gpus is not None:
            context.answered_by(lambda group: gpus)
        found = listing.probe(context)
        assert isinstance(found, Processes)
        return found

    def one(self, pid: int) -> Process:
        found = self.look().get(pid)
        assert found
        return found


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


RANK = b"RANK=1\0WORLD_SIZE=2\0HOME=/home/ann\0MASTER_PORT=29501\0"


def test_everything_that_is_told(tree: Tree) -> None:
    tree.add(
        20,
        environ=RANK,
        threads=(b"pt_nccl_watchdg", b"cuda-EvtHandlr", b"python3", b"pt_nccl_watchdg"),
        opened=("/dev/nvidia3", "/dev/nvidiactl", "socket:[77]", "/data/model.pt", "/dev/shm/torch_1", "/data/log.txt"),
        maps=b"7f0-7f1 rw-s 00000000 00:1 9 /dev/shm/nccl-abc (deleted)\n7f2-7f3 r-xp 0 0 0 /lib/libc.so\n",
        inside="4",
    )
    tree.sockets(20, 29501, 77)
    one = tree.one(20)
    assert (one.role, one.place and one.place.rank) == (ProcessRole.RANK, 1)
    assert one.marks == ("cuda-EvtHandlr", "pt_nccl_watchdg")
    assert [(setting.name, setting.value) for setting in one.settings] == [  # type: ignore[union-attr]
        ("MASTER_PORT", "29501"), ("RANK", "1"), ("WORLD_SIZE", "2"),
    ]  # fmt: skip
    assert (one.devices, one.listens) == ((3,), (29501,))
    assert one.shared_memory == ("/dev/shm/nccl-abc (deleted)", "/dev/shm/torch_1")
    assert one.writes_to == ("/data/model.pt",)
    assert (one.uid, one.user, one.tracer, one.pid_inside) == (4242, "4242", 7, 4)
    assert (one.start, one.group, one.cpu_seconds, one.waits_in) == (
        2000,
        20,
        200 / os.sysconf("SC_CLK_TCK"),
        "futex_do_wait",
    )
    assert (one.recent_cpu, one.recent_bytes, one.recent_switches) == (0.0, 0, 0)
    assert one.memory == 256 * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("name", [b"a) R 1 2 (b", b"a\nb) S", b"\xff\xfe)", b"", b"((("])
def test_odd_names(tree: Tree, name: bytes) -> None:
    tree.add(20, 7, environ=RANK, name=name)
    one = tree.one(20)
    assert (one.parent, one.state) == (7, "S")
    assert one.name == name.decode("utf-8", "replace")


def test_odd_content(tree: Tree) -> None:
    tree.add(20, words=b"python3\0" + b"\xff" * (1 << 20), environ=b"X=" + b"\xfe" * (1 << 19) + b"\0NOVALUE\0" + RANK)
    one = tree.one(20)
    assert one.role is ProcessRole.RANK
    assert len(one.command) <= 1000
    one.command.encode()


def test_secrets_stay_out(tree: Tree) -> None:
    words = b"python3\0train.py\0--api-key\0abcdef123456\0--url=https://ann:hunter2@host/x\0"
    tree.add(20, words=words, environ=RANK + b"NCCL_SECRET_KEY=hunter2\0WANDB_API_KEY=hunter2\0")
    text = repr(tree.look())
    assert "hunter2" not in text
    assert "abcdef123456" not in text
    assert "train.py" in text


def test_what_can_not_be_read(tree: Tree) -> None:
    folder = tree.add(20, environ=RANK)
    other = tree.add(21, 20)
    (other / "environ").unlink()
    (other / "environ").mkdir()
    (other / "exe").unlink()
    (other / "io").unlink()
    for link in (other / "fd", other / "maps"):
        link.rename(other / f"no-{link.name}")
    one = tree.one(21)
    assert one.settings == Unknown("/proc/21/environ: Is a directory")
    assert one.executable == Unknown("/proc/21/exe: No such file or directory")
    assert one.devices == one.writes_to == one.listens == Unknown("/proc/21/fd: No such file or directory")
    assert one.shared_memory == Unknown("/proc/21/maps: No such file or directory")
    assert isinstance(one.recent_bytes, Unknown)
    assert one.recent_cpu == 0.0
    assert folder.exists()


def test_gone_meanwhile(tree: Tree) -> None:
    """Its folder is empty, or says what nobody understands."""
    tree.add(20, environ=RANK)
    (tree.root / "proc" / "21").mkdir()
    (tree.root / "proc" / "22").mkdir()
    (tree.root / "proc" / "22" / "stat").write_bytes(b"22 (python3) S x y z")
    found = tree.look()
    assert found.count == 1
    assert [entry.pid for entry in found.listed] == [20]


def test_no_proc(tmp_path: Path) -> None:
    found = listing.probe(Context("python", root=tmp_path))
    assert found == Unknown("/proc: No such file or directory")


def test_those_that_do_not_matter(tree: Tree) -> None:
    """A Python, a shell, a kernel thread. What matters brings its ancestors and descendants."""
    tree.add(1, 0, b"/sbin/init\0", executable="/sbin/init", name=b"init")
    tree.add(10, 1, b"bash\0", executable="/bin/bash", name=b"bash")
    tree.add(20, 10, environ=RANK)
    tree.add(30, 20, b"sh\0", executable="/bin/sh", name=b"sh")
    tree.add(40, 10, b"python3\0app.py\0")
    tree.add(50, 10, b"vim\0", executable="/usr/bin/vim")
    found = tree.look()
    assert [entry.pid for entry in found.listed] == [1, 10, 20, 30]
    assert found.count == 6


def test_what_has_ended_and_nobody_collects(tree: Tree) -> None:
    tree.add(1, 0, b"sleep\0300\0", name=b"sleep", executable="/bin/sleep")
    tree.add(200, words=b"python3\0-c\0pass\0")
    for pid, parent, name in ((201, 200, b"python3"), (202, 200, b"sh"), (203, 1, b"pt_main_thread"), (204, 1, b"cat")):
        tree.add(pid, parent, b"", name=name, state="Z")
    found = tree.look()
    assert {entry.pid: entry.name for entry in found.listed if entry.state == "Z"} == {
        201: "python3",
        202: "sh",
        203: "pt_main_thread",
    }
    assert found.get(200)


def test_what_its_parent_collects_during_the_look_is_not_listed(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.add(200, words=b"python3\0-c\0pass\0")
    folder = tree.add(201, 200, b"", state="Z")
    monkeypatch.setattr(listing.time, "sleep", lambda seconds: folder.rename(tree.root / "collected"))
    assert all(entry.pid != 201 for entry in tree.look().listed)


@pytest.mark.parametrize("words", [b"python3\0-c\0pass\0", b"torchrun\0train.py\0"])
def test_what_has_just_been_started_and_ended_is_not_listed(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, words: bytes
) -> None:
    """Nor because it is a relative of what belongs to a job."""
    tree.add(200, words=words)
    tree.add(201, 200, b"", state="Z", living=1)
    # Its start is 20100 ticks after the host's.
    monkeypatch.setattr(listing.time, "clock_gettime", lambda clock: 20100 / TICKS + 1.0)
    assert all(entry.pid != 201 for entry in tree.look().listed)


@pytest.mark.parametrize("mark", ["command", "inquiry"])
def test_what_another_ddpdoctor_has_started_and_not_collected_yet_is_not_listed(tree: Tree, mark: str) -> None:
    """Also where that is one of torchrun's ranks: an inquiry that has ended looks like any other."""
    tree.add(199, words=b"torchrun\0doctor.sh\0")
    if mark == "command":
        tree.add(200, 199, b"python3\0/opt/bin/ddpdoctor\0check\0", environ=RANK)
    else:
        tree.add(200, 199, b"python3\0-c\0ask()\0", environ=RANK + b"DDPDOCTOR_INQUIRY=1\0")
    tree.add(201, 200, b"", state="Z", living=1)
    tree.add(202, 199, b"", state="Z", living=1)
    assert [entry.pid for entry in tree.look().listed if entry.state == "Z"] == [202]


def test_holders(tree: Tree) -> None:
    """Whoever is on a GPU, has a segment, or listens where a job's store should."""
    (tree.root / "dev" / "nvidia0").touch()
    (tree.root / "dev" / "shm" / "torch_12_34").touch()
    tree.add(20, environ=RANK)
    tree.add(30, words=b"app\0", executable="/opt/app", opened=("/dev/nvidia0",))
    tree.add(31, words=b"app\0", executable="/opt/app", maps=b"1-2 rw-s 0 00:1 9 /dev/shm/torch_12_34\n")
    tree.add(32, words=b"app\0", executable="/opt/app", opened=("socket:[99]",))
    tree.add(33, words=b"app\0", executable="/opt/app", opened=("/dev/null", "socket:[5]"))
    tree.add(34, words=b"app\0", executable="/opt/app")
    tree.add(os.getpid(), words=b"app\0", executable="/opt/app")
    tree.sockets(os.getpid(), 29501, 99)
    gpu = Gpu(index=0, holders=(GpuHolder(pid=34, memory=1), GpuHolder(pid=0), GpuHolder(pid=999_999)))
    found = tree.look(Gpus(devices=(gpu, Gpu(index=1))))
    assert sorted(entry.pid for entry in found.listed if not entry.ours) == [20, 30, 31, 32, 34]
    assert [entry.devices for entry in found.listed if entry.pid == 30] == [(0,)]
    assert [entry.listens for entry in found.listed if entry.pid == 32] == [(29501,)]
    assert [entry.shared_memory for entry in found.listed if entry.pid == 31] == [("/dev/shm/torch_12_34",)]


def test_own_processes(tree: Tree) -> None:
    tree.add(10, 1, b"python3\0run.py\0", environ=RANK)
    tree.add(os.getpid(), 10, b"python3\0-m\0ddpdoctor\0", environ=RANK)
    tree.add(os.getpid() + 1, os.getpid(), b"sh\0", executable="/bin/sh")
    tree.add(11, 10)
    found = tree.look()
    assert {entry.pid: entry.ours for entry in found.listed} == {
        10: True, 11: False, os.getpid(): True, os.getpid() + 1: True,
    }  # fmt: skip
    assert [entry.pid for entry in found.listed if entry.role is ProcessRole.RANK] == [10]


def test_interpreter_by_another_name(tree: Tree) -> None:
    tree.add(
        20,
        words=b"trainer\0",
        executable="/opt/trainer",
        environ=RANK,
        maps=b"1-2 r-xp 0 0 0 /x/libpython3.11.so.1.0\n",
    )
    tree.add(21, words=b"trainer\0", executable="/opt/trainer", environ=RANK)
    assert [entry.pid for entry in tree.look().listed if entry.role is ProcessRole.RANK] == [20]


def test_dead_main_thread(tree: Tree) -> None:
    tree.add(20, 10, environ=RANK)
    tree.add(21, 20, state="Z", words=b"", executable="/none")
    one = tree.one(21)
    assert one.ended_threads
    assert one.settings == Unknown("the process has ended")


@pytest.mark.parametrize(
    ("cgroup", "container", "unit"),
    [
        (f"0::/system.slice/docker-{ID}.scope", "0123456789ab", ""),
        (f"12:pids:/docker/{ID}\n1:name=systemd:/docker/{ID}", "0123456789ab", ""),
        (f"0::/machine.slice/libpod-{ID}.scope/container", "0123456789ab", ""),
        (f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope", "0123456789ab", "user@1000.service"),
        (f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234abcd_0000_1111_2222_333344445555.slice/cri-containerd-{ID}.scope", "0123456789ab", ""),
        ("11:memory:/kubepods/besteffort/pod1234abcd-0000-1111-2222-333344445555", "1234abcd-000", ""),
        (f"11:memory:/kubepods/besteffort/pod1234abcd-0000-1111-2222-333344445555/{ID}", "0123456789ab", ""),
        ("0::/lxc.payload.web/init.scope", "web", "init.scope"),
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_1", "", "job_4711"),
        ("4:memory:/slurm/uid_1000/job_4711/step_batch/task_0\n1:name=systemd:/system.slice/slurmd.service", "", "job_4711"),
        ("0::/user.slice/user-1000.slice/session-3.scope", "", "session-3.scope"),
        ("0::/system.slice/train.service", "", "train.service"),
        ("0::/", "", ""),
        ("", "", ""),
        ("garbage\n::\n1:x", "", ""),
    ],
)  # fmt: skip
def test_containers(cgroup: str, container: str, unit: str) -> None:
    assert container_and_unit(cgroup) == (container, unit)


def test_one_that_hangs_in_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left behind, and all others are answered for."""
    monkeypatch.setattr(reading_limits, "ANSWER_SECONDS", 0.05)
    never = threading.Event()
    assert read_each(range(6), lambda pid: never.wait(60) if pid in (2, 5) else pid) == {0: 0, 1: 1, 3: 3, 4: 4}
    never.set()


def test_a_crash_is_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError):
        read_each(range(3), lambda pid: 1 // (pid - 1))


def test_nothing_to_look_at() -> None:
    assert read_each([], lambda pid: pid) == {}


def test_hanging_rank_is_listed_all_the_same(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its command nor its settings can be read; that it is there, and whose child, can."""
    monkeypatch.setattr(reading_limits, "ANSWER_SECONDS", 0.05)
    launched = RANK + b"LOCAL_RANK=1\0LOCAL_WORLD_SIZE=2\0TORCHELASTIC_RUN_ID=x\0"
    tree.add(10, 1, b"python3\0/venv/bin/torchrun\0")
    tree.add(20, 10, state="D")
    tree.add(21, 10, environ=launched)
    never = threading.Event()
    read = Proc.words

    def words(self: Proc, pid: int) -> tuple[str, ...] | Unknown:
        if pid == 20:
            never.wait(60)
        return read(self, pid)

    monkeypatch.setattr(Proc, "words", words)
    found = tree.look()
    never.set()
    ranks = [
        (entry.pid, entry.place and entry.place.rank, entry.state)
        for entry in found.listed
        if entry.role is ProcessRole.RANK
    ]
    assert ranks == [(20, 0, "D"), (21, 1, "S")]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("python3 train.py --password hunter2", "python3 train.py ..."),
        ("python3 train.py", "python3 train.py"),
        ("/opt/bin/python3.11 -u -m torch.distributed.run --nproc 2 train.py", "/opt/bin/python3.11 -m torch.distributed.run ..."),
        ("python3 -c print('hunter2')", "python3 -c ..."),
        ("python3", "python3"),
        ("bash /home/ann/run.sh -p hunter2", "bash /home/ann/run.sh ..."),
        ("mysql -p hunter2", "mysql ..."),
        ("mysql -phunter2 -u root", "mysql ..."),
        ("curl https://ann:hunter2@host/x", "curl ..."),
        ("sshpass -p hunter2 ssh node1", "sshpass ..."),
        ("postgres: ann train 10.0.0.7(5432) idle", "postgres: ..."),
        ("", ""),
    ],
)  # fmt: skip
def test_of_others_the_program_is_shown(line: str, shown: str) -> None:
    assert command_of_others(tuple(line.split())) == shown


@pytest.mark.parametrize(
    "line",
    ["docker run -p 8080:80 image", "ssh -p 2222 node1", "mkdir -p /tmp/x", "torchrun --nproc 2 train.py -p 3", "python3 x.py --port 80"],
)  # fmt: skip
def test_of_ones_own_all_is_shown_that_is_no_secret(line: str) -> None:
    assert command(tuple(line.split())) == line


def test_a_command_without_an_end_is_cut_at_a_word(tree: Tree) -> None:
    tree.add(
        20, words=b"python3\0train.py\0" + b"a" * 15_000 + b"\0--token\0" + b"hunter2" * 2000 + b"\0", environ=RANK
    )
    words = Proc(str(tree.root / "proc")).words(20)
    assert isinstance(words, tuple)
    assert words[-2:] == ("--token", "...")
    assert command(words) == "python3 train.py ..."


@pytest.mark.parametrize("count", [5, 200])
def test_where_there_are_too_many_launchers_and_ranks_come_first(
    tree: Tree, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_limits, "MAX_PROCESSES_OF_A_USER", 8)
    for pid in range(20, 20 + count):
        tree.add(pid, words=b"python3\0-m\0http.server\0")
    tree.add(500, words=b"torchrun\0train.py\0", executable="/usr/bin/python3")
    tree.add(501, 500, environ=RANK)
    found = tree.look()
    assert [one.role for pid in (500, 501) if (one := found.get(pid))] == [ProcessRole.LAUNCHER, ProcessRole.RANK]
    assert sum(process.count for process in found.spared) == max(0, count + 2 - 8)
