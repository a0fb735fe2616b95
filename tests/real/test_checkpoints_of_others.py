"""`fix-checkpoint` where another user may put files beside the checkpoint: what lies there is not believed, and not touched."""

from __future__ import annotations

import hashlib
import os
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import torch

from ddpdoctor.checkpoints.errors import Refused
from ddpdoctor.checkpoints.formats.layouts import Patch
from ddpdoctor.checkpoints.writing import exclusive_open as holding
from ddpdoctor.checkpoints.writing import in_place, journal
from ddpdoctor.checkpoints.writing.journal import JournalStage, Layer, undo_file
from tests.support.checkpoints import on, pins, save
from tests.support.command import command, ddpdoctor, plain_environ
from tests.support.other_users import User

pytestmark = pytest.mark.root

EVIL = b"EVIL BYTES"


class Said(NamedTuple):
    code: int
    text: str


def as_root(*arguments: str | Path) -> Said:
    ended = ddpdoctor("fix-checkpoint", *arguments, timeout=60)
    return Said(ended.returncode, " ".join((ended.stdout + ended.stderr).split()))


def by(user: User, *arguments: str | Path) -> Said:
    ended = user.ddpdoctor("fix-checkpoint", *arguments)
    return Said(ended.returncode, " ".join((ended.stdout + ended.stderr).split()))


@pytest.fixture
def path(shared: Path, ada: User) -> Path:
    """Ada's, pinned to a GPU, in the folder for all."""
    path = save(torch.nn.Linear(4, 4).state_dict(), shared / "last.pt", on("cuda:3"))
    return given(path, ada)


def given(path: Path, user: User) -> Path:
    os.chown(path, user.uid, user.gid)
    path.chmod(0o644)
    return path


def forged(checkpoint: bytes) -> bytes:
    """An undo file by which a change seems to have been cut short, so that EVIL has to be brought back in the middle."""
    at = len(checkpoint) // 2
    here, then = checkpoint[at : at + len(EVIL)], checkpoint[at + 100 : at + 101]
    patches = (Patch(at, EVIL, here), Patch(at + 100, then, bytes([then[0] ^ 1])))
    content = bytearray(checkpoint)
    for patch in patches:
        content[patch.offset : patch.offset + len(patch.old)] = bytes(len(patch.old))
    witness = hashlib.sha256(content[: 4 << 10] + content[max(0, len(content) - (64 << 10)) :]).digest()
    layer = Layer(len(checkpoint), 0, patches, 0, hashlib.sha256(b"").digest(), witness)
    payload = zlib.compress(msgspec.msgpack.encode(layer))
    digest = hashlib.sha256(payload).digest()
    return journal.HEADER.pack(journal.MAGIC, journal.VERSION, JournalStage.CHANGING, len(payload), digest) + payload


def put(content: bytes, user: User, path: Path, mode: int = 0o644) -> Path:
    """A file of that user's."""
    own = user.home / "put"
    own.write_bytes(content)
    given(own, user)
    user.does(f"cp {own} {path}; chmod {mode:o} {path}; rm {own}")
    return path


def test_the_forgery_would_be_believed_of_the_owner_herself(path: Path, ada: User) -> None:
    """Else the tests below would show nothing."""
    put(forged(path.read_bytes()), ada, undo_file(path))
    said = by(ada, path)
    assert EVIL in path.read_bytes()
    assert "it is taken back" in said.text


@pytest.mark.parametrize("caller", ["ada", "root"])
def test_an_undo_file_of_somebody_else_is_named_and_left_alone(path: Path, ada: User, eve: User, caller: str) -> None:
    forgery = put(forged(path.read_bytes()), eve, undo_file(path))
    before, theirs = path.read_bytes(), forgery.read_bytes()
    for arguments in ([path], ["--undo", path]):
        said = by(ada, *arguments) if caller == "ada" else as_root(*arguments)
        assert said.code == 2, said.text
        assert "last.pt.ddpdoctor-undo belongs to ddpdoctor-eve (the checkpoint to ddpdoctor-ada)" in said.text
        assert f"ls -l {forgery}" in said.text
        assert (path.read_bytes(), forgery.read_bytes(), forgery.stat().st_uid) == (before, theirs, eve.uid)
    # A new file needs none of it.
    out = path.with_name(f"{caller}.pt")
    said = by(ada, "-o", out, path) if caller == "ada" else as_root("-o", out, path)
    assert (said.code, set(pins(out))) == (0, {"cpu"})


def test_a_clean_checkpoint_is_clean_whatever_somebody_lays_beside_it(path: Path, ada: User, eve: User) -> None:
    given(save(torch.nn.Linear(4, 4).state_dict(), path), ada)
    undo, draft = undo_file(path), f"{undo_file(path)}.new"
    ways = {
        "a forgery": lambda: put(forged(path.read_bytes()), eve, undo),
        "nothing for others to read": lambda: put(b"x", eve, undo, 0o600),
        "a link": lambda: eve.does(f"ln -s {path} {undo}"),
        "a pipe": lambda: eve.does(f"mkfifo -m 666 {undo}"),
        "a folder": lambda: eve.does(f"mkdir {undo}"),
        "a draft": lambda: put(b"x", eve, Path(draft)),
        "a folder as a draft": lambda: eve.does(f"mkdir {draft}"),
        "a pipe as a draft": lambda: eve.does(f"mkfifo -m 666 {draft}"),
    }
    before = path.read_bytes()
    for way, lay in ways.items():
        lay()
        said = by(ada, path)
        assert said.code == 0, (way, said.text)
        assert ("belongs to ddpdoctor-eve" in said.text) is ("draft" not in way), (way, said.text)
        assert path.read_bytes() == before
        eve.does(f"rm -r {undo} 2>&- || rm -r {draft}")  # It is still there.


def test_drafts_that_block_for_ever_are_named(path: Path, ada: User, eve: User) -> None:
    eve.does(f"mkfifo {undo_file(path)}.new")
    said = by(ada, path)
    assert said.code == 2
    assert "last.pt.ddpdoctor-undo.new belongs to ddpdoctor-eve" in said.text
    assert set(pins(path)) == {"cuda:3"}


def test_what_root_fixed_its_owner_and_root_can_go_on_with(path: Path, ada: User) -> None:
    original = path.read_bytes()
    for change, undo in ((as_root, by_ada(ada)), (by_ada(ada), as_root), (as_root, as_root)):
        assert change(path).code == 0
        status = undo_file(path).stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (ada.uid, ada.gid, 0o644)
        assert undo("--undo", path).code == 0
        assert path.read_bytes() == original


def by_ada(ada: User) -> Callable[..., Said]:
    return lambda *arguments: by(ada, *arguments)


def test_an_undo_file_that_others_may_write_counts_only_if_they_may_write_the_checkpoint(
    path: Path, ada: User, eve: User
) -> None:
    """Eve is in the group; the undo file is as releases before this one left it."""
    forgery = put(forged(path.read_bytes()), ada, undo_file(path), 0o664)
    before = path.read_bytes()
    os.chown(forgery, ada.uid, eve.gid)
    for mode in (0o644, 0o664):
        path.chmod(mode)
        said = by(ada, path)
        assert said.code == 2
        assert "last.pt.ddpdoctor-undo may be written by the group ddpdoctor-eve" in said.text
        assert path.read_bytes() == before
    os.chown(path, ada.uid, eve.gid)
    by(ada, path)
    assert EVIL in path.read_bytes()  # Of the same group, and writable by it: they need no undo file for that.


def test_a_group_may_not_write_a_new_undo_file(path: Path, ada: User, eve: User) -> None:
    path.chmod(0o664)
    os.chown(path, ada.uid, eve.gid)
    assert as_root(path).code == 0
    status = undo_file(path).stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (ada.uid, eve.gid, 0o644)
    assert by(ada, "--undo", path).code == 0


def test_a_secret_checkpoints_undo_file_is_not_for_a_group_that_it_is_not_for(path: Path, ada: User, eve: User) -> None:
    """Ada is not in the checkpoint's group, so that she can't give the undo file to it."""
    os.chown(path, ada.uid, eve.gid)
    path.chmod(0o640)
    assert by(ada, path).code == 0
    assert undo_file(path).stat().st_mode & 0o777 == 0o600


def test_an_undo_file_with_a_second_name_is_not_believed(path: Path, ada: User) -> None:
    forgery = put(forged(path.read_bytes()), ada, path.with_name("elsewhere"))
    os.link(forgery, undo_file(path))
    before = path.read_bytes()
    said = by(ada, path)
    assert said.code == 2
    assert "hard links" in said.text
    assert path.read_bytes() == before


def test_one_that_was_being_put_aside_when_the_run_was_killed_is_no_obstacle(path: Path, ada: User) -> None:
    """It then has both names."""
    assert by(ada, path).code == 0
    given(save({"other": torch.ones(500)}, path, on("cuda:1")), ada)
    os.link(undo_file(path), f"{undo_file(path)}.old")
    said = by(ada, path)
    assert (said.code, set(pins(path))) == (0, {"cpu"}), said.text


def swapping(name: str, eve: User, shared: Path, monkeypatch: pytest.MonkeyPatch, lay: str) -> None:
    """As soon as the run comes to that step, Eve lays something else in the undo file's place: the folder isn't sticky."""
    shared.chmod(0o777)
    real = getattr(journal, name)

    def step(held: holding.ExclusiveFile, *arguments: object) -> object:
        monkeypatch.setattr(journal, name, real)
        eve.does(lay)
        return real(held, *arguments)

    monkeypatch.setattr(journal, name, step)


@pytest.mark.parametrize("what", ["link", "hard link", "pipe", "folder", "file", "nothing"])
@pytest.mark.parametrize("step", ["mark", "pop", "ensure_there"])
def test_an_undo_file_that_is_swapped_is_not_written_to(
    shared: Path, ada: User, eve: User, monkeypatch: pytest.MonkeyPatch, step: str, what: str
) -> None:
    path = given(save(torch.nn.Linear(4, 4).state_dict(), shared / "last.pt", on("cuda:3")), ada)
    from ddpdoctor.checkpoints.fixing import EditOptions, fix

    original = path.read_bytes()
    victim = shared / "victim"
    victim.write_bytes(b"of root" * 1000)
    undo = undo_file(path)
    lay = {
        "link": f"ln -s {victim} {undo}",
        "hard link": "true",
        "pipe": f"mkfifo -m 666 {undo}",
        "folder": f"mkdir {undo}",
        "file": f"echo hers > {undo}",
        "nothing": "true",
    }[what]
    undoing = step != "ensure_there"
    if undoing:
        fix(path, EditOptions())
    swapping(step, eve, shared, monkeypatch, f"mv {undo} {shared}/away; {lay}")
    if what == "hard link":
        # Eve can't link root's file where the kernel protects that; root does it for her.
        real = journal._opened
        monkeypatch.setattr(journal, "_opened", lambda *given: (linked(victim, undo, shared / "away"), real(*given))[1])
    if undoing:
        with pytest.raises(Refused):
            in_place.undo(path)
    else:
        outcome = fix(path, EditOptions())
        assert "as it was" in outcome.error
        assert path.read_bytes() == original
    assert victim.read_bytes() == b"of root" * 1000
    if what == "file":
        assert undo.read_text() == "hers\n"


def linked(victim: Path, undo: Path, moved: Path) -> None:
    if moved.exists() and not os.path.lexists(undo):
        os.link(victim, undo)


def test_what_recovery_changed_is_said_though_the_run_is_then_refused(path: Path, ada: User) -> None:
    """Taken back to something that is no checkpoint."""
    put(forged(path.read_bytes()), ada, undo_file(path))
    said = as_root("--to", "cpu", path)
    assert EVIL in path.read_bytes()
    assert "An earlier run was cut short while it changed this file; it is taken back" in said.text
    assert said.code == 2, said.text


def test_root_is_not_led_by_a_link_to_somebody_elses_checkpoint(path: Path, ada: User, eve: User, shared: Path) -> None:
    """As by an index in a folder of Eve's that names a file below a link."""
    adas = shared / "adas"
    adas.mkdir()
    os.chown(adas, ada.uid, ada.gid)
    path = path.rename(adas / "last.pt")
    before = path.read_bytes()
    index = '{"weight_map": {"a": "sub/last.pt"}}'
    eve.does(f"mkdir {shared}/hers; ln -s {adas} {shared}/hers/sub; echo '{index}' > {shared}/hers/x.pt.index.json")
    said = as_root(shared / "hers" / "x.pt.index.json")
    assert said.code == 2
    assert (
        f"The link {shared}/hers/sub, which belongs to ddpdoctor-eve, leads to another user's checkpoint" in said.text
    )
    assert f"ddpdoctor fix-checkpoint {path}" in said.text
    assert path.read_bytes() == before
    # By a link of their owner's, and by root's own, as always.
    (shared / "link").symlink_to(adas)
    assert as_root(shared / "link" / "last.pt").code == 0
    os.lchown(shared / "link", ada.uid, ada.gid)
    assert as_root("--undo", shared / "link" / "last.pt").code == 0
    assert path.read_bytes() == before


def test_a_new_files_hidden_name_that_somebody_holds_is_named(path: Path, ada: User, eve: User, shared: Path) -> None:
    hidden = shared / ".out.pt.ddpdoctor-new"
    for lay in (f"ln -s {path} {hidden}", f"echo > {hidden}; chmod 600 {hidden}", f"mkdir {hidden}"):
        eve.does(lay)
        before = path.read_bytes()
        said = by(ada, "-o", shared / "out.pt", path)
        assert said.code == 2
        assert f"{hidden} is in the way" in said.text
        assert "belongs to ddpdoctor-eve" in said.text
        assert path.read_bytes() == before
        eve.does(f"rm -r {hidden}")


@pytest.mark.tool("strace")
def test_a_new_file_of_a_secret_checkpoint_is_never_for_others(path: Path, shared: Path, eve: User) -> None:
    """Watched while it is written, by the modes of everything in the folder."""
    path.chmod(0o600)
    out, trace = shared / "copy.pt", shared / "trace"
    traced = ["strace", "-f", "-o", trace, "-e", "trace=openat,fchmod,chmod,rename,renameat2"]
    subprocess.run([*traced, *command("fix-checkpoint", "-o", out, path)], env=plain_environ(), check=True)
    calls = [line for line in trace.read_text().splitlines() if "ddpdoctor-new" in line and "O_CREAT" in line]
    assert len(calls) == 1
    assert "O_EXCL" in calls[0]
    assert "0600" in calls[0]
    assert "chmod" in trace.read_text()
    assert all("0600" in line for line in trace.read_text().splitlines() if "fchmod(" in line)
    assert out.stat().st_mode & 0o777 == 0o600
    assert eve.run(["cat", out]).returncode != 0
