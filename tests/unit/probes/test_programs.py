"""Which programs are found: nothing of a relative part of PATH, and the system's own tools whatever PATH says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpdoctor.probes import driver, kernel_log
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.files import open_regular, read_start
from ddpdoctor.probes.programs import find_program, find_system_tool, interpreter_of
from ddpdoctor.probes.subprocesses import run
from ddpdoctor.probes.target_python.choice import choose_python
from ddpdoctor.run.added_settings import torch_release
from tests.support.other_users import User


def program(path: Path, text: str = "#!/bin/sh\n", mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("path", ["", ".", ":", "bin", "./bin:bin::", "~/bin"])
def test_relative_and_empty_parts_of_path_are_never_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    for folder in (tmp_path, tmp_path / "bin", tmp_path / "~" / "bin"):
        program(folder / "tool")
    program(tmp_path / "bin/python-x")
    monkeypatch.chdir(tmp_path)
    assert find_program("tool", path) is None
    assert choose_python("python-x", {"PATH": path}) == ("python-x", "--python")
    assert find_program("tool", f"{path}:{tmp_path}/bin") == f"{tmp_path}/bin/tool"


def test_the_first_that_can_be_run_counts(tmp_path: Path) -> None:
    (tmp_path / "a/tool").mkdir(parents=True)
    program(tmp_path / "b/tool", mode=0o644)
    program(tmp_path / "c/tool")
    program(tmp_path / "d/tool")
    assert find_program("tool", ":".join(f"{tmp_path}/{name}" for name in "abcd")) == f"{tmp_path}/c/tool"
    assert find_program("tool", "/a:/c/", tmp_path) == "/c/tool"
    assert find_program("sh", None) in ("/usr/bin/sh", "/bin/sh")


def test_a_path_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "tool")
    monkeypatch.chdir(tmp_path)
    assert find_program("./tool", "") == "./tool"
    assert find_program(f"{tmp_path}/tool", "") == f"{tmp_path}/tool"
    assert find_program("./other", "") is None


def test_system_tools_do_not_come_from_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}/hers")
    program(tmp_path / "hers/modinfo", "#!/bin/sh\necho hers\n")
    program(tmp_path / "hers/journalctl", "#!/bin/sh\necho '[1.0] host kernel: NVRM: hers'\n")
    release = tmp_path / "proc/sys/kernel/osrelease"
    release.parent.mkdir(parents=True)
    release.write_text("6.1\n")
    module = tmp_path / "lib/modules/6.1/extra/nvidia.ko.zst"
    module.parent.mkdir(parents=True)
    module.touch()
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    context = Context("python", root=tmp_path, environ={"PATH": f"{tmp_path}/hers"})
    assert "hers" not in str(driver.version_on_disk(context))
    assert "journalctl -k: not installed" in str(kernel_log.probe(context))
    assert find_system_tool("sh") is not None


@pytest.mark.root
def test_a_system_tool_that_she_could_replace_is_passed_over(tmp_path: Path, shared: Path, eve: User) -> None:
    """On NixOS and by careless hands such a folder may be another user's."""
    eve.does(f"mkdir {shared}/hers; printf '#!/bin/sh\\n' > {shared}/hers/nft; chmod +x {shared}/hers/nft")
    (tmp_path / "usr/local").mkdir(parents=True)
    (tmp_path / "usr/local/sbin").symlink_to(shared / "hers")
    assert find_system_tool("nft", tmp_path) is None
    program(tmp_path / "run/current-system/sw/bin/nft")
    assert find_system_tool("nft", tmp_path) == tmp_path / "run/current-system/sw/bin/nft"


@pytest.mark.root
def test_her_python_does_not_run_roots_script_as_root(shared: Path, eve: User) -> None:
    eve.does(
        f"mkdir {shared}/hers; printf '#!/bin/sh\\nid -u\\n' > {shared}/hers/python; chmod +x {shared}/hers/python"
    )
    # The kernel takes no script for a script's interpreter, so that hers has to be a program.
    eve.does(f"cp /usr/bin/env {shared}/hers/env")
    script = program(shared / "ninja", f"#!{shared}/hers/env -S id -u\n")
    assert interpreter_of(script) == f"{shared}/hers/env"
    ended = run([str(script)], 10)
    assert "0" not in ended.stdout.decode().split()
    assert ended.failed_to_start == "" or "root does not run" in ended.failed_to_start


def test_the_interpreter_of_what_is_no_script(tmp_path: Path) -> None:
    assert interpreter_of("/usr/bin/env") is None
    assert interpreter_of(program(tmp_path / "a", "#!")) is None
    assert interpreter_of(program(tmp_path / "b", "#!/bin/" + "x" * 400 + "\n")) is None
    assert interpreter_of(tmp_path / "missing") is None
    os.mkfifo(tmp_path / "pipe")
    assert interpreter_of(tmp_path / "pipe") is None


def test_only_so_much_of_a_plain_file_is_read(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.write(b"begin")
        file.truncate(10 << 30)
    assert read_start(tmp_path / "huge", 7) == b"begin\0\0"
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(path)


def test_a_pipe_instead_of_torchs_version_does_not_hold_up_a_run(tmp_path: Path) -> None:
    python = program(tmp_path / "bin/python")
    folder = tmp_path / "lib/python3.11/site-packages/torch"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "version.py")
    assert torch_release([str(python)], {"PATH": ""}) is None
