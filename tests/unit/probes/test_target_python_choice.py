from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddpdoctor.probes.target_python import choice
from ddpdoctor.probes.target_python.choice import choose_python
from tests.support.pythons import stand_in


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """The folder of a virtual environment whose python is a link."""
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(sys.executable)
    return tmp_path / "venv"


def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda name: None)


def test_option_wins_over_everything(environment: Path, tmp_path: Path) -> None:
    mine = stand_in(tmp_path, "true", "my-python")
    assert choose_python(mine, {"VIRTUAL_ENV": str(environment)}) == (mine, "--python")


def test_option_may_be_an_environments_folder_and_its_link_stays_a_link(environment: Path) -> None:
    assert choose_python(str(environment), {}) == (str(environment / "bin" / "python"), "--python")


def test_option_may_be_a_command(tmp_path: Path) -> None:
    mine = stand_in(tmp_path, "true", "python3.99")
    assert choose_python("python3.99", {"PATH": f"/nonexistent:{tmp_path}"}) == (mine, "--python")


def test_command_that_is_not_there_keeps_its_name() -> None:
    assert choose_python("python3.99", {"PATH": "/nonexistent"}) == ("python3.99", "--python")


def test_relative_option_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert choose_python("venv/bin/python", {})[0] == str(tmp_path / "venv/bin/python")
    assert choose_python("~/x/python", {})[0].endswith("/x/python")
    assert not choose_python("~/x/python", {})[0].startswith("~")


def test_folder_that_is_no_environment_is_named_as_it_is(tmp_path: Path) -> None:
    assert choose_python(str(tmp_path), {}) == (str(tmp_path), "--python")


def test_active_virtual_environment(environment: Path) -> None:
    assert choose_python(None, {"VIRTUAL_ENV": str(environment)}) == (f"{environment}/bin/python", "VIRTUAL_ENV")


def test_active_environment_is_named_even_if_its_python_is_gone() -> None:
    assert choose_python(None, {"VIRTUAL_ENV": "/gone"}) == ("/gone/bin/python", "VIRTUAL_ENV")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v/bin:/c/bin:/usr/bin", "VIRTUAL_ENV"),
        ("/c/bin:/v/bin:/usr/bin", "CONDA_PREFIX"),
        ("/c/bin/:/v/bin", "CONDA_PREFIX"),
        ("/usr/bin", "VIRTUAL_ENV"),
    ],
)
def test_of_two_active_environments_the_first_on_path_counts(path: str, expected: str) -> None:
    assert choose_python(None, {"VIRTUAL_ENV": "/v", "CONDA_PREFIX": "/c", "PATH": path})[1] == expected


def test_our_own_interpreter_where_torch_is_beside_us(tmp_path: Path) -> None:
    stand_in(tmp_path, "true", "python3")
    assert choose_python(None, {"PATH": str(tmp_path)}) == (sys.executable, "our own interpreter")


def test_doctor_installed_on_its_own_takes_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_torch(monkeypatch)
    mine = stand_in(tmp_path, "true", "python3")
    assert choose_python(None, {"PATH": str(tmp_path)}) == (mine, "PATH")


def test_python_2_on_path_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_torch(monkeypatch)
    stand_in(tmp_path, "true", "python2.7")
    (tmp_path / "python").symlink_to("python2.7")
    three = stand_in(tmp_path, "true", "python3")
    assert choose_python(None, {"PATH": str(tmp_path)}) == (three, "PATH")


def test_nothing_on_path_leaves_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    without_torch(monkeypatch)
    assert choose_python(None, {"PATH": "/nonexistent"}) == (sys.executable, "our own interpreter")


@pytest.mark.parametrize("own", ["home/.cache/uv/archive-v0/x", "home/.local/share/pipx/venvs/ddpdoctor"])
def test_environment_that_a_tool_made_for_us_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    without_torch(monkeypatch)
    (tmp_path / own / "bin").mkdir(parents=True)
    stand_in(tmp_path / own / "bin", "true", "python")
    mine = stand_in(tmp_path, "true", "python3")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / own))
    assert choose_python(None, {"PATH": f"{tmp_path / own}/bin/:{tmp_path}"}) == (mine, "PATH")


def test_environment_of_an_image_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images put /opt/venv/bin first on PATH without activating it."""
    without_torch(monkeypatch)
    (tmp_path / "opt" / "venv" / "bin").mkdir(parents=True)
    ours = stand_in(tmp_path / "opt" / "venv" / "bin", "true", "python")
    stand_in(tmp_path, "true", "python")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "opt" / "venv"))
    assert choose_python(None, {"PATH": f"{tmp_path}/opt/venv/bin:{tmp_path}"}) == (ours, "PATH")
