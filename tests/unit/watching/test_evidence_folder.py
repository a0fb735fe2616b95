"""The folder of an alarm is new, private, and where it was meant to be."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ddpdoctor.watching import evidence_folder
from ddpdoctor.watching.evidence_folder import prepare, write_evidence
from tests.support.other_users import User, shared_folder

FILES = {"report.md": b"text"}


def test_it_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = Path(write_evidence(tmp_path, "4711", FILES))
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "report.md").stat().st_mode) == 0o600
    assert (folder / "report.md").read_bytes() == b"text"


def test_nothing_is_overwritten_and_no_link_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_folder.time, "strftime", lambda _: "20260101-000000")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "1-20260101-000000").symlink_to(elsewhere)
    (tmp_path / "1-20260101-000000-1").mkdir()
    (tmp_path / "1-20260101-000000-1" / "report.md").write_text("of another alarm")
    assert write_evidence(tmp_path, "1", FILES) == str(tmp_path / "1-20260101-000000-2")
    assert list(elsewhere.iterdir()) == []
    assert (tmp_path / "1-20260101-000000-1" / "report.md").read_text() == "of another alarm"


def test_it_is_made_with_those_above_it(tmp_path: Path) -> None:
    prepare(tmp_path / "new" / "folder")
    assert list((tmp_path / "new" / "folder").iterdir()) == []


@pytest.mark.root
def test_somebody_elses_link_leads_nowhere(eve: User, tmp_path: Path) -> None:
    with shared_folder() as folder:
        secret = tmp_path / "roots"
        secret.mkdir()
        eve.does(f"ln -s {secret} {folder}/evidence")
        with pytest.raises(OSError, match=r"link|belongs"):
            prepare(folder / "evidence")
        with pytest.raises(OSError, match=r"link|belongs"):
            write_evidence(folder / "evidence", "1", FILES)
        assert list(secret.iterdir()) == []


@pytest.mark.root
def test_root_writes_nothing_below_another_users_folder(ada: User) -> None:
    with shared_folder() as folder:
        evidence = folder / "hers" / "evidence"
        evidence.mkdir(parents=True)
        os.chown(evidence.parent, ada.uid, ada.gid)
        with pytest.raises(OSError, match=rf"hers belongs to {ada.name}"):
            prepare(evidence)
        with pytest.raises(OSError, match=rf"hers belongs to {ada.name}"):
            write_evidence(evidence, "1", FILES)
        assert list(evidence.iterdir()) == []
