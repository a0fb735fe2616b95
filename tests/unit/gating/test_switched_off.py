"""The kill switch: whose file is believed, and what stands in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.gating.name_files import NameFile, NameFileError
from ddpdoctor.gating.switched_off import read_switched_off
from tests.support.other_users import User


def test_names_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "killswitch"
    file.write_text("# since Monday\nxid-error   # ticket 4711\n\nlocal-firewall, clock-skew\n")
    assert read_switched_off(str(file)) == NameFile(("xid-error", "local-firewall", "clock-skew"))


def test_a_file_of_another_editor(tmp_path: Path) -> None:
    file = tmp_path / "killswitch"
    file.write_bytes(b"\xef\xbb\xbfxid-error\r\nclock-skew # x\r\n")
    assert read_switched_off(str(file)) == NameFile(("xid-error", "clock-skew"))


@pytest.mark.parametrize(
    ("content", "words"), [(b"xid-error\n\xff\n", "isn't text"), (b"xid-error\n" * 10_000, "is larger than 64 KiB")]
)
def test_a_file_that_is_no_list_of_names_is_none(content: bytes, words: str, tmp_path: Path) -> None:
    """Cut, or read as far as it makes sense, it would switch off what nobody meant, or not what somebody did."""
    file = tmp_path / "killswitch"
    file.write_bytes(content)
    with pytest.raises(NameFileError, match=words):
        read_switched_off(str(file))


def test_the_usual_file_need_not_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpdoctor.gating.switched_off.DEFAULT_FILE", str(tmp_path / "none"))
    assert read_switched_off(None) == NameFile()
    with pytest.raises(NameFileError, match="isn't there"):
        read_switched_off(str(tmp_path / "none"))


def test_what_can_not_be_read_is_no_empty_file(tmp_path: Path) -> None:
    with pytest.raises(NameFileError, match="can't be read"):
        read_switched_off(str(tmp_path))


@pytest.mark.parametrize("mode", [0o666, 0o662])
def test_a_file_that_everybody_may_write_is_not_believed(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "killswitch"
    file.write_text("xid-error\n")
    file.chmod(mode)
    off = read_switched_off(str(file))
    assert off.names == ()
    assert "is not believed" in off.remarks[0]


def test_a_hard_link_is_not_believed(tmp_path: Path) -> None:
    file = tmp_path / "killswitch"
    file.write_text("xid-error\n")
    (tmp_path / "other").hardlink_to(file)
    assert read_switched_off(str(file)).names == ()


@pytest.mark.root
def test_another_users_file_is_not_believed(eve: User, shared: Path) -> None:
    eve.does(f"echo xid-error > {shared}/killswitch; ln -s {shared}/killswitch {shared}/link")
    for name in ("killswitch", "link"):
        off = read_switched_off(str(shared / name))
        assert off.names == ()
        assert "ddpdoctor-eve" in off.remarks[0]
    eve.does(f"rm {shared}/killswitch; mkfifo {shared}/killswitch")
    assert read_switched_off(str(shared / "killswitch")).names == ()
