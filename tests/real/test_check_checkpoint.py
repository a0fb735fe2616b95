"""`ddpdoctor check --checkpoint` from end to end, on files that the real torch wrote, and with torch as the oracle."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import shlex
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed.checkpoint

from ddpdoctor.checks.catalogue import all_checks
from tests.support.command import ddpdoctor, plain_environ
from tests.support.registered_checks import find_check
from tests.support.report_schema import check_against_schema
from tests.support.sick_hosts import check as check_all

SLUGS = {check.slug for check in all_checks() if "checkpoints" in check.groups}

Write = Callable[[Path], object]


class OpensAFile:
    """Unpickled, it leaves a file behind: an attack whose success can be seen."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {shlex.quote(self.path)}",)


def save_pinned(value: object, path: Path, device: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Saves it as a host with that device would: each storage has a tag of its own."""
    with monkeypatch.context() as patched:
        patched.setattr(torch.serialization, "location_tag", lambda storage: "".join(list(device)))
        torch.save(value, path, **options)


def state_dict(prefix: str = "") -> dict[str, torch.Tensor]:
    return {f"{prefix}{name}": value for name, value in torch.nn.Linear(4, 4).state_dict().items()}


class Report:
    """What was said of the checkpoints named."""

    def __init__(self, *paths: Path, options: tuple[str, ...] = ("--quick",), cwd: Path | None = None) -> None:
        named = [word for path in paths for word in ("--checkpoint", str(path))]
        family = ("--python", sys.executable, "--select", "checkpoint")
        ended = ddpdoctor("check", *family, "--json", "-v", *options, *named, cwd=cwd)
        assert ended.stderr == ""
        self.code = ended.returncode
        self.json = json.loads(ended.stdout)
        check_against_schema(self.json)
        assert not [skipped for skipped in self.json["not_tested"] if skipped["why"] == "crashed"]
        told = {finding["slug"] for finding in self.json["findings"] + self.json["not_tested"]}
        assert (told | {*self.json["passed"]}) & SLUGS == SLUGS

    @property
    def found(self) -> dict[str, str]:
        return {finding["slug"]: finding["severity"] for finding in self.json["findings"]}

    def finding(self, slug: str) -> dict[str, Any]:
        (found,) = (finding for finding in self.json["findings"] if finding["slug"] == slug)
        return dict(found)

    def commands(self, slug: str) -> list[str]:
        return [command for fix in self.finding(slug)["fixes"] for command in fix["commands"]]


def save_safetensors(path: Path) -> None:
    header = json.dumps({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))


def save_distributed(path: Path) -> None:
    torch.distributed.checkpoint.save(state_dict(), checkpoint_id=path, no_dist=True)


HEALTHY: dict[str, Write] = {
    "zip": lambda path: torch.save(state_dict(), path),
    "legacy": lambda path: torch.save(state_dict(), path, _use_new_zipfile_serialization=False),
    "random states on the CPU": lambda path: torch.save({"rng": torch.get_rng_state()}, path),
    "TorchScript": lambda path: torch.jit.script(torch.nn.Linear(2, 2)).save(str(path)),
    "safetensors": save_safetensors,
    "distributed": save_distributed,
}


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("kind", HEALTHY)
def test_a_healthy_checkpoint_passes_every_check(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "healthy.pt"
    HEALTHY[kind](path)
    report = Report(path)
    assert set(report.json["passed"]) == SLUGS
    assert report.code == 0


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda content: content[: len(content) // 2],
    "without its last byte": lambda content: content[:-1],
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "noise": lambda content: random.Random(0).randbytes(len(content)),
    "an error page": lambda content: b"<!DOCTYPE html><html><title>404 Not Found</title></html>",
    "a pointer": lambda content: (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4096\n"
    ),
}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_is_told_and_nothing_else_is_said_of_it(how: str, zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "broken.pt"
    torch.save(state_dict(), path, _use_new_zipfile_serialization=zipped)
    path.write_bytes(BROKEN[how](path.read_bytes()))
    with pytest.raises((RuntimeError, EOFError, pickle.UnpicklingError)):
        torch.load(path)
    report = Report(path)
    assert report.found == {"ckpt-truncated": "fail"}
    assert {skipped["slug"] for skipped in report.json["not_tested"] if skipped["why"] == "unknown"} == SLUGS - {
        "ckpt-truncated"
    }
    assert report.code == 1


@pytest.mark.parametrize("name", ["missing.pt", "no/folder/x.pt", ".", "/dev/null", "-x.pt", "é\u202e\n.pt"])
def test_a_wrong_path_is_a_finding_and_no_usage_error(name: str, tmp_path: Path) -> None:
    report = Report(Path(name), cwd=tmp_path)
    assert report.found == {"ckpt-truncated": "fail"}
    assert report.code == 1


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_pins_that_torch_cannot_follow_here(zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pinned.pt"
    save_pinned(
        state_dict(), path, f"cuda:{torch.cuda.device_count() + 3}", monkeypatch, _use_new_zipfile_serialization=zipped
    )
    with pytest.raises(RuntimeError) as raised:
        torch.load(path)
    assert shown_in_a_log("ckpt-device-pin", raised.value)
    report = Report(path)
    assert report.found == {"ckpt-device-pin": "fail"}
    fix = report.commands("ckpt-device-pin")[0]
    assert fix == f"ddpdoctor fix-checkpoint {path}"
    assert ddpdoctor(*shlex.split(fix)[1:]).returncode == 0
    assert Report(path).code == 0
    torch.load(path)


def shown_in_a_log(slug: str, error: BaseException) -> bool:
    return any(sign.text in str(error) for sign in find_check(slug).log_signs)


@pytest.mark.parametrize("device", ["mps", "mps:0"])
def test_a_device_of_another_kind_of_host(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pinned.pt"
    save_pinned(state_dict(), path, device, monkeypatch)
    with pytest.raises((RuntimeError, AssertionError)):
        torch.load(path)
    assert Report(path).found == {"ckpt-device-pin": "fail"}


def test_a_device_that_needs_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pinned.pt"
    save_pinned(state_dict(), path, "npu:0", monkeypatch)
    with pytest.raises(RuntimeError) as raised:
        torch.load(path)
    assert shown_in_a_log("ckpt-device-pin", raised.value)
    assert Report(path).found == {"ckpt-device-pin": "warn"}


BLOCKED: dict[str, object] = {
    "argparse.Namespace": argparse.Namespace(lr=0.1),
    "a NumPy array": numpy.arange(3.0),
    "a NumPy number": numpy.float32(0.5),
    "NumPy's random state": numpy.random.default_rng(0).bit_generator.state | {"state": numpy.random.get_state()},
    "a module": torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU()),
}


@pytest.mark.parametrize("kind", BLOCKED)
def test_what_the_fix_allows_is_enough_for_torch_load(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "more.pt"
    torch.save({"model": state_dict(), "more": BLOCKED[kind]}, path)
    with pytest.raises(pickle.UnpicklingError) as raised:
        torch.load(path)
    assert shown_in_a_log("ckpt-weights-only", raised.value)
    report = Report(path)
    assert report.found["ckpt-weights-only"] == "warn"
    lines = [line for line in report.commands("ckpt-weights-only") if "torch.load" not in line]
    program = "\n".join([*lines, f"torch.load({str(path)!r})"])
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_opcodes_at_which_torch_load_stops(tmp_path: Path) -> None:
    path = tmp_path / "protocol4.pt"
    torch.save(state_dict(), path, pickle_protocol=4)
    with pytest.raises(pickle.UnpicklingError) as raised:
        torch.load(path)
    assert shown_in_a_log("ckpt-weights-only", raised.value)
    assert Report(path).found == {"ckpt-weights-only": "warn"}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_hostile_file_is_shouted_about_and_never_run(zipped: bool, tmp_path: Path) -> None:
    path, trace = tmp_path / "evil.pt", tmp_path / "it ran"
    torch.save({"model": state_dict(), "evil": OpensAFile(str(trace))}, path, _use_new_zipfile_serialization=zipped)
    report = Report(path, options=())
    assert report.found == {"ckpt-weights-only": "fail"}
    assert "DANGER" in report.finding("ckpt-weights-only")["summary"]
    assert "safe" not in json.dumps(report.json["findings"]).replace("safetensors", "")
    assert not trace.exists()
    torch.load(path, weights_only=False)
    assert trace.exists()


def test_a_pickled_module_becomes_a_state_dict_by_the_command(tmp_path: Path) -> None:
    path = tmp_path / "my model.pt"
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    torch.save({"epoch": 3, "model": model}, path)
    report = Report(path)
    assert report.found == {"ckpt-weights-only": "warn", "ckpt-whole-module": "info"}
    (command,) = report.commands("ckpt-whole-module")
    subprocess.run(command, shell=True, check=True, timeout=120, env=plain_environ())
    made = torch.load(tmp_path / "my model.pt.state_dict.pt")
    assert made["epoch"] == 3
    assert torch.equal(made["model"]["0.weight"], model[0].weight)


def test_a_wrappers_prefix_is_good_to_know(tmp_path: Path) -> None:
    path = tmp_path / "ddp.pt"
    torch.save({"model": state_dict("module."), "epoch": 1}, path)
    with pytest.raises(RuntimeError) as raised:
        torch.nn.Linear(4, 4).load_state_dict(torch.load(path)["model"])
    assert shown_in_a_log("ckpt-module-prefix", raised.value)
    report = Report(path)
    assert report.found == {"ckpt-module-prefix": "info"}
    assert report.code == 0
    (fix,) = report.commands("ckpt-module-prefix")
    assert ddpdoctor(*shlex.split(fix)[1:]).returncode == 0
    assert Report(path).found == {}
    torch.nn.Linear(4, 4).load_state_dict(torch.load(path)["model"])


def test_devices_in_settings(tmp_path: Path) -> None:
    path = tmp_path / "config.pt"
    torch.save(
        {"model": state_dict(), "hyper_parameters": {"use_device": "cuda:63", "where": torch.device("cuda", 62)}}, path
    )
    report = Report(path)
    assert report.found == {"ckpt-device-in-config": "warn"}
    evidence = report.finding("ckpt-device-in-config")["evidence"][0]["text"]
    assert "hyper_parameters.use_device is cuda:63" in evidence
    assert "hyper_parameters.where is cuda:62" in evidence


def test_a_device_in_the_code_of_torchscript(tmp_path: Path) -> None:
    class Placed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.ones(2, device=torch.device("cuda:63"))

    path = tmp_path / "placed.pt"
    torch.jit.script(Placed()).save(str(path))
    report = Report(path)
    assert report.found == {"ckpt-device-in-config": "warn"}
    assert "code/" in report.finding("ckpt-device-in-config")["summary"]


def test_files_of_each_rank(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        torch.save({"cpu": torch.get_rng_state()}, tmp_path / f"rng_state_{rank}.pth")
    lacking = Report(tmp_path, options=("--quick", "--nproc", "4"))
    assert lacking.found == {"ckpt-world-size-mismatch": "warn"}
    assert "2" in lacking.finding("ckpt-world-size-mismatch")["summary"].rpartition(":")[2]
    torch.save({"cpu": torch.get_rng_state()}, tmp_path / "rng_state_2.pth")
    assert Report(tmp_path, options=("--quick", "--nproc", "4")).found == {}
    assert Report(tmp_path, options=("--quick", "--nproc", "3")).found == {"ckpt-world-size-mismatch": "info"}
    assert Report(tmp_path / "rng_state_0.pth", options=("--quick", "--nproc", "2")).found == {
        "ckpt-world-size-mismatch": "info"
    }


def test_a_folder_stands_for_the_checkpoints_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        save_pinned(state_dict(), tmp_path / f"shard-{number}.pt", "cuda:63", monkeypatch)
    (tmp_path / "README.md").write_text("not a checkpoint")
    report = Report(tmp_path)
    assert len(report.json["findings"]) == 1
    assert "40 files" in report.finding("ckpt-device-pin")["summary"]
    assert report.commands("ckpt-device-pin")[0] == f"ddpdoctor fix-checkpoint {tmp_path}"


def test_all_checks_run_with_a_checkpoint_and_torch_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_pinned(state_dict(), tmp_path / "pinned.pt", "cuda:63", monkeypatch)
    told = check_all("--python", sys.executable, "--checkpoint", tmp_path / "pinned.pt")
    assert told.found["ckpt-device-pin"].startswith("fail: pinned.pt holds 2 tensors (80 B) for cuda:63")
    ended = ddpdoctor("check", "--python", sys.executable, "--quick", "--checkpoint", "pinned.pt", cwd=tmp_path)
    assert "pinned.pt: a PyTorch checkpoint (zip)" in ended.stdout


def test_without_a_checkpoint_the_family_says_what_it_lacks() -> None:
    report = Report()
    assert report.code == 2
    reasons = {skipped["slug"]: skipped["reason"] for skipped in report.json["not_tested"]}
    assert {reasons[slug] for slug in SLUGS} == {"no checkpoint was named (--checkpoint FILE)"}


def test_a_snapshot_carries_the_checkpoint_to_whoever_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, taken = tmp_path / "pinned.pt", tmp_path / "host.json"
    save_pinned(state_dict(), path, "cuda:63", monkeypatch)
    assert (
        ddpdoctor("snapshot", "--quick", "--python", sys.executable, "--checkpoint", path, "-o", taken).returncode == 0
    )
    path.unlink()
    ended = ddpdoctor("check", "--snapshot", taken, "--select", "checkpoint", "--json")
    assert ended.returncode == 1
    assert [finding["slug"] for finding in json.loads(ended.stdout)["findings"]] == ["ckpt-device-pin"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "--checkpoint", ""], "--checkpoint is empty"),
        (["snapshot", "--checkpoint", " "], "--checkpoint is empty"),
        (["check", "--checkpoint", "a.pt", "--snapshot", "host.json"], "--snapshot"),
        (["check", "--checkpoint", "a.pt", "--select", "host"], "leave no check"),
        (["check", "--checkpoint", "a.pt", "--ignore", "checkpoint"], "leave no check"),
    ],
)
def test_wrong_usage(arguments: list[str], words: str) -> None:
    ended = ddpdoctor(*arguments, environ={"COLUMNS": "200"})
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
