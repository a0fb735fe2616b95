"""`ddpdoctor run` of root's where another user owns the folder of what it writes and reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import ddpdoctor
from tests.support.other_users import User

pytestmark = pytest.mark.root

PRECIOUS = "what root has\n"


@pytest.fixture
def hers(eve: User, shared: Path) -> Path:
    """A folder of eve's."""
    folder = shared / "hers"
    eve.does(f"mkdir {folder}; chmod 755 {folder}")
    return folder


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file of root's that she would like to have overwritten."""
    file = tmp_path / "precious"
    file.write_text(PRECIOUS)
    return file


def kept_in(path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return ddpdoctor("run", "--keep", path, "--", *(command or ("echo", "out")))


@pytest.mark.parametrize(
    ("trap", "why"),
    [
        ("ln -s {precious} {hers}/log", "it is a link, and "),
        ("mkfifo {hers}/log", "it is no regular file"),
        ("touch {hers}/log", "it is there already and belongs to ddpdoctor-eve"),
    ],
)
def test_what_she_has_put_there_is_not_written_to(trap: str, why: str, eve: User, hers: Path, precious: Path) -> None:
    eve.does(trap.format(hers=hers, precious=precious))
    done = kept_in(hers / "log")
    assert (done.returncode, done.stdout) == (2, "")
    assert why in " ".join(done.stderr.replace("│", "").split())
    assert precious.read_text() == PRECIOUS


def test_a_folder_of_roots_is_not_reached_by_a_link_of_hers(eve: User, hers: Path, precious: Path) -> None:
    eve.does(f"ln -s {precious.parent} {hers}/out")
    for name in ("precious", "new"):
        done = kept_in(hers / "out" / name)
        assert (done.returncode, done.stdout) == (2, "")
        assert "belongs to ddpdoctor-eve" in " ".join(done.stderr.replace("│", "").split())
    assert precious.read_text() == PRECIOUS
    assert not (precious.parent / "new").exists()


def test_a_file_with_another_name_is_not_written_to(hers: Path, precious: Path) -> None:
    """As she could make one where fs.protected_hardlinks is 0."""
    try:
        (hers / "log").hardlink_to(precious)
    except OSError:
        # A person may have it so; CI has not.
        assert not os.environ.get("CI")
        pytest.skip("both folders are on different file systems")
    done = kept_in(hers / "log")
    assert (done.returncode, done.stdout) == (2, "")
    assert precious.read_text() == PRECIOUS


@pytest.mark.parametrize("trap", ["rm -f log; ln -s {precious} log", "mv log old; ln -s {precious} log"])
def test_a_file_that_she_replaces_meanwhile_costs_the_copy_alone(
    trap: str, eve: User, hers: Path, precious: Path
) -> None:
    swap = f"cd {hers}; until [ -e log ]; do sleep 0.02; done; {trap.format(precious=precious)}"
    with subprocess.Popen(["sh", "-euc", swap], user=eve.uid, group=eve.gid, extra_groups=[]) as swapping:
        done = kept_in(hers / "log", "sh", "-c", f"until [ -h {hers}/log ]; do sleep 0.02; done; echo out; exit 3")
    assert (swapping.returncode, done.returncode, done.stdout) == (0, 3, "out\n")
    assert precious.read_text() == PRECIOUS
    if "rm" in trap:
        assert f"could not be kept in {hers}/log: it is a link" in done.stderr
    else:
        assert (hers / "old").read_text() == "out\n"


def test_what_is_kept_in_her_folder_is_for_root_alone(eve: User, hers: Path) -> None:
    for word in ("one", "two"):
        assert kept_in(hers / "log", "echo", word).returncode == 0
        assert (hers / "log").read_text() == f"{word}\n"
    assert (hers / "log").stat().st_mode & 0o777 == 0o600
    assert eve.run(["cat", hers / "log"]).returncode != 0


def test_links_of_ones_own_lead_on(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "1").write_text("of before\n" * 9)
    (tmp_path / "latest").symlink_to("runs/1")
    (tmp_path / "out").symlink_to("runs")
    assert kept_in(tmp_path / "latest").returncode == 0
    assert (tmp_path / "runs" / "1").read_text() == "out\n"
    assert kept_in(tmp_path / "out" / "2").returncode == 0
    assert (tmp_path / "runs" / "2").read_text() == "out\n"


def test_a_command_that_empties_its_folder_costs_no_copy(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    done = kept_in(out / "log", "sh", "-c", f"rm -r {out}; mkdir {out}; echo out")
    assert (done.returncode, done.stderr) == (0, "")
    assert (out / "log").read_text() == "out\n"


def test_nothing_is_left_of_a_command_that_is_not_there(tmp_path: Path) -> None:
    environ = {"TMPDIR": str(tmp_path)}
    assert ddpdoctor("run", "--keep", tmp_path / "log", "--", "no-such-command", environ=environ).returncode == 127
    assert list(tmp_path.iterdir()) == []


def test_a_failed_run_without_dumps_leaves_no_folder(tmp_path: Path) -> None:
    for command in ("exit 3", "kill -9 $$"):
        assert ddpdoctor("run", "--", "sh", "-c", command, environ={"TMPDIR": str(tmp_path)}).returncode
        assert list(tmp_path.iterdir()) == []


def test_dumps_go_where_she_can_link_nothing(eve: User, hers: Path, precious: Path, tmp_path: Path) -> None:
    """One rank's dump shows her the name of the next."""
    eve.does(f"chmod 777 {hers}")
    program = (
        "import os, time\n"
        "beginning = os.environ['TORCH_FR_DUMP_TEMP_FILE']\n"
        "open(beginning + '0', 'w').close()\n"
        "until = time.monotonic() + 3\n"
        "while time.monotonic() < until and not os.path.lexists(beginning + '1'):\n"
        "    time.sleep(0.02)\n"
        "open(beginning + '1', 'w').write('dump')\n"
        "print(beginning)\n"
    )
    trap = f"""
    cd {hers}
    for _ in $(seq 250); do
        for file in *rank_0 */rank_0; do [ ! -e "$file" ] || ln -s {precious} "${{file%0}}1"; done
        sleep 0.02
    done 2>/dev/null"""
    with subprocess.Popen(["sh", "-c", trap], user=eve.uid, group=eve.gid, extra_groups=[]) as linking:
        done = ddpdoctor("run", "--", sys.executable, "-c", program, environ={"TMPDIR": str(hers)})
        linking.kill()
    assert precious.read_text() == PRECIOUS
    assert (done.returncode, done.stderr) == (0, "")
    folder = Path(done.stdout.strip()).parent
    assert not folder.is_relative_to(hers)
    assert not folder.exists()


def test_a_pipe_among_the_ranks_logs_is_not_waited_for(eve: User, hers: Path) -> None:
    eve.does(f"mkfifo {hers}/rank.log")
    done = ddpdoctor("run", "--", "sh", "-c", "exit 1", "-r", "3", "--log-dir", hers, timeout=100)
    assert done.returncode == 1
    assert "took too long" not in done.stderr
