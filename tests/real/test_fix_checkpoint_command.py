"""`ddpdoctor fix-checkpoint` in a process of its own, on files that torch wrote, with torch as the judge."""

from __future__ import annotations

import argparse
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.support.command import command, ddpdoctor, plain_environ
from tests.support.report_schema import check_against_schema


class Shell:
    """Runs a command when it is unpickled."""

    def __init__(self, line: str) -> None:
        self.line = line

    def __reduce__(self) -> Any:
        return os.system, (self.line,)


def saved(path: Path, content: Any, device: str = "cuda:3", **options: Any) -> Path:
    """The content as torch would save it from that device."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.serialization, "location_tag", lambda storage: "".join(list(device)))
        torch.save(content, path, **options)
    return path


def weights(prefix: str = "") -> dict[str, torch.Tensor]:
    return {f"{prefix}layer.weight": torch.arange(12.0).reshape(3, 4), f"{prefix}layer.bias": torch.ones(3)}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


@pytest.fixture
def ckpt(tmp_path: Path) -> Path:
    return saved(tmp_path / "ckpt.pt", {"model": weights(), "epoch": 3})


def fix(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return ddpdoctor("fix-checkpoint", *arguments, **options)


@pytest.mark.parametrize("zipped", [True, False])
def test_in_place_and_back(tmp_path: Path, zipped: bool) -> None:
    path = saved(tmp_path / "ckpt.pt", weights(), _use_new_zipfile_serialization=zipped)
    before, status = path.read_bytes(), path.stat()
    with pytest.raises(RuntimeError, match="cuda"):
        torch.load(path, weights_only=True)

    dry = fix("--dry-run", path)
    assert (dry.returncode, path.read_bytes()) == (1, before), dry.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt.pt"]

    done = fix(path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert f"torch.load({str(path)!r}, weights_only=True)" in done.stdout
    assert same(torch.load(path, weights_only=True), weights())
    after = path.read_bytes()
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (status.st_ino, status.st_mtime_ns)

    again = fix(path)
    assert again.stdout.startswith("CLEAN")
    assert (again.returncode, path.read_bytes()) == (0, after)
    assert fix("--dry-run", path).returncode == 0

    undoable = fix("--undo", "--dry-run", path)
    assert "1 change can be taken back" in undoable.stdout
    assert (undoable.returncode, path.read_bytes()) == (1, after)

    undone = fix("--undo", path)
    assert undone.stdout.startswith("UNDONE")
    assert (undone.returncode, path.read_bytes()) == (0, before)
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt.pt"]
    assert fix("--undo", path).returncode == 2


def test_the_commands_that_are_shown_work(tmp_path: Path) -> None:
    path = saved(tmp_path / "it's a ckpt.pt", {"model": weights("module.")})
    before = path.read_bytes()
    done = fix(path.name, cwd=tmp_path)
    shown = [line.strip() for line in done.stdout.splitlines() if line.strip().startswith("ddpdoctor ")]
    assert [line.split()[2] for line in shown] == ["--undo", shown[1].split()[2]]
    for line in reversed(shown):
        code = line.replace("ddpdoctor", f"{sys.executable} -m ddpdoctor", 1)
        ended = subprocess.run(code, shell=True, cwd=tmp_path, env=plain_environ(), capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        if "--strip-prefix" in line:
            assert same(torch.load(path, weights_only=True)["model"], weights())
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("prefix", "sure"),
    [
        ("model.", True),
        ("net.", True),
        ("module.model.", True),
        ("_orig_mod.module.", True),
        ("encoder.", False),
    ],
)
def test_any_prefix_of_all_keys_is_named_and_its_command_takes_it_off(prefix: str, sure: bool, tmp_path: Path) -> None:
    path = saved(tmp_path / "ckpt.pt", {"state": weights(prefix)}, device="cpu")
    done = fix(path)
    assert f'begin with "{prefix}"' in " ".join(done.stdout.split()), done.stdout
    (line,) = [line.strip() for line in done.stdout.splitlines() if "--strip-prefix" in line]
    assert line == f"ddpdoctor fix-checkpoint {path} --strip-prefix {prefix}"
    stripped = fix(*line.split()[2:])
    assert stripped.returncode == 0, stripped.stdout + stripped.stderr
    assert same(torch.load(path, weights_only=True)["state"], weights())
    saved(path, {"state": weights(prefix)}, device="cpu")
    arguments = ("--checkpoint", str(path), "--select", "ckpt-module-prefix", "--json")
    told = json.loads(ddpdoctor("check", *arguments, environ=plain_environ()).stdout)["findings"]
    assert [finding["slug"] for finding in told] == ["ckpt-module-prefix"] * sure, (
        "one that may be the model's own is no finding"
    )
    assert all("--strip-prefix" in str(finding["fixes"]) for finding in told)


def test_keys_that_are_a_published_models_own_are_no_finding(tmp_path: Path) -> None:
    """All keys of a language model with tied weights begin so, in the file and in the model."""
    (tmp_path / "config.json").write_text("{}")
    safetensors.torch.save_file(weights("model."), tmp_path / "model.safetensors")
    arguments = ("--checkpoint", str(tmp_path), "--select", "ckpt-module-prefix", "--json")
    assert not json.loads(ddpdoctor("check", *arguments, environ=plain_environ()).stdout)["findings"]


def test_a_new_file_leaves_the_old_one_alone(ckpt: Path, tmp_path: Path) -> None:
    before, out = ckpt.read_bytes(), tmp_path / "new.pt"
    done = fix(ckpt, "-o", out)
    assert done.returncode == 0, done.stdout
    assert ckpt.read_bytes() == before
    assert same(torch.load(out, weights_only=True)["model"], weights())
    written = out.read_bytes()
    again = fix(ckpt, "-o", out)
    assert (again.returncode, out.read_bytes()) == (2, written)
    itself = fix(ckpt, "-o", ckpt)
    assert (itself.returncode, "changed in place" in itself.stderr) == (2, True)
    assert fix(ckpt, "-o", tmp_path / "no" / "folder.pt").returncode == 2
    assert ckpt.read_bytes() == before


def test_a_folder_for_one_file_is_meant_as_for_cp(ckpt: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert fix(ckpt, "-o", tmp_path / "out").returncode == 0
    assert same(torch.load(tmp_path / "out" / "ckpt.pt", weights_only=True)["model"], weights())


def test_another_device(ckpt: Path) -> None:
    done = fix("--json", "--to", "cuda:1", ckpt)
    after = json.loads(done.stdout)["files"][0]["after"]
    assert (done.returncode, [pin["device"] for pin in after["pins"]]) == (0, ["cuda:1"])


def test_a_malicious_file_is_told_of_and_not_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    path = saved(tmp_path / "evil.pt", {"model": weights(), "x": Shell(f"touch {ran}")})
    done = fix(path)
    assert "DANGER" in done.stdout
    assert "system runs a command in a shell" in done.stdout
    assert not ran.exists()
    tensors = tmp_path / "evil.safetensors"
    assert f"--params-only --to-safetensors -o {tensors}" in done.stdout
    assert fix(path, "--params-only", "--to-safetensors", "-o", tensors).returncode == 0
    assert same(safetensors.torch.load_file(tensors), weights())
    assert not ran.exists()
    torch.load(path, weights_only=False)
    assert ran.exists()


def test_many_files_and_the_worst_of_them_decides(ckpt: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (runs / "deep").mkdir(parents=True)
    saved(runs / "deep" / "b.pt", weights())
    saved(runs / "clean.pt", weights(), device="cpu")
    saved(runs / "args.pt", {"model": weights(), "args": argparse.Namespace()})
    dry = fix("--dry-run", runs)
    assert dry.returncode == 1
    assert "2 to be fixed and 1 had nothing to fix" in dry.stdout
    (runs / "broken.pt").write_bytes(ckpt.read_bytes()[:500])
    done = fix(runs)
    assert done.returncode == 2
    assert "4 files: 2 fixed, 1 had nothing to fix and 1 could not be handled." in done.stdout
    assert same(torch.load(runs / "deep" / "b.pt", weights_only=True), weights())
    assert "argparse.Namespace" in done.stdout
    assert fix("--undo", runs).returncode == 0
    (runs / "broken.pt").unlink()
    assert fix("--dry-run", runs).returncode == 1
    assert fix("--undo", runs).returncode == 2


def test_a_file_that_is_named_twice_is_fixed_once(ckpt: Path) -> None:
    done = fix(ckpt, f"./{ckpt.name}", ckpt.parent, cwd=ckpt.parent)
    assert (done.returncode, done.stdout.count("FIXED")) == (0, 1)
    assert "files:" not in done.stdout


def sharded(folder: Path) -> Path:
    folder.mkdir()
    names = {number: f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)}
    for number, name in names.items():
        saved(folder / name, {f"module.w{number}": torch.full((4,), float(number))})
    index = folder / "pytorch_model.bin.index.json"
    weight_map = {f"module.w{number}": name for number, name in names.items()}
    index.write_text(json.dumps({"metadata": {"total_size": 32}, "weight_map": weight_map}))
    return index


def loaded(index: Path) -> dict[str, float]:
    """Each key of the index, from the shard in which it is said to be."""
    weight_map = json.loads(index.read_text())["weight_map"]
    shards = {name: torch.load(index.parent / name, weights_only=True) for name in weight_map.values()}
    return {key: shards[name][key][0].item() for key, name in weight_map.items()}


def test_an_index_means_its_shards_and_goes_with_them(tmp_path: Path) -> None:
    index = sharded(tmp_path / "model")
    assert fix(index, "-o", tmp_path / "copy").returncode == 0
    assert (tmp_path / "copy" / index.name).read_bytes() == index.read_bytes()
    assert loaded(tmp_path / "copy" / index.name) == {"module.w1": 1, "module.w2": 2}

    assert fix(index.parent, "-o", tmp_path / "bare", "--strip-prefix", "module").returncode == 0
    assert loaded(tmp_path / "bare" / index.name) == {"w1": 1, "w2": 2}

    refused = fix(index, "--strip-prefix", "module.")
    assert refused.returncode == 2
    assert "-o FOLDER" in refused.stderr
    assert fix(index).returncode == 0
    assert loaded(index) == {"module.w1": 1, "module.w2": 2}


def test_two_files_are_never_written_into_one(ckpt: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = saved(tmp_path / "other" / "ckpt.pt", weights())
    ended = fix(ckpt, other, "-o", tmp_path / "out")
    assert ended.returncode == 2
    assert "would both become" in ended.stderr
    assert not (tmp_path / "out").exists()
    for out in (ckpt, tmp_path / "new.pt"):
        ended = fix(ckpt, other, "-o", out)
        assert (ended.returncode, "name a folder" in ended.stderr.replace("│\n│", "")) == (2, True)
    assert not (tmp_path / "new.pt").exists()


def test_json_follows_the_schema_and_proves_the_treatment(ckpt: Path, tmp_path: Path) -> None:
    pointer = tmp_path / "lfs.pt"
    pointer.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 12345\n")
    report = json.loads(fix("--json", "--dry-run", ckpt).stdout)
    assert (report["verdict"], report["files"][0]["action"]) == ("fail", "would-fix")
    done = fix("--json", ckpt)
    report = json.loads(done.stdout)
    check_against_schema(report)
    assert (done.returncode, done.stderr, report["verdict"], report["command"]) == (0, "", "ok", "fix-checkpoint")
    assert "ckpt-device-pin" in report["passed"]
    assert [pin["device"] for pin in report["files"][0]["before"]["pins"]] == ["cuda:3"]
    assert [pin["device"] for pin in report["files"][0]["after"]["pins"]] == ["cpu"]
    both = fix("--json", ckpt, pointer)
    report = json.loads(both.stdout)
    check_against_schema(report)
    assert both.returncode == 2
    assert [file["action"] for file in report["files"]] == ["clean", "refused"]
    assert "lfs.pt" in report["problems"][0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "path"),
        (["ckpt.pt", "--undo", "--to", "cpu"], "--undo"),
        (["ckpt.pt", "--undo", "-o", "x"], "--undo"),
        (["ckpt.pt", "--to", "meta"], "meta"),
        (["ckpt.pt", "--keep", "model"], "ddpdoctor fix-checkpoint ckpt.pt --keep model -o ckpt-small.pt"),
        (["ckpt.pt", "--keep", "model", "--drop", "epoch", "-o", "x"], "exclude"),
        (["ckpt.pt", "--to-safetensors"], "-o ckpt.safetensors"),
        (["ckpt.pt", "other.pt", "--params-only"], "-o fixed/"),
        (["ckpt.pt", "--strip-prefix", ""], "is empty"),
        ([""], "a path is empty"),
        (["ckpt.pt", "", "--json"], "a path is empty"),
        (["", "-o", "out"], "a path is empty"),
        (["--undo", ""], "a path is empty"),
        (["-"], "a file is needed"),
        (["--undo", "."], "nothing to undo"),
        (["nothing-here.pt"], "nothing-here.pt"),
        (["ckpt.pt", "--frobnicate"], "frobnicate"),
    ],
)
def test_wrong_usage_exits_2_and_changes_nothing(ckpt: Path, arguments: list[str], words: str) -> None:
    before = ckpt.read_bytes()
    ended = fix(*arguments, cwd=ckpt.parent)
    assert ended.returncode == 2
    assert words.lower() in (ended.stdout + ended.stderr).lower()
    assert "Traceback" not in ended.stderr
    assert ckpt.read_bytes() == before


def test_help_names_every_command_as_it_is_typed() -> None:
    text = ddpdoctor("--help").stdout
    rows = [line.split()[1] for line in text.partition("Commands")[2].splitlines() if line.startswith("│ ")]
    assert [row for row in rows if row in ("check", "fix-checkpoint", "snapshot", "list", "explain")] == [
        "check",
        "fix-checkpoint",
        "snapshot",
        "list",
        "explain",
    ]
    assert "fix-checkpoint" in fix("--help").stdout


def test_nothing_that_takes_long_is_loaded(ckpt: Path) -> None:
    line = [sys.executable, "-X", "importtime", *command("fix-checkpoint", ckpt)[1:]]
    ended = subprocess.run(line, env=plain_environ(), capture_output=True, text=True, check=True)
    modules = {row.rpartition("|")[2].strip() for row in ended.stderr.splitlines()}
    assert "ddpdoctor.checkpoints.writing.in_place" in modules
    heavy = ("rich", "torch", "numpy", "pickletools", "asyncio", "psutil", "packaging", "ddpdoctor.engine.registry")
    assert not [name for name in modules if name.split(".")[0] in heavy or name in heavy]
    assert not [name for name in modules if name.startswith(("ddpdoctor.probes", "ddpdoctor.checks"))]


def test_a_closed_pipe_ends_it_quietly(ckpt: Path) -> None:
    started = subprocess.Popen(
        command("fix-checkpoint", ckpt), env=plain_environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert started.stdout is not None
    assert started.stderr is not None
    started.stdout.close()
    assert started.stderr.read() == b""
    assert started.wait(60) == 141
    assert same(torch.load(ckpt, weights_only=True)["model"], weights())


class Terminal:
    """A command line on a terminal of its own."""

    def __init__(self, line: list[str], **environ: str) -> None:
        self.output = ""
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.execve(line[0], line, plain_environ() | {"TERM": "xterm", "COLUMNS": "80"} | environ)

    def wait_for(self, text: str) -> None:
        while text not in self.output:
            assert self._read(60), self.output

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def end(self) -> int:
        while self._read(60):
            pass
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self, seconds: float) -> bool:
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.output += data.decode()
        return bool(data)


def test_colours_on_a_terminal_unless_unwanted(ckpt: Path) -> None:
    for environ, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        terminal = Terminal(command("fix-checkpoint", "--dry-run", ckpt), **environ)
        assert terminal.end() == 1
        assert ("\x1b[1;33mTO FIX\x1b[0m" in terminal.output) is coloured


@pytest.fixture
def gan(tmp_path: Path) -> Path:
    return saved(tmp_path / "gan.pt", {"generator": weights("g."), "discriminator": weights("d.")})


def test_where_it_is_unclear_a_person_is_asked(gan: Path, tmp_path: Path) -> None:
    terminal = Terminal(command("fix-checkpoint", "--params-only", gan, "-o", tmp_path / "params.pt"))
    terminal.wait_for("[none] ")
    choices = [line.split()[1] for line in terminal.output.splitlines() if line.strip()[:1].isdigit()]
    assert sorted(choices) == ["discriminator", "generator"]
    terminal.type("seven\n")
    terminal.type(f"{choices.index('generator') + 1}\n")
    assert terminal.end() == 0, terminal.output
    assert same(torch.load(tmp_path / "params.pt", weights_only=True), weights("g."))


@pytest.mark.parametrize(("typed", "code"), [("\n", 2), ("\x04", 2), ("\x03", 130)])
def test_no_answer_changes_nothing(gan: Path, tmp_path: Path, typed: str, code: int) -> None:
    terminal = Terminal(command("fix-checkpoint", "--params-only", gan, "-o", tmp_path / "params.pt"))
    terminal.wait_for("[none] ")
    terminal.type(typed)
    assert terminal.end() == code, terminal.output
    assert code == 2 or "Stopped. Nothing was changed." in terminal.output
    assert [path.name for path in tmp_path.iterdir()] == ["gan.pt"]


SLOW = """
import time
from ddpdoctor.base.terminal import take_terminal
from ddpdoctor.cli.fix_checkpoint import FilesProgress
take_terminal()
progress = FilesProgress(2)
progress.begin("quick.pt")
progress.pause()
print("quick done")
progress.begin("slow.pt")
for done in range(16):
    progress.update(done, 16)
    time.sleep(0.1)
progress.pause()
print("slow done")
progress.close()
"""


def test_progress_shows_after_a_second_and_leaves_nothing_behind() -> None:
    terminal = Terminal([sys.executable, "-c", SLOW])
    assert terminal.end() == 0, terminal.output
    assert "file 1 of 2" not in terminal.output
    before, after = terminal.output.split("slow done")
    assert "%, 1" in before
    assert "file 2 of 2, slow.pt" in before
    assert before.endswith("\r\x1b[K")
    assert after.strip() == ""


def test_without_a_terminal_it_says_how_to_name_it(gan: Path, tmp_path: Path) -> None:
    out = tmp_path / "params.pt"
    ended = fix("--params-only", gan, "-o", out)
    assert ended.returncode == 2
    assert "--keep" in ended.stdout
    assert fix("--params-only", "--keep", "generator", gan, "-o", out).returncode == 0
    assert same(torch.load(out, weights_only=True), weights("g."))


def test_ctrl_c_says_what_was_done_by_then(tmp_path: Path) -> None:
    for number in range(300):
        saved(tmp_path / f"{number:03}.pt", weights())
    originals = {path: path.read_bytes() for path in tmp_path.iterdir()}
    started = subprocess.Popen(
        command("fix-checkpoint", tmp_path),
        env=plain_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "003.pt.ddpdoctor-undo").exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    started.send_signal(signal.SIGINT)
    _, stderr = started.communicate(timeout=60)
    changed = {path.name for path, content in originals.items() if path.read_bytes() != content}
    assert started.returncode == 130
    assert 3 <= len(changed) < 300
    assert f"{len(changed)} files, the last of them {tmp_path / max(changed)}." in " ".join(stderr.split())
    assert stderr.endswith(f"To go back:\n    ddpdoctor fix-checkpoint --undo {tmp_path}\n")
    for path in originals:
        torch.load(path, weights_only=True, map_location="cpu")


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_report_that_can_not_be_written_hides_nothing(ckpt: Path, options: tuple[str, ...]) -> None:
    before = ckpt.read_bytes()
    for undo, words in (((), f"--undo {ckpt}"), (("--undo",), str(ckpt))):
        with Path("/dev/full").open("w") as full:
            line = command("fix-checkpoint", *options, *undo, ckpt)
            ended = subprocess.run(line, env=plain_environ(), stdout=full, stderr=subprocess.PIPE, text=True)
        assert ended.returncode == 2
        assert ended.stderr.startswith("The report could not be written: No space left on device. Done by then, and")
        assert words in ended.stderr
        assert (ckpt.read_bytes() == before) is bool(undo)
        assert len(list(ckpt.parent.iterdir())) == (1 if undo else 2)


STOPPED_AFTER_WRITING = """
import os, signal, sys
from ddpdoctor.checkpoints import fixing
from ddpdoctor.cli.main import main

def verified(*_):
    os.kill(os.getpid(), signal.SIGTERM)

fixing._Attempt._verified = verified
main()
"""


def test_a_new_file_that_is_there_when_it_is_stopped_is_told_of(ckpt: Path, tmp_path: Path) -> None:
    out = tmp_path / "new.pt"
    line = [sys.executable, "-c", STOPPED_AFTER_WRITING, "fix-checkpoint", str(ckpt), "-o", str(out)]
    ended = subprocess.run(line, env=plain_environ(), capture_output=True, text=True)
    assert (ended.returncode, out.exists()) == (143, True), ended.stderr
    told = " ".join(ended.stderr.split())
    assert f"Stopped. Done by then, and whole: {out}, but not yet read back. All else is as it was." in told


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (("--keep", "a,b"), ["a,b"]),
        (("--keep", "a, c"), ["a", "c"]),
        (("--keep", "a,b", "--keep", "0,c"), ["a,b", "c", 0]),
        (("--drop", "7,a,b"), ["a,b", "c", 0]),
    ],
)
def test_keys_may_hold_commas_and_be_numbers(tmp_path: Path, options: tuple[str, ...], left: list[Any]) -> None:
    content = {"a,b": weights(), "a": 1, "b": 2, "c": 3, 0: torch.ones(2), 7: 4}
    path, out = saved(tmp_path / "ckpt.pt", content), tmp_path / "out.pt"
    done = fix(path, *options, "-o", out)
    assert done.returncode == 0, done.stdout
    assert list(torch.load(out, weights_only=True)) == left


def test_a_name_that_begins_with_a_dash_is_hinted_at(ckpt: Path) -> None:
    ckpt.rename(ckpt.with_name("-dash.pt"))
    ended = fix("-dash.pt", cwd=ckpt.parent)
    assert (ended.returncode, "write ./-dash.pt" in ended.stderr) == (2, True)
    assert fix("./-dash.pt", cwd=ckpt.parent).returncode == 0


def test_a_folder_without_undo_files_is_told_of_in_a_sentence(tmp_path: Path) -> None:
    ended = fix("--undo", tmp_path)
    assert (ended.returncode, ended.stderr) == (2, "")
    assert "so there is nothing to undo." in " ".join(ended.stdout.split())
    assert json.loads(fix("--undo", "--json", tmp_path).stdout)["files"][0]["action"] == "refused"


def test_no_new_file_is_promised_of_what_is_not_rewritten(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path, out = tmp_path / "model.safetensors", tmp_path / "new.pt"
    save_file(weights(), path)
    assert fix(path).returncode == 0
    refused = fix(path, "-o", out)
    assert (refused.returncode, out.exists()) == (2, False)
    assert "safetensors" in refused.stdout
