"""Edits of scripts: what is not meant stays to the byte, and an edit that is not certainly right is not made."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from ddpdoctor.api.script_fixing import ScriptFixes, propose_script_fixes
from ddpdoctor.api.script_linting import lint
from ddpdoctor.base.findings import EditKind, SourceEdit, SourcePlace
from ddpdoctor.scripts.edits import SourceEditor, UneditableError
from ddpdoctor.scripts.rewriting import refusal, rewrite
from tests.support.script_cases import MAIN, SCRIPTS, ScriptCase, script_cases, working_folder

HERE = "train.py"
LOOP = SCRIPTS / "sampler-without-set-epoch" / "sick-one-file.py"
LOAD = SCRIPTS / "load-without-map-location" / "sick-resume.py"
SHUFFLE = SCRIPTS / "shuffle-with-sampler" / "sick-both.py"
OPTION = SCRIPTS / "local-rank-argument-only" / "sick-default-zero.py"


def place_of(text: str, words: str) -> SourcePlace:
    before = re.split(r"\r\n|\r|\n", text[: text.index(words)])
    return SourcePlace(HERE, len(before), len(before[-1]) + 1)


def edited(text: str, kind: EditKind, words: str, name: str, new: str = "", used: str = "") -> str:
    edit = SourceEdit(
        kind=kind,
        place=place_of(text, words),
        name=name,
        text=new,
        used_at=place_of(text, used) if used else None,
    )
    after = SourceEditor(text.encode(), HERE).edited([edit]).decode()
    ast.parse(after)
    return after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = load(p)", 'x = load(p, map_location="cpu")'),
        ("x = load()", 'x = load(map_location="cpu")'),
        ("x = load(p, )", 'x = load(p, map_location="cpu" )'),
        ("x = load((p))", 'x = load((p), map_location="cpu")'),
        ("x = load(f(p))['a']", "x = load(f(p), map_location=\"cpu\")['a']"),
        ("x = load(\n    p,  # the last\n)", 'x = load(\n    p, map_location="cpu"  # the last\n)'),
        ("x = load(\n\tp  # the last, )\n)", 'x = load(\n\tp, map_location="cpu"  # the last, )\n)'),
        ("x = load(p, map_location=None)", 'x = load(p, map_location="cpu")'),
        ("x = load(p, map_location=(None), a=1)", 'x = load(p, map_location=("cpu"), a=1)'),
        ("é = 'ü'; x = load(f'{p}')  # ß", "é = 'ü'; x = load(f'{p}', map_location=\"cpu\")  # ß"),
        ("x = load(p).get(1)", 'x = load(p, map_location="cpu").get(1)'),
        ("x = load(p)\r\ny = '''\r\n'''\r\n", "x = load(p, map_location=\"cpu\")\r\ny = '''\r\n'''\r\n"),
    ],
)
def test_an_argument_is_set(before: str, after: str) -> None:
    assert edited(before, EditKind.SET_ARGUMENT, "load(", "map_location", '"cpu"') == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = Loader(d, shuffle=True, sampler=s)", "x = Loader(d, sampler=s)"),
        ("x = Loader(d, sampler=s, shuffle=True)", "x = Loader(d, sampler=s)"),
        ("x = Loader(d, sampler=s, shuffle=(True),)", "x = Loader(d, sampler=s,)"),
        ("x = Loader(shuffle=True, dataset=d)", "x = Loader(dataset=d)"),
        ("x = Loader(\n    d,\n    shuffle=True,\n    sampler=s,\n)", "x = Loader(\n    d,\n    sampler=s,\n)"),
        ("x = Loader(\n    d,\n    shuffle=True,  # why\n)", "x = Loader(\n    d,\n    # why\n)"),
        ("x = Loader(\n    d,\n    shuffle=True)", "x = Loader(\n    d,\n    )"),
    ],
)
def test_an_argument_is_taken_out(before: str, after: str) -> None:
    assert edited(before, EditKind.REMOVE_ARGUMENT, "Loader(", "shuffle") == after


HEAD = "s = S()\nx = L(s)\n"


@pytest.mark.parametrize(
    ("loop", "after"),
    [
        ("for e in range(3):\n    f()\n", "for e in range(3):\n    s.set_epoch(e)\n    f()\n"),
        ("for e in tqdm(range(1, 3)):\n\t# why\n\tf()", "for e in tqdm(range(1, 3)):\n\t# why\n\ts.set_epoch(e)\n\tf()"),
        ("for e in range(3):\r\n  @a\r\n  def g(): pass\r\n", "for e in range(3):\r\n  s.set_epoch(e)\r\n  @a\r\n  def g(): pass\r\n"),
    ],
)  # fmt: skip
def test_a_loop_begins_with_it(loop: str, after: str) -> None:
    assert edited(HEAD + loop, EditKind.FIRST_IN_LOOP, "for", "s", "s.set_epoch({turn})", "L(s)") == HEAD + after


def test_a_block_is_indented_as_the_file_is() -> None:
    text = "if s is not None:\n{indent}s.set_epoch({turn})"
    after = edited(f"{HEAD}for e in range(3):\n\tf()\n", EditKind.FIRST_IN_LOOP, "for", "s", text, "L(s)")
    assert after == f"{HEAD}for e in range(3):\n\tif s is not None:\n\t\ts.set_epoch(e)\n\tf()\n"


@pytest.mark.parametrize(
    "text",
    [
        f"{HEAD}for e in epochs:\n    f()\n",
        f"{HEAD}for e, y in enumerate(range(3)):\n    f()\n",
        f"{HEAD}for e in range(3): f()\n",
        f"{HEAD}s = S()\nfor e in range(3):\n    f()\n",
        f"{HEAD}for s in range(3):\n    f()\n",
        f"{HEAD}def g(s):\n    for e in range(3):\n        f()\n",
        f"{HEAD}def g():\n    for e in range(3):\n        f()\ns = 3\n",
        "def h():\n    s = S()\n    x = L(s)\ndef g():\n    for e in range(3):\n        f()\n",
        f"{HEAD}def g():\n    global s\n    s = 1\nfor e in range(3):\n    f()\n",
        f"{HEAD}while True:\n    f()  # for\n",
    ],
)
def test_a_loop_that_is_not_certain_is_left(text: str) -> None:
    with pytest.raises(UneditableError):
        edited(text, EditKind.FIRST_IN_LOOP, "for", "s", "s.set_epoch({turn})", "L(s)")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            '"""Doc."""\nfrom __future__ import x\nimport a\n',
            '"""Doc."""\nfrom __future__ import x\nimport os\nimport a\n',
        ),
        ("import a, os\n", "import a, os\n"),
        ("import os.path\n", "import os.path\n"),
        ("# é\r\nimport a\r\n", "# é\r\nimport os\r\nimport a\r\n"),
    ],
)
def test_a_module_is_imported(before: str, after: str) -> None:
    edit = SourceEdit(kind=EditKind.IMPORT, place=SourcePlace(HERE, 1), name="os")
    assert SourceEditor(before.encode(), HERE).edited([edit]) == after.encode()


@pytest.mark.parametrize("text", ["from a import os\n", "import a as os\n", "import a\nos = 1\n", "x = 1\n"])
def test_a_name_that_is_taken_is_not_imported(text: str) -> None:
    edit = SourceEdit(kind=EditKind.IMPORT, place=SourcePlace(HERE, 1), name="os")
    with pytest.raises(UneditableError):
        SourceEditor(text.encode(), HERE).edited([edit])


@pytest.mark.parametrize(
    ("encoding", "end"),
    [("utf-8-sig", "\n"), ("latin-1", "\r\n"), ("cp1252", "\n"), ("utf-8", "\r"), ("utf-8", "\r\n")],
)
def test_bytes_stay(tmp_path: Path, encoding: str, end: str) -> None:
    lines = [f"# -*- coding: {encoding} -*-", *LOAD.read_text().splitlines(), "# ü \t \x0c"]
    before = end.join(lines).encode(encoding)
    (tmp_path / HERE).write_bytes(before)
    fixes = proposed(tmp_path)
    (fix,) = fixes.files
    assert fix.after == before.replace(b'load("last.pt")', b'load("last.pt", map_location="cpu")')
    assert fix.write() == ""
    assert (tmp_path / HERE).read_bytes() == fix.after


def proposed(folder: Path) -> ScriptFixes:
    names = [str(folder / HERE)]
    return propose_script_fixes(lint(names), names, (), ())


@pytest.mark.parametrize("script", [LOOP, LOAD, OPTION, SHUFFLE], ids=lambda path: path.parent.name)
def test_a_finding_is_mended(tmp_path: Path, script: Path) -> None:
    shutil.copy(script, tmp_path / HERE)
    fixes = proposed(tmp_path)
    (fix,) = fixes.files
    assert fixes.left == ()
    assert any(line.startswith(("+ ", "+import", "+loader")) for line in fix.diff().splitlines())
    assert (tmp_path / HERE).read_bytes() == script.read_bytes(), "nothing is written before somebody says so"
    assert fix.write() == ""
    assert lint([tmp_path / HERE]).placed_findings == ()


def test_an_option_keeps_its_own_default(tmp_path: Path) -> None:
    (tmp_path / HERE).write_text(OPTION.read_text().replace("default=0", "default=-1"))
    (fix,) = proposed(tmp_path).files
    assert b'default=int(os.environ.get("LOCAL_RANK", -1))' in fix.after


def test_a_required_option_is_left(tmp_path: Path) -> None:
    (tmp_path / HERE).write_text(OPTION.read_text().replace("default=0", "required=True"))
    assert proposed(tmp_path).files == ()


def test_a_sampler_that_may_be_none_is_asked_first(tmp_path: Path) -> None:
    text = LOOP.read_text()
    line = next(line for line in text.splitlines() if "= DistributedSampler(" in line)
    (tmp_path / HERE).write_text(text.replace(line, f"{line} if dist.is_initialized() else None"))
    (fix,) = proposed(tmp_path).files
    assert b"\n        if sampler is not None:\n            sampler.set_epoch(epoch)\n" in fix.after


def test_what_does_not_mend_is_not_proposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(LOAD, tmp_path / HERE)
    monkeypatch.setattr(SourceEditor, "edited", lambda editor, edits: editor.content + b"\n# only a comment\n")
    fixes = proposed(tmp_path)
    assert fixes.files == ()
    assert [why for _, why in fixes.left] == ["the finding is still there with it"]


def test_what_no_longer_parses_is_not_proposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(LOAD, tmp_path / HERE)
    monkeypatch.setattr(SourceEditor, "edited", lambda editor, edits: editor.content + b"\n)\n")
    assert proposed(tmp_path).files == ()


def test_a_link_is_not_written(tmp_path: Path) -> None:
    shutil.copy(LOAD, tmp_path / "real.py")
    (tmp_path / HERE).symlink_to("real.py")
    fixes = proposed(tmp_path)
    assert fixes.files == ()
    assert "it is a link to" in fixes.left[0][1]


def test_hard_links_and_files_that_are_read_only_are_not_written(tmp_path: Path) -> None:
    shutil.copy(LOAD, tmp_path / HERE)
    (tmp_path / HERE).chmod(0o444)
    assert refusal(str(tmp_path / HERE)) == "it is read-only"
    (tmp_path / HERE).chmod(0o644)
    os.link(tmp_path / HERE, tmp_path / "other.py")
    assert "hard links" in refusal(str(tmp_path / HERE))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_users_file_is_not_written(tmp_path: Path) -> None:
    shutil.copy(LOAD, tmp_path / HERE)
    os.chown(tmp_path / HERE, 4711, -1)
    assert refusal(str(tmp_path / HERE)) == "it belongs to uid 4711"
    assert proposed(tmp_path).files == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_mode_and_group_are_kept(tmp_path: Path) -> None:
    shutil.copy(LOAD, tmp_path / HERE)
    os.chown(tmp_path / HERE, -1, 4711)
    (tmp_path / HERE).chmod(0o750)
    (fix,) = proposed(tmp_path).files
    assert fix.write() == ""
    state = (tmp_path / HERE).stat()
    assert (state.st_mode & 0o7777, state.st_gid) == (0o750, 4711)
    assert [path.name for path in tmp_path.iterdir()] == [HERE]


def test_a_file_that_was_changed_meanwhile_is_not_written(tmp_path: Path) -> None:
    (tmp_path / HERE).write_text("new = 1\n")
    assert rewrite(str(tmp_path / HERE), b"old = 1\n", b"old = 2\n") == "it was changed meanwhile"
    assert (tmp_path / HERE).read_text() == "new = 1\n"


def test_a_notebook_is_not_changed(tmp_path: Path) -> None:
    notebook = tmp_path / "train.ipynb"
    notebook.write_text(json.dumps({"cells": [{"cell_type": "code", "source": LOAD.read_text()}]}))
    fixes = propose_script_fixes(lint([notebook]), [str(notebook)], (), ())
    assert fixes.files == ()
    assert [why for _, why in fixes.left] == ["notebooks are not changed"]


def test_a_file_of_the_project_is_mended_for_all_scripts_that_import_it(tmp_path: Path) -> None:
    """The module that loads is imported by two scripts; its finding is told once, and mended once."""
    text = LOAD.read_text()
    (tmp_path / "lib.py").write_text(text)
    (tmp_path / "a.py").write_text("import lib\n")
    with working_folder(tmp_path):
        fixes = propose_script_fixes(lint(["."]), ["."], (), ())
    (fix,) = fixes.files
    assert fix.path.endswith("lib.py")


@pytest.mark.parametrize(
    ("name", "called", "after"),
    [
        ("0", "to", "x = Linear(8, 1).to(gpu)"),
        ("1", "Linear", "x = Linear(8, gpu).to(rank)"),
        ("0", "", "x = Linear(gpu, 1).to(rank)"),
    ],
)
def test_an_argument_is_set_by_its_position_in_the_call_that_is_meant(name: str, called: str, after: str) -> None:
    place = SourcePlace(HERE, 1, 5)
    edit = SourceEdit(kind=EditKind.SET_ARGUMENT, place=place, name=name, text="gpu", called=called)
    assert SourceEditor(b"x = Linear(8, 1).to(rank)", HERE).edited([edit]).decode() == after


@pytest.mark.parametrize(("call", "name"), [("f(*a)", "0"), ("f()", "0")])
def test_an_argument_that_has_no_certain_position_is_left(call: str, name: str) -> None:
    edit = SourceEdit(kind=EditKind.SET_ARGUMENT, place=SourcePlace(HERE, 1, 1), name=name, text="1")
    with pytest.raises(UneditableError):
        SourceEditor(call.encode(), HERE).edited([edit])


def test_changes_that_meet_are_refused() -> None:
    place = SourcePlace(HERE, 1, 1)
    both = [
        SourceEdit(kind=EditKind.SET_ARGUMENT, place=place, name="a", text="2"),
        SourceEdit(kind=EditKind.REMOVE_ARGUMENT, place=place, name="a"),
    ]
    with pytest.raises(UneditableError, match="two changes meet in line 1"):
        SourceEditor(b"f(a=1)", HERE).edited(both)


SEVERAL = """
import argparse
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)
args = parser.parse_args()
os.environ["MASTER_PORT"] = "12355"
dist.init_process_group("nccl")
torch.cuda.set_device(args.local_rank)
data = TensorDataset(torch.ones(8, 1))
loader = DataLoader(data, sampler=DistributedSampler(data))
model = DDP(torch.nn.Linear(1, 1).cuda())
model.load_state_dict(torch.load("last.pt"))
for epoch in range(3):
    for (batch,) in loader:
        model(batch).sum().backward()
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), "last.pt")
"""
EDITED = ("local-rank-argument-only", "load-without-map-location", "sampler-without-set-epoch")


def test_what_was_found_before_counts_against_no_edit(tmp_path: Path) -> None:
    """That the environment is read makes the warning of a port that was only worth a hint."""
    (tmp_path / HERE).write_text(SEVERAL)
    (fix,) = proposed(tmp_path).files
    assert sorted(check.slug for check, _, _ in fix.findings) == sorted(EDITED)
    assert b"\n    loader.sampler.set_epoch(epoch)\n" in fix.after


def test_an_edit_that_does_harm_keeps_no_other_from_being_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / HERE).write_text(SEVERAL)
    edits_made = SourceEditor.edited

    def edited_with_harm(editor: SourceEditor, edits: Iterable[SourceEdit]) -> bytes:
        harm = b"if dist.get_rank() == 0:\n    dist.barrier()\n"
        given = list(edits)
        return edits_made(editor, given) + harm * any(edit.name == "map_location" for edit in given)

    monkeypatch.setattr(SourceEditor, "edited", edited_with_harm)
    fixes = proposed(tmp_path)
    (fix,) = fixes.files
    assert {check.slug for check, _, _ in fix.findings} == {EDITED[0], EDITED[2]}
    ((found, why),) = [(found, why) for found, why in fixes.left if why]
    assert found[0].slug == EDITED[1]
    assert why == f"with it there is another finding, collective-on-some-ranks at {tmp_path / HERE}:25"


@pytest.mark.parametrize(
    "case", [case for case in script_cases(kind="sick-") if case.path.name != MAIN], ids=lambda case: case.id
)
def test_what_is_printed_is_what_is_written(case: ScriptCase) -> None:
    with working_folder(case.path.parent):
        fixes = propose_script_fixes(lint([case.path.name]), [case.path.name], (), ())
    for fix in fixes.files:
        written = {line.strip() for line in fix.after.decode().splitlines()}
        for _, _, finding in fix.findings:
            printed = {line.strip() for remedy in finding.fixes for line in remedy.commands}
            assert printed <= written
