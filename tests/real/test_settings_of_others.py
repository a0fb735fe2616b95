"""`check --fix` in folders where another user may put, or replace, files: what she writes is never sourced."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddpdoctor.base.findings import Fix, Severity
from ddpdoctor.checks.catalogue import select
from ddpdoctor.fixes import settings_file as file
from ddpdoctor.fixes.appliable_fixes import AppliableFix, Case
from ddpdoctor.fixes.applying import Applied, apply
from ddpdoctor.fixes.choosing import FixChoice
from ddpdoctor.fixes.proof import look_again
from ddpdoctor.fixes.settings_lines import Line
from tests.support.command import ddpdoctor
from tests.support.other_users import User
from tests.support.waiting import wait_for

pytestmark = pytest.mark.root

ILL = {"CUDA_LAUNCH_BLOCKING": "1"}
CHOSEN = ("check", "--fix", "--select", "setting-dangerous", "--nproc", "2")
NAME = "ddpdoctor-settings.sh"
SETTINGS = [file.SettingsLine(Line("CUDA_LAUNCH_BLOCKING", "export CUDA_LAUNCH_BLOCKING=1"), "setting-dangerous")]
DAY = "2026-11-23"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Root's own for these tests."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


@contextmanager
def replacing(eve: User, folder: Path, payload: str) -> Iterator[None]:
    """Whatever is called as the settings file there is Eve's a moment later."""
    script = (
        f"cd {folder}; printf '%s\\n' '{payload}' > hers; while :; do if [ -e {NAME} ] && ! cmp -s hers {NAME}; "
        f"then cp hers new; mv -f new {NAME}; fi; done"
    )
    process = subprocess.Popen(["sh", "-c", script], user=eve.uid, group=eve.gid, extra_groups=[], cwd="/")
    try:
        wait_for((folder / "hers").exists, 10)
        yield
    finally:
        process.kill()
        process.wait()


def without_breaks(text: str) -> str:
    """Long paths are broken where the line ends."""
    return "".join(text.split())


def test_what_somebody_lays_in_its_place_while_it_is_proved_is_not_run(shared: Path, eve: User, home: Path) -> None:
    shared.chmod(0o777)
    sign = shared / "sign"
    with replacing(eve, shared, f"id -u > {sign}"):
        arguments = (*CHOSEN, "--yes", "--python", sys.executable)
        ended = ddpdoctor(*arguments, environ=ILL | {"HOME": str(home)}, cwd=shared, timeout=110)
    assert not sign.exists(), ended.stdout
    assert "unset CUDA_LAUNCH_BLOCKING" in (home / NAME).read_text()
    said = f"The settings were written to {home}/{NAME}, not in {shared}: {shared} may be written by everybody."
    assert without_breaks(said) in without_breaks(ended.stdout)
    assert f"    source {home}/{NAME}\n" in ended.stdout
    assert not (shared / NAME).exists()


def test_what_was_written_is_sourced_whatever_lies_there_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may replace it here is root, but the file's name is not asked again."""
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    remedy = AppliableFix(fix=Fix("text", commands=("export CUDA_LAUNCH_BLOCKING=1",)), lines=(SETTINGS[0].line,))
    case = Case(slug="setting-dangerous", severity=Severity.WARN, summary="", fixes=(remedy.fix,), remedies=(remedy,))
    applied = Applied()
    apply([FixChoice(case=case, remedy=remedy)], tmp_path, applied)
    assert not applied.settings_replaced
    sign = tmp_path / "sign"
    Path(applied.settings_file).write_text(f"{file.HEADER}\necho > {sign}\n")
    arguments = (f"--python={sys.executable}", "--select=setting-dangerous", "--quick")
    checks = select(["setting-dangerous"])
    found = look_again(arguments, applied.settings, None, checks).findings
    assert [check.slug for check, _, _ in found] == ["setting-dangerous"]
    assert not sign.exists()
    assert applied.settings_replaced


def test_a_file_that_somebody_else_made_or_brought_is_not_sourced(shared: Path, eve: User) -> None:
    """Not even to see whether it can be: by its owner, its kind, its mode and its links."""
    sign = shared / "sign"
    folder = shared / "folder"
    folder.mkdir()
    folder.chmod(0o777)
    text = f"{file.HEADER}\necho > {sign}\n"
    (shared / "text").write_text(text)
    old = shared / "old"
    old.write_text(text)
    ways = {
        "hers": f"cp {shared}/text {folder}/{NAME}",
        "a link to an old one of root's": f"ln -s {old} {folder}/{NAME}",
        "a pipe": f"mkfifo -m 666 {folder}/{NAME}",
        "a folder": f"mkdir {folder}/{NAME}",
    }
    for way, lay in ways.items():
        eve.does(lay)
        assert file.free_path(folder).name == "ddpdoctor-settings-2.sh", way
        eve.does(f"rm -r {folder}/{NAME}")
    os.link(old, folder / NAME)
    assert file.free_path(folder).name == "ddpdoctor-settings-2.sh"
    with pytest.raises(FileExistsError):
        file.write(folder / NAME, SETTINGS, DAY)
    assert not sign.exists()
    (folder / NAME).unlink()
    assert file.free_path(shared).name == NAME
    old.rename(shared / NAME)
    assert file.free_path(shared).name == NAME
    assert sign.exists()  # Root's own, with one name: that one is.


def test_one_that_is_swapped_after_it_was_judged_is_not_sourced(
    shared: Path, eve: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a shell reads is what was judged."""
    folder = shared / "folder"
    folder.mkdir()
    folder.chmod(0o777)
    file.write(folder / NAME, SETTINGS, DAY)
    sign = shared / "sign"
    real = file.can_be_sourced

    def swapped(text: str) -> bool:
        eve.does(f"rm {folder}/{NAME}; echo 'echo > {sign}' > {folder}/{NAME}")
        return real(text)

    monkeypatch.setattr(file, "can_be_sourced", swapped)
    assert file.free_path(folder).name == NAME
    assert not sign.exists()


def test_where_the_settings_go(shared: Path, ada: User, eve: User, home: Path) -> None:
    own = shared / "roots"
    own.mkdir()
    assert file.safe_place(own) == (own / NAME, "")
    hers = shared / "hers"
    eve.does(f"mkdir {hers}")
    assert file.safe_place(hers) == (home / NAME, f"not in {hers}: {hers} belongs to ddpdoctor-eve")
    below = hers / "roots"
    below.mkdir()
    assert file.safe_place(below) == (home / NAME, f"not in {below}: {hers} belongs to ddpdoctor-eve")
    # Sticky, too: cleared away there, the name is anybody's.
    assert file.safe_place(shared) == (home / NAME, f"not in {shared}: {shared} may be written by everybody")
    os.chown(own, 0, eve.gid)
    own.chmod(0o2775)
    assert file.safe_place(own) == (home / NAME, f"not in {own}: {own} may be written by the group ddpdoctor-eve")


def test_a_home_that_sudo_kept_is_not_roots(shared: Path, ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(ada.home))
    path = file.safe_place(shared).path
    assert path is not None
    assert path.parent == Path(pwd.getpwuid(0).pw_dir)


def test_without_any_safe_folder_they_are_refused(shared: Path, eve: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(shared))
    monkeypatch.setattr(file, "_home", lambda: None)
    where = file.safe_place(shared)
    assert where.path is None
    assert f"{shared} may be written by everybody. Run it in a folder of your own" in where.reason
    ended = ddpdoctor(*CHOSEN, "--dry-run", environ=ILL, cwd=shared)
    assert "WOULD APPLY" in ended.stdout  # With the home that root has.


def test_an_innocent_user_with_a_group_of_her_own_sees_no_difference(shared: Path, ada: User) -> None:
    ada.does(f"umask 002; mkdir {shared}/adas")
    ended = ada.ddpdoctor(*CHOSEN, "--dry-run", cwd=shared / "adas", environ=ILL)
    assert f"written to {NAME}; nothing was changed now" in " ".join(ended.stdout.split()), ended.stderr
    ended = ada.ddpdoctor(*CHOSEN, "--dry-run", cwd=shared, environ=ILL)
    said = f"written to {ada.home}/{NAME} (not in {shared}"
    assert without_breaks(said) in without_breaks(ended.stdout), ended.stderr


def test_roots_shell_is_the_systems_and_runs_nothing_first(
    shared: Path, eve: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign = shared / "sign"
    eve.does(f"printf '#!/bin/sh\\nid -u > {sign}\\n' > {shared}/bash; chmod 755 {shared}/bash")
    monkeypatch.setenv("PATH", f"{shared}:{os.environ['PATH']}")
    monkeypatch.setenv("BASH_ENV", f"{shared}/bash")
    assert file.shell() in file.SHELLS
    assert file.can_be_sourced("export A=1\n")
    assert not file.can_be_sourced("exit 1\n")
    assert not sign.exists()
