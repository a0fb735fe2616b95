"""What root reads because another user's settings, jobs or folders lead there, tried with what that user could put there."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddpdoctor.base import regular_files as files
from ddpdoctor.base.ownership import who_misleads
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.processes import Process, RankPlace
from ddpdoctor.hang.flight_recorder import collect_dumps
from ddpdoctor.hang.flight_recorder.collect_dumps import Dumps, dumps_of
from ddpdoctor.hang.flight_recorder.dump_files import DumpContents, read_dump_file
from ddpdoctor.hang.flight_recorder.plain_pickles import NotRead
from ddpdoctor.hang.ras.mapped_nccl import mapped_nccl
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.reading import read_logs
from ddpdoctor.probes import environment
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.elf import NotElf, opened
from ddpdoctor.probes.proc import Proc
from ddpdoctor.processes.jobs import TrainingJob
from ddpdoctor.run.diagnosis import EndedCommand, redirected_output
from tests.support.command import ROOT, ddpdoctor
from tests.support.other_users import User, python_for_all

pytestmark = pytest.mark.root

RECORDED = ROOT / "fixtures" / "flight_recorder" / "lagging"
SECRET = "NCCL_DEBUG=xyzzy\nxyzzy is root's secret\nRuntimeError: xyzzy\n"
MAPS = "import mmap, sys\nfile = open(sys.argv[1], 'rb')\nkept = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\nprint(flush=True)\nsys.stdin.read()\n"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that root alone may read."""
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


@contextmanager
def running(user: User, *arguments: str | Path, **environ: str) -> Iterator[int]:
    """A process of that user's, by its pid."""
    python, _ = python_for_all()
    process = subprocess.Popen(
        [python, "-c", MAPS, *map(str, arguments)],
        user=user.uid,
        group=user.gid,
        extra_groups=[],
        env=environ,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout
        assert process.stdout.readline() == b"\n"
        yield process.pid
        process.kill()


def dumps_of_rank(user: User, folder: Path, name: str = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE") -> tuple[Dumps, float]:
    """Of rank 3, whose dump is to lie in that folder; and how long the look took."""
    with running(user, "/etc/passwd", HOME=str(folder), **{name: f"{folder}/r_"}) as pid:
        stat = Proc().stat(pid)
        assert not isinstance(stat, Unknown)
        place = RankPlace(rank=3, world_size=4, source="RANK")
        process = Process(pid=pid, start=stat.start - 500, parent=1, uid=user.uid, place=place)
        began = time.monotonic()
        return dumps_of(TrainingJob(name="4711", ranks=(process,), world_size=4)), time.monotonic() - began


TRAPS = {
    "fifo": "mkfifo {}",
    "zero": "ln -s /dev/zero {}",
    "sparse": "truncate -s 10G {}",
    "secret": "ln -s {secret} {}",
    "folder": "mkdir {}",
    "loop": "ln -s r_3 {}",
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_dump_that_is_none_holds_nobody_up_and_tells_nothing(
    shared: Path, eve: User, secret: Path, trap: str
) -> None:
    eve.does(f"mkdir {shared}/hers; " + TRAPS[trap].format(f"{shared}/hers/r_3", secret=secret))
    found, seconds = dumps_of_rank(eve, shared / "hers")
    assert found.recorded == ()
    assert found.note.startswith("this job has written none")
    assert "xyzzy" not in repr(found)
    assert seconds < 5


def test_what_she_exchanges_after_the_look_is_not_taken_for_hers(
    shared: Path, eve: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Her own dump while it is looked at, root's when it is opened."""
    shutil.copyfile(RECORDED / "rank_1", shared / "roots")
    dump = shared / "hers/r_3"
    eve.does(f"mkdir {shared}/hers; cp {shared}/roots {dump}")

    def swapped(path: str) -> DumpContents:
        eve.does(f"ln -sf {shared}/roots {dump}")
        return read_dump_file(path)

    assert len(dumps_of_rank(eve, shared / "hers")[0].recorded) == 1
    monkeypatch.setattr(collect_dumps, "read_dump_file", swapped)
    assert dumps_of_rank(eve, shared / "hers")[0].recorded == ()


def test_root_is_not_told_to_write_into_her_pipe_as_root(shared: Path, eve: User, secret: Path) -> None:
    eve.does(f"mkdir {shared}/hers; mkfifo {shared}/hers/r_3.pipe")
    found, _ = dumps_of_rank(eve, shared / "hers", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    command = found.note.partition("after ")[2].partition(";")[0]
    assert command.startswith(f"sudo -H -u {eve.name} timeout 5 sh -c")
    eve.does(f"rm {shared}/hers/r_3.pipe; ln -s {secret} {shared}/hers/r_3.pipe")
    if shutil.which("sudo"):
        subprocess.run(["sh", "-c", command], capture_output=True, timeout=20)
    assert secret.read_text() == SECRET


@pytest.mark.parametrize("size", ["100G", "0"])
def test_her_libnccl_is_read_within_bounds(shared: Path, eve: User, size: str) -> None:
    library = shared / "hers/libnccl.so.2"
    words = "NCCL version 2.29.3"
    eve.does(f"mkdir {shared}/hers; truncate -s 1200000 {library}; printf '{words} ' >> {library}")
    with running(eve, library) as pid:
        assert mapped_nccl(pid, Proc()) == (2, 29, 3)
        eve.does(f"truncate -s {size} {library}")
        began = time.monotonic()
        assert isinstance(mapped_nccl(pid, Proc()), Unknown)
        assert time.monotonic() - began < 5


def test_a_version_across_two_pieces_is_found_once(shared: Path, eve: User) -> None:
    library = shared / "hers/libnccl.so.2"
    eve.does(f"mkdir {shared}/hers; truncate -s {(1 << 20) - 9} {library}; printf 'NCCL version 2.29.3 ' >> {library}")
    with running(eve, library) as pid:
        assert mapped_nccl(pid, Proc()) == (2, 29, 3)


@pytest.mark.parametrize("put", ["mkfifo {}", "ln -s /dev/zero {}", "ln -s {secret} {}", "truncate -s 10G {}"])
def test_nccls_settings_in_her_file(shared: Path, eve: User, secret: Path, put: str) -> None:
    eve.does(f"mkdir {shared}/hers; " + put.format(f"{shared}/hers/nccl.conf", secret=secret))
    began = time.monotonic()
    found = environment.probe(Context(sys.executable, environ={"NCCL_CONF_FILE": f"{shared}/hers/nccl.conf"}))
    assert time.monotonic() - began < 5
    assert "xyzzy" not in repr(found)
    assert [file.path for file in found.unreadable_files] == [f"{shared}/hers/nccl.conf"]


def test_her_own_settings_and_what_all_may_read_count(shared: Path, eve: User) -> None:
    eve.does(f"mkdir {shared}/hers; umask 077; echo NCCL_DEBUG=INFO > {shared}/hers/nccl.conf")
    (shared / "for-all").write_text("NCCL_DEBUG=WARN\n")
    (shared / "for-all").chmod(0o644)
    eve.does(f"ln -s {shared}/for-all {shared}/hers/link")
    for name, value in (("nccl.conf", "INFO"), ("link", "WARN")):
        found = environment.probe(Context(sys.executable, environ={"NCCL_CONF_FILE": f"{shared}/hers/{name}"}))
        assert [setting.value for setting in found.settings if setting.name == "NCCL_DEBUG"] == [value]


@pytest.mark.parametrize("name", ["error.json", "rank_3.log"])
def test_a_link_among_her_logs_quotes_no_secret(shared: Path, eve: User, secret: Path, name: str) -> None:
    eve.does(
        f"mkdir {shared}/hers; echo 'RuntimeError: hers' > {shared}/hers/0.log; ln -s {secret} {shared}/hers/{name}"
    )
    found = read_logs([f"{shared}/hers"], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue()))
    assert "RuntimeError: hers" in repr(found)
    assert "xyzzy" not in repr(found)
    assert "not for everybody's eyes" in repr(found)


def test_her_pipe_among_the_logs_of_a_run_holds_nobody_up(shared: Path, eve: User) -> None:
    log = shared / "logs" / "0.log"
    log.parent.mkdir(mode=0o777)
    log.parent.chmod(0o777)
    log.write_text("RuntimeError: ours\n")
    eve.does(f"mkfifo {log.parent}/1.log; ln -s /dev/zero {log.parent}/2.log")
    command = ("torchrun", "--redirects", "3", "--log-dir", str(log.parent), "train.py")
    found = redirected_output(EndedCommand(command=command, status=1, seconds=5.0, output=(), began=time.time() - 5))
    assert [(name, text) for name, text in found] == [(str(log), b"RuntimeError: ours\n")]


def test_a_link_among_her_dumps_is_told(shared: Path, eve: User, secret: Path) -> None:
    eve.does(f"mkdir {shared}/hers; ln -s {secret} {shared}/hers/rank_3")
    with pytest.raises(NotRead, match=r"not for everybody's eyes, and .* belongs to ddpdoctor-eve"):
        read_dump_file(f"{shared}/hers/rank_3")


def test_her_shared_object_with_a_hole_is_not_copied(shared: Path, eve: User) -> None:
    """A section of 96 GiB, all of it zeros."""
    (shared / "x.c").write_text("int _ZN2at6answerEv(void) { return 42; }\n")
    subprocess.run(["gcc", "-shared", "-o", shared / "x.so", shared / "x.c"], check=True)
    header = bytearray((shared / "x.so").read_bytes())
    from elftools.elf.elffile import ELFFile

    with (shared / "x.so").open("rb") as file:
        elf = ELFFile(file)
        number = elf.get_section_index(".dynsym")
        at = elf["e_shoff"] + number * elf["e_shentsize"] + 32  # sh_size
    size = 24 * (4 << 30)
    header[at : at + 8] = size.to_bytes(8, "little")
    (shared / "x.so").write_bytes(header)
    eve.does(
        f"mkdir {shared}/hers; cp {shared}/x.so {shared}/hers/x.so; truncate -s {size + (1 << 20)} {shared}/hers/x.so"
    )
    with opened(shared / "hers/x.so") as library, pytest.raises(NotElf, match="more than 512 MiB"):
        library.undefined()
    eve.does(f"mkfifo {shared}/hers/pipe.so")
    with pytest.raises(NotElf, match="not a regular file"), opened(shared / "hers/pipe.so"):
        pass


def test_who_misleads(shared: Path, ada: User, eve: User, secret: Path) -> None:
    ada.does(f"mkdir {shared}/adas; umask 077; echo x > {shared}/adas/private; ln -s {secret} {shared}/adas/link")
    eve.does(
        f"mkdir {shared}/hers; ln -s {shared}/adas/private {shared}/hers/link; ln -s /etc/passwd {shared}/hers/all"
    )

    def misled(path: Path) -> str:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            found = who_misleads(descriptor, path)
        finally:
            os.close(descriptor)
        return found.words if found else ""

    assert misled(secret) == ""
    assert misled(shared / "adas/private") == ""
    assert misled(shared / "hers/all") == ""
    assert misled(shared / "adas/link") == f"{shared}/adas belongs to ddpdoctor-ada"
    assert misled(shared / "hers/link") == f"{shared}/hers belongs to ddpdoctor-eve"
    (shared / "for-all").mkdir()
    (shared / "for-all").chmod(0o777)
    ada.does(f"umask 077; echo x > {shared}/for-all/private")
    (shared / "for-all/link").symlink_to(secret)
    assert misled(shared / "for-all/private") == ""
    assert misled(shared / "for-all/link") == f"{shared}/for-all may be written by everybody"
    # Readable to all by its own mode, in a folder that nobody else may enter.
    (secret.parent / "notes").write_text("x")
    eve.does(f"ln -s {secret.parent}/notes {shared}/hers/notes; ln -s /etc/hostname {shared}/hers/no-secret")
    assert misled(shared / "hers/notes") == f"{shared}/hers belongs to ddpdoctor-eve"
    assert misled(shared / "hers/no-secret") == ""


@contextmanager
def waiting_writer(user: User, pipe: Path) -> Iterator[Path]:
    """A pipe of that user's; the file is there once somebody has opened the pipe."""
    opened_it = pipe.with_name("opened")
    user.does(f"mkfifo {pipe}")
    script = f": > {pipe}; touch {opened_it}"
    process = subprocess.Popen(["sh", "-c", script], user=user.uid, group=user.gid, extra_groups=[])
    try:
        yield opened_it
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("command", [["diagnose-log", "."], ["fix-checkpoint", "a.pt"], ["check", "--checkpoint", "."]])
def test_what_is_no_file_is_not_as_much_as_opened(shared: Path, eve: User, command: list[str]) -> None:
    """To open some devices is to do something, as to start a watchdog. A pipe tells that it was opened."""
    hers = shared / "hers"
    eve.does(f"mkdir {hers}; echo > {hers}/a.pt.ddpdoctor-undo")
    with waiting_writer(eve, hers / "pipe") as opened_it:
        eve.does(f"ln -s pipe {hers}/a.pt; ln -s pipe {hers}/a.log; ln -s pipe {hers}/config.json")
        done = ddpdoctor(*command, cwd=hers)
        assert "Traceback" not in done.stderr
        assert not opened_it.exists()


def test_what_becomes_a_pipe_just_now_is_not_opened(shared: Path, eve: User, monkeypatch: pytest.MonkeyPatch) -> None:
    hers = shared / "hers"
    eve.does(f"mkdir {hers}; echo 'RuntimeError: hers' > {hers}/0.log")
    with waiting_writer(eve, hers / "pipe") as opened_it:
        real, looks = files._check, []

        def check_and_swap(facts: os.stat_result) -> None:
            real(facts)
            looks.append(facts)
            eve.does(f"ln -sf pipe {hers}/0.log")

        monkeypatch.setattr(files, "_check", check_and_swap)
        assert files.read_start(hers / "0.log", 100) == b"RuntimeError: hers\n"
        assert looks
        found = read_logs([str(hers)], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue()))
        assert "hers\n" not in repr(found)
        assert not opened_it.exists()
