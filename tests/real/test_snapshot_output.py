"""`snapshot -o` where somebody else waits at that name, and where the name is a pipe or a terminal."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
from pathlib import Path

import pytest

from ddpdoctor.engine.snapshots import encode_snapshot
from tests.support.command import command, plain_environ
from tests.support.fixture_hosts import host_case
from tests.support.other_users import User
from tests.support.sick_hosts import run


def snapshot(path: str | Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("snapshot", "--quick", "-o", path),
        env=plain_environ(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.root
def test_a_pipe_of_another_user_is_not_waited_for_nor_written_to(shared: Path, eve: User) -> None:
    eve.does(f"mkfifo -m 666 {shared}/host.json")
    ended = snapshot(shared / "host.json")
    assert ended.returncode == 2
    assert "a pipe that nobody reads" in ended.stderr
    with subprocess.Popen(["cat", shared / "host.json"], user=eve.uid, stdout=subprocess.PIPE) as reader:
        # Opened for both, so that the reader is surely there.
        held = os.open(shared / "host.json", os.O_RDWR)
        ended = snapshot(shared / "host.json")
        os.close(held)
        assert ended.returncode == 2
        assert f"belongs to {eve.name}" in ended.stderr
        reader.terminate()
        assert reader.communicate()[0] == b""


@pytest.mark.root
def test_a_link_of_another_user_leads_into_no_device(shared: Path, eve: User) -> None:
    eve.does(f"ln -s /dev/full {shared}/host.json")
    ended = snapshot(shared / "host.json")
    assert ended.returncode == 2
    assert f"is a link of {eve.name}'s" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.root
def test_a_link_of_another_user_to_a_file_is_replaced(shared: Path, eve: User) -> None:
    (shared / "roots.txt").write_text("mine")
    eve.does(f"ln -s {shared}/roots.txt {shared}/host.json")
    assert snapshot(shared / "host.json").returncode == 0
    assert (shared / "roots.txt").read_text() == "mine"
    assert not (shared / "host.json").is_symlink()


@pytest.mark.root
def test_what_root_saw_is_for_root(shared: Path, eve: User) -> None:
    (shared / "host.json").touch(mode=0o666)
    assert snapshot(shared / "host.json").returncode == 0
    assert stat.S_IMODE((shared / "host.json").stat().st_mode) == 0o600
    assert eve.run(["cat", shared / "host.json"]).returncode != 0


@pytest.mark.root
def test_another_user_keeps_to_his_umask_and_makes_nothing_wider(shared: Path, ada: User) -> None:
    ada.does(f"cd {shared}; mkdir own; umask 027; cd own; touch narrow; chmod 600 narrow")
    for name in ("new", "narrow"):
        mask = os.umask(0o027)
        try:
            ended = ada.ddpdoctor("snapshot", "--quick", "-o", shared / "own" / name)
        finally:
            os.umask(mask)
        assert ended.returncode == 0, ended.stderr
    assert stat.S_IMODE((shared / "own/new").stat().st_mode) == 0o640
    assert stat.S_IMODE((shared / "own/narrow").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "target", ["/dev/stdout", ">(cat)", "/dev/fd/1", "/proc/self/fd/1", "own-pipe", "link-to-stdout"]
)
def test_pipes_that_are_meant(target: str, tmp_path: Path) -> None:
    words = shlex.join(map(str, command("snapshot", "--quick", "-o")))
    script = {
        "own-pipe": f"mkfifo {tmp_path}/p; cat {tmp_path}/p & sleep 0.3; {words} {tmp_path}/p; wait",
        "link-to-stdout": f"ln -s /dev/stdout {tmp_path}/l; {words} {tmp_path}/l | cat",
    }.get(target, f"{words} {target} | cat")
    ended = subprocess.run(
        ["bash", "-c", script], env=plain_environ(), capture_output=True, text=True, timeout=60, check=False
    )
    assert json.loads(ended.stdout)["ddpdoctor_snapshot"] == 1, ended.stderr


def test_nothing_is_kept_of_what_goes_nowhere() -> None:
    assert snapshot("/dev/null").returncode == 0
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.root
def test_a_snapshot_of_another_user_brings_no_commands(shared: Path, eve: User) -> None:
    sick = host_case("gpu-heterogeneous/sick-two-models").snapshot()
    facts = encode_snapshot(sick).decode()
    uuid = re.search(r"GPU-[0-9a-f-]{36}", facts)
    assert uuid
    eve.does(f"cat > {shared}/host.json <<'EOF'\n{facts.replace(uuid[0], f'{uuid[0]};touch {shared}/pwned')}\nEOF\n")
    ended = run("check", "--snapshot", shared / "host.json", "--json")
    assert json.loads(ended.stdout)["not_tested"]
    assert "touch" not in "".join(
        command
        for finding in json.loads(ended.stdout)["findings"]
        for fix in finding["fixes"]
        for command in fix["commands"]
    )
    eve.does(f"cat > {shared}/whole.json <<'EOF'\n{facts}\nEOF\n")
    assert f"CUDA_VISIBLE_DEVICES={uuid[0]}" in run("check", "--snapshot", shared / "whole.json").stdout
