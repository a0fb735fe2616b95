"""`lint` on whatever lies in a folder: each file that can't be read is a line, and the others go on; comments and settings choose."""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpdoctor import lint
from ddpdoctor.api import UsageError
from ddpdoctor.api.script_linting import LintResult
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.scripts.judging import JudgedScript
from ddpdoctor.scripts.project import MAX_KEPT_LINES, ModuleCache
from ddpdoctor.scripts.source_text import MAX_SOURCE_BYTES
from tests.support.command import ROOT
from tests.support.script_cases import SCRIPTS, working_folder

SLUG = "sampler-without-set-epoch"
SICK = (SCRIPTS / SLUG / "sick-one-file.py").read_text()
SAMPLER = "    sampler = DistributedSampler(dataset)\n"


def slugs(*paths: Path) -> list[str]:
    return [finding.slug for finding in lint(paths).findings]


UNREADABLE = {
    "two.py": (b"print 'hello'\n", "written in Python 2"),
    "newer.py": (b"def f() -> int:\n    return = 3\n", "no syntax of Python"),
    "large.py": (b"a = 1\n" * (MAX_SOURCE_BYTES // 6 + 1), "larger than 2 MiB"),
    "deep.py": (b"(" * 5000 + b")" * 5000, "nested too deeply"),
    "sums.py": (b"a = " + b"-" * 20000 + b"1\n", "nested too deeply"),
    "latin.py": ("x = 'ü'\n".encode("latin-1"), "its bytes are not the text"),
    "nul.py": (b"a = 1\0\n", "NUL"),
    "broken.ipynb": (b'{"cells": 3}', "no notebook"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read_is_a_line_and_the_others_go_on(name: str, tmp_path: Path) -> None:
    content, said = UNREADABLE[name]
    (tmp_path / name).write_bytes(content)
    (tmp_path / "train.py").write_text(SICK)
    result = lint([tmp_path])
    assert [finding.slug for finding in result.findings] == [SLUG]
    (problem,) = result.problems
    assert name in problem
    assert said in problem
    assert "\n" not in problem
    assert result.verdict is Verdict.UNKNOWN
    assert result.exit_code() == 2


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "train.py").write_text(SICK)
    result = lint([tmp_path])
    assert [finding.slug for finding in result.findings] == [SLUG]
    assert "it is a pipe" in result.problems[0]


def empty_folder(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("")


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound, working_folder(path.parent):
        bound.bind(path.name)


NOT_LOOKED_AT: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing.py": (lambda path: None, "there is no such file or folder"),
    "*.pyx": (lambda path: None, "a shell leaves a pattern as it is where no file matches it"),
    "train.py/x.py": (lambda path: None, "Not a directory"),
    "broken.py": (lambda path: path.symlink_to("gone.py"), "it is a link to gone.py, which is not there"),
    "round.py": (lambda path: path.symlink_to("round.py"), "Too many levels of symbolic links"),
    "empty": (empty_folder, "nothing was read in it: it has no .py or .ipynb file"),
    "pipe": (os.mkfifo, "it is a pipe"),
    "socket.py": (socket_at, "no regular file"),
    "zero.py": (lambda path: path.symlink_to("/dev/zero"), "no regular file"),
}


@pytest.mark.parametrize("name", NOT_LOOKED_AT)
def test_a_path_that_cannot_be_read_costs_no_other_its_findings(name: str, tmp_path: Path) -> None:
    make, said = NOT_LOOKED_AT[name]
    (tmp_path / "train.py").write_text(SICK)
    make(tmp_path / name)
    with working_folder(tmp_path):
        for paths in ([name, "train.py"], ["train.py", name]):
            result = lint(paths)
            assert [finding.slug for finding in result.findings] == [SLUG]
            (problem,) = result.problems
            assert problem.startswith(f"{name}: ")
            assert said in problem
            assert result.exit_code() == 2
        alone = lint([name])
    assert (alone.verdict, alone.exit_code()) == (Verdict.UNKNOWN, 2)
    assert "UNKNOWN  Nothing was read. 0 files read; 1 not read." in alone.to_text(width=200)
    # In each form.
    for text in (
        alone.to_text(width=400, quiet=True),
        alone.to_concise(),
        alone.to_github(),
        alone.to_sarif(),
        alone.to_json(),
        alone.to_markdown(),
    ):
        assert said in text


def test_a_folder_that_the_project_excludes_wholly_was_not_read(tmp_path: Path) -> None:
    pytest.importorskip("tomllib", reason="it came with Python 3.11")
    (tmp_path / "train.py").write_text(SICK)
    (tmp_path / "pyproject.toml").write_text('[tool.ddpdoctor.lint]\nexclude = ["*.py"]\n')
    result = lint([tmp_path])
    assert result.problems == (f"{tmp_path}: nothing was read in it: {tmp_path}/pyproject.toml excludes all of it",)
    assert result.exit_code() == 2
    # Who names it means it.
    assert slugs(tmp_path / "train.py") == [SLUG]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "nothing arrived"),
        (b" \n", "nothing arrived"),
        (b"a = 1\n" * (MAX_SOURCE_BYTES // 6 + 1), "larger than 2 MiB"),
    ],
)
def test_standard_input_of_which_nothing_can_be_said(content: bytes, said: str) -> None:
    result = lint(["-"], stdin=content)
    assert said in result.problems[0]
    assert (result.judged, result.exit_code()) == ((), 2)


def test_a_file_that_is_replaced_or_cut_while_it_is_read_is_read_as_it_was_at_some_time(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SICK)
    ended = threading.Event()

    def rewrite() -> None:
        while not ended.is_set():
            script.write_text(SICK)
            os.truncate(script, len(SICK) // 2)
            (tmp_path / "new").write_text(SICK)
            (tmp_path / "new").rename(script)
            script.unlink()
            script.write_text(SICK)

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        results = [lint([tmp_path]) for _ in range(60)]
    finally:
        ended.set()
        writer.join()
    for result in results:
        assert len(result.judged) + len(result.problems) == 1
        assert {finding.slug for finding in result.findings} <= {SLUG}
        assert all("bug in ddpdoctor" not in problem for problem in result.problems)


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.thorough)])
def test_many_small_files_take_no_more_memory_than_a_thousand(count: int, tmp_path: Path) -> None:
    measured = "import ddpdoctor, json, resource, sys\nresult = ddpdoctor.lint([sys.argv[1]])\n"
    measured += "print(len(result.judged), len(result.findings), len(result.problems), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    plain = "import os\n" + "\n\ndef path_of(name: str) -> str:\n    return os.path.join('data', name)\n" * 5

    def kib_for(files: int) -> int:
        top = tmp_path / str(files)
        for number in range(files):
            folder = top / f"part{number // 100}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"module{number}.py").write_text(SICK if number % 500 == 250 else plain)
        ended = subprocess.run(
            [sys.executable, "-c", measured, top], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
        )
        judged, findings, problems, kib = map(int, ended.stdout.split())
        assert (judged, findings, problems) == (files, files // 500, 0)
        return kib

    assert kib_for(count) < kib_for(1_000) + 12 * 1024


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    outside, inside = tmp_path / "secret.py", tmp_path / "project"
    outside.write_text(SICK)
    inside.mkdir()
    (inside / "train.py").symlink_to(outside)
    result = lint([inside])
    assert not result.findings
    assert "leads out of the folder" in result.problems[0]


def test_no_import_leads_out_of_the_project(tmp_path: Path) -> None:
    """The sampler is built in a module that is linked from elsewhere: nothing is known of it."""
    case, project = SCRIPTS / SLUG / "sick-three-files", tmp_path / "project"
    project.mkdir()
    for name in ("train.py", "engine.py", "data.py"):
        (project / name).write_text((case / name).read_text())
    assert slugs(project / "train.py") == [SLUG]
    (tmp_path / "elsewhere.py").write_text((case / "data.py").read_text())
    (project / "data.py").unlink()
    (project / "data.py").symlink_to(tmp_path / "elsewhere.py")
    assert slugs(project / "train.py") == []


@pytest.mark.parametrize("mark", [".git", "setup.py", "LICENSE", "requirements.txt"])
def test_a_copy_without_its_history_has_a_top_too(mark: str, tmp_path: Path) -> None:
    for folder in ("tools", "ours"):
        (tmp_path / folder).mkdir()
    script, module = tmp_path / "tools" / "train.py", tmp_path / "ours" / "main.py"
    script.write_text("from ours.main import main\n\nmain()\n")
    module.write_text(SICK)
    assert slugs(script) == []
    (tmp_path / mark).write_text("")
    (finding,) = lint([script]).findings
    assert (finding.slug, finding.file) == (SLUG, str(module))


def test_a_folder_of_the_project_with_requirements_of_its_own_is_not_its_top(tmp_path: Path) -> None:
    for folder in ("examples", "ours"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "examples" / "requirements.txt").write_text("")
    script = tmp_path / "examples" / "train.py"
    script.write_text("from ours.main import main\n\nmain()\n")
    (tmp_path / "ours" / "main.py").write_text(SICK)
    assert slugs(script) == [SLUG]


def test_modules_that_import_each_other_end(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from b import *\nfrom b import g\ndef f():\n    return g()\nx = y\nf()\n")
    (tmp_path / "b.py").write_text("from a import *\nimport a\ndef g():\n    return a.f()\ny = a.x\n")
    result = lint([tmp_path])
    assert not result.problems
    assert len(result.judged) == 2


def test_environments_and_hidden_folders_are_left_out(tmp_path: Path) -> None:
    for folder in (".git", "env", "node_modules"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(SICK)
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    assert lint([tmp_path]).judged == ()
    assert lint([tmp_path]).verdict is Verdict.UNKNOWN
    assert slugs(tmp_path / ".git") == [SLUG], "who names it means it"


def test_a_notebook_is_told_by_cell_and_line(tmp_path: Path) -> None:
    head, body = SICK.split("def main() -> None:\n")
    cells = [
        {"cell_type": "markdown", "source": "# Training"},
        {"cell_type": "code", "source": head + "%matplotlib inline\n!pip install torch\n"},
        {"cell_type": "code", "source": ("def main() -> None:\n" + body).splitlines(keepends=True)},
    ]
    notebook = tmp_path / "train.ipynb"
    notebook.write_text(json.dumps({"cells": cells, "nbformat": 4}))
    (finding,) = lint([notebook]).findings
    assert finding.file == f"{notebook}:cell 3"
    assert finding.line == 6


def test_a_comment_that_names_no_check_is_told(tmp_path: Path) -> None:
    misspelt = SAMPLER.rstrip() + "  # ddpdoctor: ignore[sampler-without-setepoch]\n"
    (tmp_path / "train.py").write_text(SICK.replace(SAMPLER, misspelt))
    result = lint([tmp_path / "train.py"])
    line = SICK.splitlines().index(SAMPLER.rstrip("\n")) + 1
    (problem,) = result.problems
    assert problem.startswith(
        f"{tmp_path / 'train.py'}:{line}: there is no check of scripts called 'sampler-without-setepoch'; "
        "did you mean sampler-without-set-epoch"
    )
    assert [finding.slug for finding in result.findings] == [SLUG]


def notebook(*cells: str) -> bytes:
    listed = [{"cell_type": "code", "source": cell} for cell in cells]
    return json.dumps({"cells": listed, "nbformat": 4}).encode()


BARRIER = (
    "import torch.distributed as dist\ndist.init_process_group('nccl')\nif dist.get_rank() == 0:\n    dist.barrier()\n"
)


@pytest.mark.parametrize(
    "before",
    [
        "x?",
        "foo.bar??",
        "?x",
        "!pip install \\\n  torch",
        "files = !ls",
        "%matplotlib inline",
        "%%bash\nls -l",
        "%%time\nx = 1",
    ],
)
def test_what_is_ipythons_own_in_a_notebook_hides_nothing(tmp_path: Path, before: str) -> None:
    (tmp_path / "train.ipynb").write_bytes(notebook(before, BARRIER))
    result = lint([tmp_path / "train.ipynb"])
    assert not result.problems
    (finding,) = result.findings
    assert (finding.file, finding.line) == (f"{tmp_path / 'train.ipynb'}:cell 2", 4)


def test_a_cell_of_a_magic_that_runs_python_is_read(tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_bytes(notebook(f"%%time\n{BARRIER}"))
    (finding,) = lint([tmp_path / "train.ipynb"]).findings
    assert (finding.file, finding.line) == (f"{tmp_path / 'train.ipynb'}:cell 1", 5)


def test_a_cell_that_is_no_python_costs_no_other_its_findings(tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_bytes(notebook("x = 1\ndef f(:\n", BARRIER))
    result = lint([tmp_path / "train.ipynb"])
    (problem,) = result.problems
    assert problem.startswith(f"{tmp_path / 'train.ipynb'}:cell 1: not read: no syntax of Python ")
    assert ", line 2: " in problem
    assert [finding.line for finding in result.findings] == [4]
    (tmp_path / "train.ipynb").write_bytes(notebook("x = 1\ndef f(:\n"))
    assert lint([tmp_path / "train.ipynb"]).verdict is Verdict.UNKNOWN


def test_a_notebook_on_standard_input_is_one() -> None:
    (finding,) = lint(["-"], stdin=notebook("x?", BARRIER)).findings
    assert (finding.file, finding.line) == ("<stdin>:cell 2", 4)


def test_standard_input_has_a_name_of_its_own() -> None:
    (finding,) = lint(["-"], stdin=SICK.encode()).findings
    assert finding.file == "<stdin>"
    assert isinstance(finding.line, int)
    assert SICK.splitlines()[finding.line - 1] + "\n" == SAMPLER


@pytest.mark.parametrize(
    ("comment", "ignored"),
    [
        (f"# ddpdoctor: ignore[{SLUG}]", True),
        (f"# ddpdoctor: ignore[save-by-every-rank, {SLUG}]", True),
        ("# ddpdoctor: ignore", True),
        ("# ddpdoctor: ignore[save-by-every-rank]", False),
        ("# noqa", False),
    ],
)
@pytest.mark.parametrize("above", [False, True])
def test_a_comment_takes_a_finding_out(comment: str, ignored: bool, above: bool) -> None:
    line = f"    {comment}\n{SAMPLER}" if above else f"{SAMPLER.rstrip()}  {comment}\n"
    result = lint(["-"], stdin=SICK.replace(SAMPLER, line).encode())
    assert bool(result.findings) is not ignored
    assert sum(script.ignored for script in result.judged) == ignored


def test_the_projects_settings_choose(tmp_path: Path) -> None:
    pytest.importorskip("tomllib", reason="it came with Python 3.11")
    (tmp_path / "old").mkdir()
    for name in ("train.py", "old/train.py"):
        (tmp_path / name).write_text(SICK)
    settings = tmp_path / "pyproject.toml"
    settings.write_text('[tool.ddpdoctor.lint]\nexclude = ["old"]\n')
    assert slugs(tmp_path) == [SLUG]
    assert len(slugs(tmp_path, tmp_path / "old" / "train.py")) == 2, "who names it means it"
    settings.write_text(f'[tool.ddpdoctor.lint]\nignore = ["{SLUG}"]\n')
    assert slugs(tmp_path) == []
    settings.write_text('[tool.ddpdoctor.lint]\nignore = ["no-such-check"]\n')
    assert "no-such-check" in lint([tmp_path]).problems[0]
    settings.write_text("[tool.ddpdoctor.lint]\nignores = []\n")
    assert "don't count" in lint([tmp_path]).problems[0]


def test_select_and_ignore(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SICK)
    assert [finding.slug for finding in lint([script], select=["script"]).findings] == [SLUG]
    assert not lint([script], ignore=[SLUG]).findings
    with pytest.raises(UsageError, match="leave no check of scripts"):
        lint([script], select=["shm-too-small"])
    with pytest.raises(UsageError, match="a path is empty"):
        lint([script, ""])
    with pytest.raises(UsageError, match="NUL"):
        lint([script, "train\0.py"])


def test_a_script_of_one_process_gets_no_finding() -> None:
    source = "import torch\nmodel = torch.nn.Linear(1, 1).cuda()\nmodel.load_state_dict(torch.load('a.pt'))\ntorch.save(model.state_dict(), 'a.pt')\n"
    result = lint(["-"], stdin=source.encode())
    assert not result.findings
    assert "Nothing to judge" in result.to_text() or "No mistake" in result.to_text()


def test_two_scripts_that_come_to_the_same_line_name_it_once(tmp_path: Path) -> None:
    case = SCRIPTS / SLUG / "sick-three-files"
    for name in ("train.py", "engine.py", "data.py"):
        (tmp_path / name).write_text((case / name).read_text())
    (tmp_path / "finetune.py").write_text((case / "train.py").read_text())
    assert slugs(tmp_path) == [SLUG]


def test_where_a_check_crashes_nothing_is_called_well() -> None:
    result = LintResult([JudgedScript("train.py", crashed={SLUG: "ZeroDivisionError"})], [])
    assert result.verdict is Verdict.UNKNOWN
    assert result.exit_code() == 2
    assert f"{SLUG}: ZeroDivisionError" in result.to_text()


FORMED = (
    "import torch\nimport torch.distributed as dist\ndist.init_process_group('nccl')\n"
    "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))\n"
)


def test_what_could_not_be_followed_has_not_passed() -> None:
    text = (
        FORMED
        + "from somebody import batches, keep\nfor batch in batches():\n    model(batch).backward()\nkeep(model)\n"
    )
    shown = lint(["-"], stdin=text.encode()).to_text(verbose=True)
    passed, _, untested = shown.partition("Not tested")
    for slug in ("loader-without-sampler", "save-by-every-rank", "logger-on-every-rank"):
        assert slug not in passed
        assert slug in untested
    assert "collective-on-some-ranks" in passed
    assert "nothing in the script saves a file, as far as it could be followed" in " ".join(untested.split())


def test_what_one_file_lacks_and_another_has_was_tested(tmp_path: Path) -> None:
    (tmp_path / "saves.py").write_text(
        FORMED + "if dist.get_rank() == 0:\n    torch.save(model.module.state_dict(), 'model.pt')\n"
    )
    (tmp_path / "other.py").write_text(FORMED)
    passed, _, untested = lint([tmp_path]).to_text(verbose=True).partition("Not tested")
    assert "save-by-every-rank" in passed
    assert "save-by-every-rank" not in untested
    assert "loader-without-sampler" in untested


def test_a_check_that_crashes_leaves_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(script: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("ddpdoctor.checks.script.data._is_told", crash)
    result = lint(["-"], stdin=SICK.encode())
    assert result.verdict is Verdict.UNKNOWN
    assert result.exit_code() == 2
    assert "1 check crashed" in result.to_text()
    assert SLUG in result.to_text()
    assert SLUG in result.to_concise()


def test_nothing_is_left_for_the_garbage_collector() -> None:
    folders = [SCRIPTS / SLUG, SCRIPTS / "save-by-every-rank"]
    lint(folders)
    gc.collect()
    gc.disable()
    try:
        assert len(lint(folders).judged) > 20
        gc.disable()
        assert gc.collect() < 1000
    finally:
        gc.enable()


def test_modules_are_kept_by_their_lines(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.py" for number in range(3)]
    for file in files:
        file.write_text("pass\n" * (MAX_KEPT_LINES // 2 - 1))
    cache = ModuleCache()
    first, second = (cache.load(str(file), file.name) for file in files[:2])
    assert cache.load(str(files[0]), "0.py") is first, "there is room for two"
    cache.load(str(files[2]), "2.py")
    assert cache.load(str(files[0]), "0.py") is first, "it was needed after the second"
    assert cache.load(str(files[1]), "1.py") is not second


def test_hints_alone_are_no_certain_mistakes() -> None:
    result = lint(["-"], stdin=(SCRIPTS / "data-parallel" / "sick-all-gpus.py").read_bytes(), select=["data-parallel"])
    assert "No certain mistake was found" in result.to_text()


def test_a_single_path_needs_no_list() -> None:
    script = SCRIPTS / "data-parallel" / "sick-all-gpus.py"
    assert lint(script).findings == lint(str(script)).findings == lint([script]).findings != ()
