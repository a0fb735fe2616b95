"""The probe of settings: what it keeps, what it hides, and NCCL's files as NCCL reads them."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.engine.redaction import REDACTED
from ddpdoctor.engine.registry import SkipReason, diagnose
from ddpdoctor.facts.environment import Environment, Setting, UnreadableFile
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.probes import environment as module
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.environment import NAMES, PREFIXES, probe

OURS = [check for check in all_checks() if check.family in ("settings", "launch")]


def look(root: Path, **environ: str) -> Environment:
    return probe(Context("python", environ=environ, root=root))


def write(root: Path, path: str, text: str | bytes) -> Path:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(text.encode() if isinstance(text, str) else text)
    return place


@pytest.fixture
def home_file() -> str:
    return f"{pwd.getpwuid(os.getuid()).pw_dir}/.nccl.conf"


def test_only_settings_that_matter_are_kept(tmp_path: Path) -> None:
    found = look(tmp_path, NCCL_DEBUG="WARN", RANK="0", HOME="/home/ada", EDITOR="vi", SLURM_JOB_NAME="thesis")
    assert [setting.name for setting in found.settings] == ["NCCL_DEBUG", "RANK"]


def test_secrets_are_taken_out(tmp_path: Path) -> None:
    found = look(tmp_path, NCCL_AUTH_TOKEN="abc", PET_RDZV_ENDPOINT="etcd://ada:hunter2@etcd:2379", HF_TOKEN="hf_zzzz")
    assert found.get("NCCL_AUTH_TOKEN") == REDACTED
    assert found.get("PET_RDZV_ENDPOINT") == f"etcd://{REDACTED}@etcd:2379"
    assert "HF_TOKEN" not in found


def test_bytes_that_are_no_text_are_shown_and_flagged(tmp_path: Path) -> None:
    found = look(tmp_path, TMPDIR="/scratch/m\udcfcller", **{"NCCL_\udcff": "1"})
    assert found.get("TMPDIR") == "/scratch/m\ufffdller"
    assert found.undecodable == ("NCCL_\ufffd", "TMPDIR")
    msgspec.json.encode(found)


def test_first_to_set_a_name_wins(tmp_path: Path, home_file: str) -> None:
    write(tmp_path, home_file, "NCCL_DEBUG=INFO\nNCCL_DEBUG=TRACE\nNCCL_ALGO=Ring\n")
    write(tmp_path, "/etc/nccl.conf", "# site\nNCCL_ALGO=Tree\nNCCL_SOCKET_IFNAME==eth0\n")
    found = look(tmp_path, NCCL_DEBUG="WARN")
    assert found.get("NCCL_DEBUG") == "WARN"
    assert found.get("NCCL_ALGO") == "Ring"
    assert found.get("NCCL_SOCKET_IFNAME") == "=eth0"
    assert found.configuration_files == (home_file, "/etc/nccl.conf")
    assert Setting("NCCL_DEBUG", "INFO", home_file) in found.settings
    assert [one.value for one in found.effective if one.name == "NCCL_DEBUG"] == ["WARN"]


def test_named_file_replaces_the_home_file(tmp_path: Path, home_file: str) -> None:
    write(tmp_path, home_file, "NCCL_ALGO=Ring\n")
    write(tmp_path, "/shared/nccl.conf", "NCCL_PROTO=Simple")
    found = look(tmp_path, NCCL_CONF_FILE="/shared/nccl.conf")
    assert found.configuration_files == ("/shared/nccl.conf",)
    assert "NCCL_ALGO" not in found
    assert found.get("NCCL_PROTO") == "Simple"


def test_lines_that_nccl_takes_otherwise_than_meant(tmp_path: Path) -> None:
    text = 'export NCCL_DEBUG=INFO\nNCCL_ALGO = Ring\n  # no comment\nNCCL_SOCKET_IFNAME="eth0"\nNCCL_PROTO=LL\r\nTORCH_NCCL_BLOCKING_WAIT=1\n'
    write(tmp_path, "/etc/nccl.conf", text)
    found = look(tmp_path)
    assert [(line.number, line.why) for line in found.ignored_lines] == [
        (1, "name with spaces or export"),
        (2, "name with spaces or export"),
        (3, "no ="),
        (4, "quotes are part of the value"),
        (5, "Windows line end"),
        (6, "set too late for its reader"),
    ]
    assert "NCCL_DEBUG" not in found
    assert found.get("NCCL_SOCKET_IFNAME") == '"eth0"'


def test_named_file_that_is_not_there(tmp_path: Path) -> None:
    found = look(tmp_path, NCCL_CONF_FILE="/shared/nccl.conf")
    assert found.unreadable_files == (UnreadableFile("/shared/nccl.conf", "No such file or directory"),)


def test_files_that_are_no_lists_of_settings(tmp_path: Path) -> None:
    write(tmp_path, "/shared/binary", b"\x7fELF\0\0NCCL_DEBUG=INFO\n")
    huge = write(tmp_path, "/etc/nccl.conf", b"NCCL_DEBUG=INFO\n")
    os.truncate(huge, 100 * 1024 * 1024)
    found = look(tmp_path, NCCL_CONF_FILE="/shared/binary")
    assert [file.reason for file in found.unreadable_files] == [
        "not a text file",
        "larger than 256 KiB, so not a list of settings",
    ]
    assert "NCCL_DEBUG" not in found


def test_a_pipe_and_a_folder_do_not_block(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    os.mkfifo(tmp_path / "etc/nccl.conf")
    (tmp_path / "conf.d").mkdir()
    found = look(tmp_path, NCCL_CONF_FILE="/conf.d")
    assert [file.reason for file in found.unreadable_files] == ["not a regular file", "not a regular file"]


def test_a_home_folder_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE_SECONDS", 0.1)
    monkeypatch.setattr(module, "_content", lambda *_: time.sleep(0.5) or b"")
    found = look(tmp_path, NCCL_DEBUG="WARN")
    assert found.get("NCCL_DEBUG") == "WARN"
    assert isinstance(found.configuration_files, Unknown)
    assert "did not answer" in found.configuration_files.reason


def test_rendezvous_files_that_are_there(tmp_path: Path) -> None:
    write(tmp_path, "/shared/my job", "stale")
    write(
        tmp_path,
        "/proc/self/mountinfo",
        "1 0 8:1 / / rw - ext4 root rw\n2 1 0:40 / /shared rw - nfs4 server:/x rw\n3 1 0:41 / /share rw - nfs server:/y rw\n",
    )
    found = look(tmp_path, INIT_METHOD="file:///shared/my%20job?rank=0&world_size=2", DIST_URL="file:///shared/new")
    assert found.file_init == (("/shared/my job", 5, "nfs4"),)


names = st.one_of(
    st.sampled_from(PREFIXES).flatmap(lambda prefix: st.text(max_size=12).map(lambda rest: prefix + rest)),
    st.sampled_from(sorted(NAMES)),
    st.text(min_size=1, max_size=12),
)
# What os.environ can hold: any bytes but NUL, those that aren't UTF-8 as lone surrogates.
raw_text = st.binary(max_size=40).map(lambda raw: raw.replace(b"\0", b"").decode("utf-8", "surrogateescape"))


@given(st.dictionaries(st.one_of(names, raw_text), raw_text, max_size=12))
def test_no_environment_makes_the_probe_or_a_check_crash(environ: dict[str, str]) -> None:
    found = probe(Context("python", environ=environ, root=Path("/nonexistent")))
    again = msgspec.json.decode(msgspec.json.encode(found), type=Environment)
    assert again == found
    assert_no_crash(again)


@given(st.dictionaries(st.sampled_from(sorted(NAMES)), st.one_of(raw_text, st.integers(-9, 99).map(str)), max_size=30))
def test_no_launch_settings_make_a_check_crash(environ: dict[str, str]) -> None:
    assert_no_crash(probe(Context("python", environ=environ, root=Path("/nonexistent"))))


def assert_no_crash(environment: Environment) -> None:
    for result in diagnose(Snapshot(environment=environment), Plan(1, "test"), OURS):
        assert result.not_tested is None or result.not_tested.why is not SkipReason.CRASHED, result.not_tested
        for finding in result.findings:
            assert len(finding.summary) <= 160, finding.summary
            assert "\n" not in finding.summary


@given(
    st.sampled_from(PREFIXES),
    st.sampled_from(["TOKEN", "SECRET", "PASSWORD", "API_KEY", "ACCESS_KEY", "CREDENTIALS", "PASSPHRASE"]),
    st.text("abcdefghijklmnop0123456789", min_size=20, max_size=40).map("s3".__add__),
)
def test_no_secret_reaches_the_facts(prefix: str, word: str, secret: str) -> None:
    environ: dict[str, Any] = {
        prefix + word: secret,
        f"{prefix}URL": f"https://user:{secret}@host/path",
        f"{prefix}ARGS": f"--hub-token {secret} --password={secret}",
        f"{prefix}VENDOR": f"hf_{secret}",
    }
    found = probe(Context("python", environ=environ, root=Path("/nonexistent")))
    assert secret.encode() not in msgspec.json.encode(found)
