"""What `fix-checkpoint` says of made-up outcomes, and what it makes of its options. Nothing is read or written."""

from __future__ import annotations

import ast
import io
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddpdoctor.api.checkpoint_options import edit_options
from ddpdoctor.api.errors import UsageError
from ddpdoctor.checkpoints.pickles.editing import EditOptions
from ddpdoctor.checkpoints.render import file_item, file_sections, sum_sections
from ddpdoctor.checkpoints.render_json import fixing_report
from ddpdoctor.checks.catalogue import select
from ddpdoctor.cli.fix_checkpoint import FilesProgress
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.facts.checkpoints import CheckpointFile, DeviceText, GlobalName, KeyPrefix, Pins
from ddpdoctor.report.contract import to_json
from ddpdoctor.report.document import Paragraph
from ddpdoctor.report.reported_checkpoints import Action, CheckpointOutcome, Moved
from ddpdoctor.report.terminal import Screen, screen_for
from tests.support.report_schema import check_against_schema

BEFORE = CheckpointFile(
    path="runs/ckpt.pt",
    kind="zip",
    called="a PyTorch checkpoint (zip)",
    size=4_900_000,
    pins=(Pins(device="cuda:7", tensors=390, bytes=4_700_000), Pins(device="cpu", tensors=127, bytes=1300)),
)
AFTER = msgspec.structs.replace(BEFORE, pins=(Pins(device="cpu", tensors=517, bytes=4_701_300),))
MOVED = (Moved(device_from="cuda:7", device_to="cpu", tensors=390, bytes=4_700_000),)
FIXED = CheckpointOutcome(
    path="runs/ckpt.pt",
    action=Action.FIXED,
    before=BEFORE,
    after=AFTER,
    moved=MOVED,
    undo_file="runs/ckpt.pt.ddpdoctor-undo",
)
SYSTEM = GlobalName(name="os.system", meaning="runs a command in a shell", dangerous=True)
NAMESPACE = GlobalName(name="argparse.Namespace", meaning="a program's command-line options")
LFS = CheckpointFile(path="lfs.pt", kind="git-lfs-pointer", called="a Git LFS pointer", size=130, problem="A pointer")
REFUSED = CheckpointOutcome(
    path="lfs.pt",
    action=Action.REFUSED,
    before=LFS,
    error="A Git LFS pointer: the file itself was never fetched",
    advice="Fetch it",
    commands=("git lfs pull --include lfs.pt",),
)


def changed(outcome: CheckpointOutcome, **facts: Any) -> CheckpointOutcome:
    """The outcome with other facts of the file, before and after."""
    both = {
        name: msgspec.structs.replace(one, **facts)
        for name in ("before", "after")
        if (one := getattr(outcome, name)) is not None
    }
    return msgspec.structs.replace(outcome, **both)


def screen(width: int = 80, *, colour: bool = False) -> tuple[Screen, io.StringIO]:
    file = io.StringIO()
    return Screen(file, width, colour=colour), file


def told(outcome: CheckpointOutcome, width: int = 80, wishes: EditOptions | None = None) -> str:
    made, file = screen(width)
    made.show_sections(file_sections(outcome, wishes or EditOptions()))
    return file.getvalue()


def summed(*outcomes: CheckpointOutcome, paths: tuple[str, ...] = ("runs",), width: int = 80) -> str:
    made, file = screen(width)
    for outcome in outcomes:
        made.write(file_item(outcome))
    made.write(Paragraph(""))
    made.show_sections(sum_sections(outcomes, paths))
    return file.getvalue()


def test_a_fixed_file_in_whole() -> None:
    assert told(FIXED) == (
        "FIXED    runs/ckpt.pt, a PyTorch checkpoint (zip), 4.7 MiB\n"
        "\n"
        "         device  tensors    bytes  now\n"
        "         cuda:7      390  4.5 MiB  cpu\n"
        "         cpu         127  1.3 KiB\n"
        "\n"
        "done     Moved 390 tensors to cpu, in place; read back and verified.\n"
        "undo     To go back, byte for byte (runs/ckpt.pt.ddpdoctor-undo may be deleted\n"
        "         once all is well):\n"
        "           ddpdoctor fix-checkpoint --undo runs/ckpt.pt\n"
        "load     torch.load('runs/ckpt.pt', weights_only=True)\n"
    )


def test_a_dry_run_says_that_nothing_was_changed_and_not_how_to_load() -> None:
    text = told(msgspec.structs.replace(FIXED, action=Action.WOULD_FIX, after=None, undo_file=""))
    assert text.startswith("TO FIX ")
    assert "nothing was changed" in text
    assert "torch.load" not in text
    assert "--undo" not in text


def test_what_is_dangerous_comes_first_and_then_no_way_of_loading_it_all() -> None:
    text = told(changed(FIXED, globals=(NAMESPACE, SYSTEM), weights_only_blockers=("argparse.Namespace", "os.system")))
    assert "- os.system runs a command in a shell" in text
    assert (
        text.index("DANGER")
        < text.index("os.system")
        < text.index("WARN")
        < text.index("argparse")
        < text.index("done")
    )
    assert "torch.load" not in text
    assert "fix-checkpoint runs/ckpt.pt --params-only --to-safetensors -o runs/ckpt.safetensors" in text


def test_a_foreign_class_is_named_and_allowed_alone() -> None:
    text = told(changed(FIXED, globals=(NAMESPACE,), weights_only_blockers=("argparse.Namespace",)))
    assert "DANGER" not in text
    assert "- argparse.Namespace: a program's command-line options" in text
    assert "torch.serialization.add_safe_globals([argparse.Namespace])" in text
    assert "torch.load('runs/ckpt.pt', weights_only=True)" in text
    assert "weights_only=False)" not in text


@pytest.mark.parametrize("action", list(Action))
@pytest.mark.parametrize("names", [(), (SYSTEM,), (NAMESPACE,)])
def test_no_file_is_ever_called_safe(action: Action, names: tuple[GlobalName, ...]) -> None:
    outcome = changed(msgspec.structs.replace(FIXED, action=action, error="No"), globals=names)
    text = f"{told(outcome)}{summed(outcome, outcome)}".replace("safetensors", "")
    assert "safe" not in text.lower()


def test_hostile_thousands_of_names_are_cut_short() -> None:
    names = tuple(msgspec.structs.replace(SYSTEM, name=f"os.system{number}") for number in range(5000))
    text = told(changed(FIXED, globals=names, weights_only_blockers=tuple(name.name for name in names)))
    assert len(text.splitlines()) < 40
    assert "and 4994 more" in text


def test_hints_carry_their_command() -> None:
    outcome = changed(
        FIXED,
        prefixes=(KeyPrefix(where="model", prefix="module.", keys=1610),),
        rng_states=("rng.cpu",),
        device_texts=(DeviceText(where="hyper_parameters.use_device", device="cuda:7"),),
        code_devices=("code/__torch__.py:12: cuda:0",),
        whole_module="nets.Net",
    )
    text = " ".join(told(outcome).split())
    assert 'All 1,610 keys of model begin with "module."' in text
    assert "ddpdoctor fix-checkpoint runs/ckpt.pt --strip-prefix module." in text
    assert "rng.cpu" in text
    assert "hyper_parameters.use_device = cuda:7" in text
    assert "But its code still names cuda:0 (code/__torch__.py:12)" in text
    assert "nets.Net" in text


def test_each_kind_is_loaded_in_its_own_way() -> None:
    assert "torch.jit.load('runs/ckpt.pt')" in told(changed(FIXED, kind="torchscript"))
    written = msgspec.structs.replace(FIXED, action=Action.WRITTEN, written="out.safetensors", undo_file="")
    facts = CheckpointFile(path="out.safetensors", kind="safetensors", called="a safetensors file", size=3)
    text = told(msgspec.structs.replace(written, after=facts))
    assert "safetensors.torch.load_file('out.safetensors')" in text
    assert "torch.load(" not in text


def test_refusal_has_the_reason_the_advice_and_the_command_but_no_praise() -> None:
    text = told(REFUSED)
    assert text.startswith("REFUSED  lfs.pt: A Git LFS pointer: the file itself was never fetched.\n")
    assert "fix      Fetch it.\n           git lfs pull --include lfs.pt\n" in text
    assert "done" not in text


def test_what_is_clean_depends_on_the_device_that_was_wished() -> None:
    clean = msgspec.structs.replace(FIXED, action=Action.CLEAN, after=None, moved=(), undo_file="")
    assert "is on cuda:7 already" in told(clean, wishes=EditOptions(to="cuda:7"))
    assert "no tensor in it is tied to a device" in told(msgspec.structs.replace(clean, before=AFTER))


def test_a_refused_file_is_told_of_when_it_is_dangerous() -> None:
    outcome = msgspec.structs.replace(FIXED, action=Action.REFUSED, after=None, error="It is a link")
    text = told(changed(outcome, globals=(SYSTEM, NAMESPACE)))
    assert text.startswith("REFUSED  runs/ckpt.pt: It is a link.\n         The file was not changed.\n\nDANGER")
    assert "Namespace" not in text
    assert "DANGER" in summed(changed(outcome, globals=(SYSTEM, NAMESPACE)), FIXED)


def test_of_what_was_left_out_nothing_is_said_to_be_moved() -> None:
    outcome = msgspec.structs.replace(FIXED, action=Action.WRITTEN, written="new.pt", dropped=("optimizer",), renamed=7)
    text = " ".join(told(outcome).split())
    assert "Moved what stays to cpu, renamed 7 keys and left out optimizer; the new file" in text


def test_of_a_smaller_file_only_what_is_in_it_is_counted() -> None:
    after = msgspec.structs.replace(BEFORE, size=1024, pins=(Pins(device="cpu", tensors=9, bytes=1024),))
    outcome = msgspec.structs.replace(
        FIXED, action=Action.WRITTEN, written="new.pt", dropped=("optimizer",), after=after
    )
    text = told(outcome)
    assert "device  tensors  bytes\n         cpu           9  1 KiB\n" in text
    assert "390" not in text
    assert summed(outcome, FIXED).startswith("WRITTEN  new.pt: cuda:7 -> cpu, left out optimizer, 1 KiB\n")
    dry = told(msgspec.structs.replace(outcome, action=Action.WOULD_FIX, after=None, written=""))
    assert "to do    Move what stays to cpu and leave out optimizer. This was a dry run" in dry


def test_one_key_is_not_called_all_keys() -> None:
    text = told(changed(FIXED, prefixes=(KeyPrefix(where="", prefix="module.", keys=1),)))
    assert 'The only key begins with "module."' in text


def test_that_nothing_was_changed_is_said_once() -> None:
    refused = msgspec.structs.replace(FIXED, action=Action.REFUSED, after=None, error="A bug. Nothing was changed")
    assert told(refused).count("changed") == 1


def test_long_names_are_cut_in_their_middle_but_not_in_commands() -> None:
    key = "first" + "x" * 3000 + "last"
    outcome = msgspec.structs.replace(
        changed(FIXED, prefixes=(KeyPrefix(where=key, prefix="module.", keys=3),), rng_states=(key,)),
        path=f"{key}.pt",
        dropped=(key, "a " * 2000),
        notes=(f"What was under {key} stays.",),
    )
    lines = told(outcome).splitlines()
    assert any(f"--undo {key}.pt" in line for line in lines)
    prose = [line for line in lines if key not in line]
    assert sum(map(len, prose)) < 3000
    assert any("last" in line for line in prose)


def test_names_of_classes_are_broken_at_their_dots() -> None:
    made, file = screen(40)
    made.write(Paragraph("it holds transformers.trainer_utils.SchedulerType of a trainer", margin=9))
    assert "transformers.\n         trainer_utils.SchedulerType" in file.getvalue()


def test_choices_are_listed() -> None:
    outcome = msgspec.structs.replace(REFUSED, before=BEFORE, error="Two", choices=("generator", ""))
    assert "- generator\n         - the top level" in told(outcome)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_commands_stay_whole_and_the_rest_fits(width: int) -> None:
    path = "/home/ada/.cache/huggingface/hub/models--org--name/snapshots/0123456789abcdef/pytorch_model.bin"
    outcome = msgspec.structs.replace(
        changed(FIXED, prefixes=(KeyPrefix(where="a.very.long.path.to.the.model", prefix="module.", keys=3),)),
        path=path,
    )
    lines = told(outcome, width).splitlines() + summed(outcome, REFUSED, width=width, paths=(path,)).splitlines()
    commands = [line for line in lines if "ddpdoctor fix-" in line or "torch.load" in line or "git lfs pull" in line]
    assert f"ddpdoctor fix-checkpoint --undo {path}" in [line.strip() for line in commands]
    assert all(len(line) <= width for line in lines if line not in commands)
    assert not any(line != line.rstrip() for line in lines)


def test_many_files_a_line_each_and_the_loud_ones_once() -> None:
    loud = changed(FIXED, globals=(NAMESPACE,))
    others = [msgspec.structs.replace(loud, path=f"runs/{number}.pt") for number in range(10)]
    text = summed(FIXED, *others, REFUSED)
    assert text.startswith("FIXED    runs/ckpt.pt: 390 tensors cuda:7 -> cpu, 4.7 MiB\n")
    assert text.count("argparse.Namespace") == 1
    assert "runs/0.pt, runs/1.pt, runs/2.pt and 7 more" in text
    assert text.count("the file itself was never fetched") == 1
    assert "12 files: 11 fixed and 1 could not be handled." in text
    assert text.endswith("    ddpdoctor fix-checkpoint --undo runs\n")


def test_only_paths_of_fixed_files_are_named_for_undoing() -> None:
    def command(*paths: str) -> str:
        return summed(FIXED, REFUSED, paths=paths).splitlines()[-1]

    assert command("lfs.pt", "runs/ckpt.pt").endswith("--undo runs/ckpt.pt")
    assert command(".").endswith("--undo .")
    assert command("runs/model.bin.index.json", "other/").endswith("--undo runs/model.bin.index.json")
    assert "--undo" not in summed(REFUSED, REFUSED)


@pytest.mark.parametrize("name", ["a b.pt", "-rf.pt", "$(id).pt", "it's.pt"])
def test_commands_can_be_pasted(name: str) -> None:
    outcome = msgspec.structs.replace(FIXED, path=name)
    command = next(line for line in told(outcome).splitlines() if "--undo" in line)
    *_, path = shlex.split(command)
    assert Path(path) == Path(name)
    assert not path.startswith("-")


@pytest.mark.parametrize(
    "name",
    [b"odd\xff.pt", b"new\nline.pt", b"esc\x1b[2J.pt", b"it's\\odd\xfe\t.pt", b"-\xffrf.pt", "umläut\x07.pt".encode()],
)
def test_commands_name_files_of_any_name(name: bytes, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(name)).touch()
    lines = told(msgspec.structs.replace(FIXED, path=os.fsdecode(name))).splitlines()
    path = next(line.partition("--undo ")[2] for line in lines if "--undo " in line)
    listing = subprocess.run(["bash", "-c", f"ls -d {path}"], cwd=tmp_path, capture_output=True)
    assert listing.returncode == 0, listing.stderr
    load = next(line for line in lines if "torch.load(" in line)
    named = ast.literal_eval(load.partition("torch.load(")[2].rpartition(", weights_only")[0])
    assert os.fsencode(named) == name
    assert "udc" not in lines[0]


def test_what_a_file_says_can_not_steer_the_terminal() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e"
    outcome = changed(
        FIXED,
        pins=(Pins(device=evil, tensors=1, bytes=1),),
        globals=(GlobalName(name=evil, meaning=evil, dangerous=True), GlobalName(name=evil)),
        prefixes=(KeyPrefix(where=evil, prefix=evil, keys=1),),
        rng_states=(evil,),
        device_texts=(DeviceText(where=evil, device=evil),),
        code_devices=(evil,),
        whole_module=evil,
        weights_only_blockers=(evil,),
    )
    moved = (Moved(device_from=evil, device_to="cpu", tensors=1, bytes=1),)
    outcome = msgspec.structs.replace(outcome, path=evil, moved=moved, dropped=(evil,), notes=(evil,), undo_file=evil)
    refused = msgspec.structs.replace(REFUSED, path=evil, error=evil, advice=evil, commands=(evil,), choices=(evil,))
    for text in (told(outcome), told(refused), summed(outcome, refused, paths=(evil,))):
        assert all(character.isprintable() or character == "\n" for character in text), ascii(text)


def test_colours_only_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made, file = screen(colour=True)
    made.show_sections(file_sections(FIXED, EditOptions()))
    assert "\x1b[1;32mFIXED\x1b[0m" in file.getvalue()
    for environ, coloured in (
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ):
        path = tmp_path / "out"
        with path.open("w") as out:
            screen_for(out, environ).show_sections(file_sections(FIXED, EditOptions()))
        assert ("\x1b" in path.read_text()) is coloured


def test_json_follows_the_schema_and_the_same_checks_judge_the_files() -> None:
    report = fixing_report([FIXED, REFUSED], select(["checkpoint"]))
    content = msgspec.json.decode(to_json(report))
    check_against_schema(content)
    assert [file["action"] for file in content["files"]] == ["fixed", "refused"]
    assert content["files"][0]["before"]["pins"][0]["device"] == "cuda:7"
    assert content["verdict"] == "fail"
    assert [finding["slug"] for finding in content["findings"] if finding["severity"] == "fail"] == ["ckpt-truncated"]
    assert content["problems"] == ["lfs.pt: A Git LFS pointer: the file itself was never fetched"]


def test_a_dry_run_is_judged_by_what_the_file_still_is() -> None:
    assert "ckpt-device-pin" in fixing_report([FIXED], select(["checkpoint"])).passed
    assert fixing_report([FIXED], select(["checkpoint"])).verdict is Verdict.OK
    report = fixing_report(
        [msgspec.structs.replace(FIXED, action=Action.WOULD_FIX, after=None)], select(["checkpoint"])
    )
    assert "ckpt-device-pin" not in report.passed
    assert report.verdict is Verdict.FAIL


def wishes_of(*paths: str, **options: Any) -> EditOptions:
    nothing: dict[str, Any] = dict.fromkeys(("to", "prefixes", "keep", "drop", "output"))
    flags = dict.fromkeys(("params_only", "to_safetensors", "undo"), False)
    return edit_options(paths or ["ckpt.pt"], **(nothing | flags | options))


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0", "cuda:12", "mps", "xpu:1", "npu:0", "hpu"])
def test_devices_that_torch_knows_are_taken(device: str) -> None:
    assert wishes_of(to=device).to == device


@pytest.mark.parametrize(
    "device", ["", "meta", "cpu:0", "CUDA:0", "cuda:", "cuda:-1", "cuda:01", "gpu", "cuda:0 ", "0"]
)
def test_other_devices_are_refused(device: str) -> None:
    with pytest.raises(UsageError, match="--to"):
        wishes_of(to=device)


@pytest.mark.parametrize(
    ("device", "words"), [("CPU", "lower case, --to cpu$"), ("Cuda:1", "lower case, --to cuda:1$")]
)
def test_a_device_in_capitals_is_told_in_small_letters(device: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        wishes_of(to=device)


@pytest.mark.parametrize(("path", "words"), [("", "a path is empty"), ("-", "a file is needed")])
@pytest.mark.parametrize("undo", [True, False])
def test_what_names_no_file_is_refused(path: str, words: str, undo: bool) -> None:
    with pytest.raises(UsageError, match=words):
        wishes_of("ckpt.pt", path, undo=undo)


def test_prefixes_get_their_dot_and_keys_stay_as_typed() -> None:
    assert wishes_of(prefixes=["module", "_orig_mod.", "net_"]).strip_prefixes == ("module.", "_orig_mod.", "net_")
    assert wishes_of(keep=["model,epoch", "model"], output="o").keep == ("model,epoch", "model")
    assert wishes_of(drop=["optimizer", "a"], output="o").drop == ("optimizer", "a")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"undo": True, "to": "cpu"}, "--undo.*--to"),
        ({"undo": True, "output": "o"}, "--undo.*--output"),
        ({"undo": True, "prefixes": ["module."]}, "--undo.*--strip-prefix"),
        ({"keep": ["a"], "drop": ["b"], "output": "o"}, "--keep and --drop"),
        ({"to_safetensors": True, "to": "cuda:0", "output": "o"}, "--to-safetensors and --to"),
        ({"keep": [","], "output": "o"}, "--keep is empty"),
        ({"drop": [""], "output": "o"}, "--drop is empty"),
        ({"prefixes": [""]}, "--strip-prefix is empty"),
        ({"prefixes": ["."]}, "--strip-prefix is empty"),
        ({"output": " "}, "--output is empty"),
    ],
)
def test_contradictions_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        wishes_of(**options)


@pytest.mark.parametrize(
    ("options", "output"),
    [
        ({"keep": ["a"]}, "ckpt-small.pt"),
        ({"drop": ["a"]}, "ckpt-small.pt"),
        ({"params_only": True}, "ckpt-params.pt"),
        ({"to_safetensors": True}, "ckpt.safetensors"),
    ],
)
def test_what_leaves_something_out_needs_a_new_file(options: dict[str, Any], output: str) -> None:
    with pytest.raises(UsageError, match="so it needs a new file") as refused:
        wishes_of(**options)
    assert refused.value.lacking == ("-o", output)


def test_progress_says_how_far(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("ddpdoctor.cli.fix_checkpoint.time.monotonic", lambda: now)
    bar = FilesProgress(3)
    bar.begin("a.pt")
    assert bar.text(2) == "file 1 of 3, reading a.pt (2 s)"
    bar.update(1 << 30, 4 << 30)
    now = 102.0
    assert bar.text(2) == "━━━━━───────────────  25 %, 1 GiB of 4 GiB, 6 s left, file 1 of 3, a.pt"
    bar.update(4 << 30, 4 << 30)
    assert bar.text(3) == "file 1 of 3, verifying a.pt (3 s)"
    bar.pause()
    assert bar.text(2) == ""
    bar.resume()
    assert bar.text(2) != ""
    bar.begin("b.pt")
    assert bar.text(5) == "file 2 of 3, reading b.pt (5 s)"
