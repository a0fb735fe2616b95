"""Who could replace what lies at a path, tried with two users beside root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpdoctor.base.ownership import foothold_of_file, foothold_on, open_folder, trusted_users
from tests.support.other_users import User, python_for_all

pytestmark = pytest.mark.root


def test_what_is_roots_all_the_way_is_nobody_elses() -> None:
    assert foothold_on("/usr/bin/env") is None
    assert foothold_on("/") is None
    assert foothold_on("/proc/self/status") is None


def test_a_file_of_roots_in_a_folder_of_anothers_can_be_replaced(shared: Path, eve: User) -> None:
    eve.does(f"mkdir {shared}/hers")
    file = shared / "hers" / "roots"
    file.write_text("x")
    found = foothold_on(file)
    assert found is not None
    assert (found.path, found.uid) == (f"{shared}/hers", eve.uid)
    assert found.words == f"{shared}/hers belongs to ddpdoctor-eve"
    eve.does(f"rm -f {file}; echo hers > {file}")  # As she could.


def test_a_sticky_folder_for_all_holds_what_its_owners_put_there(shared: Path, ada: User, eve: User) -> None:
    ada.does(f"umask 022; echo x > {shared}/adas")
    assert foothold_on(shared / "adas", [ada.uid]) is None
    assert foothold_on(shared / "adas", [eve.uid]) == (f"{shared}/adas", ada.uid, "")


def test_without_the_sticky_bit_everybody_could(shared: Path) -> None:
    shared.chmod(0o777)
    (shared / "roots").write_text("x")
    assert foothold_on(shared / "roots") == (str(shared), 0, "everybody")


def test_a_link_counts_and_so_does_the_way_to_what_it_names(shared: Path, eve: User) -> None:
    eve.does(f"ln -s /usr/bin/env {shared}/link; mkdir {shared}/hers; ln -s /usr/bin {shared}/hers/bin")
    assert foothold_on(shared / "link") == (f"{shared}/link", eve.uid, "")
    (shared / "roots").symlink_to(shared / "hers" / "bin" / "env")
    assert foothold_on(shared / "roots") == (f"{shared}/hers", eve.uid, "")


def test_links_in_a_circle_are_an_error(shared: Path) -> None:
    (shared / "one").symlink_to("other")
    (shared / "other").symlink_to("one")
    with pytest.raises(OSError, match="Too many levels"):
        foothold_on(shared / "one")


def test_two_dots_behind_a_link_lead_where_the_kernel_goes(shared: Path, eve: User) -> None:
    (shared / "roots").mkdir()
    eve.does(f"mkdir -p {shared}/hers/inner; echo x > {shared}/hers/file")
    (shared / "roots" / "link").symlink_to(shared / "hers" / "inner")
    found = foothold_on(f"{shared}/roots/link/../file")
    assert found is not None
    assert found.uid == eve.uid


def test_a_group_counts_unless_it_is_the_users_own(shared: Path, ada: User, eve: User) -> None:
    file = shared / "adas"
    ada.does(f"umask 002; echo x > {file}")
    assert foothold_on(file, [ada.uid]) is None
    os.chown(file, ada.uid, eve.gid)
    assert foothold_on(file, [ada.uid]) == (str(file), ada.uid, "the group ddpdoctor-eve")


def test_a_relative_path_counts_from_the_current_folder(
    shared: Path, eve: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    eve.does(f"mkdir {shared}/hers; echo x > {shared}/hers/file")
    monkeypatch.chdir(shared / "hers")
    assert foothold_on("file") == (f"{shared}/hers", eve.uid, "")


def test_a_working_folder_that_is_gone_matters_to_relative_paths_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert foothold_on("/usr/bin/env") is None
    with pytest.raises(FileNotFoundError):
        foothold_on("env")


def test_an_open_file_is_judged_by_itself(shared: Path, eve: User) -> None:
    file = shared / "roots"
    file.write_text("x")
    with file.open() as opened:
        assert foothold_of_file(opened.fileno(), str(file)) is None
        os.link(file, shared / "again")
        found = foothold_of_file(opened.fileno(), str(file))
        assert found is not None
        assert "hard links" in found.words
    eve.does(f"echo x > {shared}/hers")
    with (shared / "hers").open() as opened:
        assert foothold_of_file(opened.fileno(), "hers") == ("hers", eve.uid, "")


def test_root_and_oneself_are_trusted() -> None:
    assert trusted_users() == {0, os.geteuid()}


def test_a_folder_is_opened_in_anybodys_but_by_no_link_of_theirs(shared: Path, eve: User, tmp_path: Path) -> None:
    eve.does(f"mkdir -p {shared}/hers/own; ln -s {tmp_path} {shared}/hers/away; ln -s own {shared}/hers/near")
    (shared / "link").symlink_to("hers/own")
    for path in ("hers/own", "link", "hers/near", "."):
        os.close(open_folder(shared / path))
    with pytest.raises(OSError, match=f"a link leads to {tmp_path}, and {shared}/hers belongs to ddpdoctor-eve"):
        open_folder(shared / "hers" / "away")
    eve.does(f"ln -s {tmp_path} {shared}/sticky")
    with pytest.raises(OSError, match=f"a link leads to {tmp_path}, and {shared}/sticky belongs to ddpdoctor-eve"):
        open_folder(shared / "sticky")


def test_where_root_has_no_number_the_host_s_own_folders_are_still_roots(ada: User) -> None:
    """As in Apptainer. Whoever else has none there can't be told from root."""
    python, settings = python_for_all()
    namespace = ["unshare", "--map-current-user"]
    if ada.run([*namespace, "true"]).returncode:
        pytest.skip("this kernel makes no user namespaces for ordinary users")
    ask = "from ddpdoctor.base.ownership import foothold_on; print(foothold_on('/tmp'))"
    assert ada.run([*namespace, python, "-c", ask], environ=settings).stdout == "None\n"
