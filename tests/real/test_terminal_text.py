"""Nothing that a terminal obeys or doesn't show gets through to it, whoever wrote it and whichever command shows it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from ddpdoctor.base.text import UNSEEN
from ddpdoctor.engine.snapshots import decode_snapshot
from ddpdoctor.facts.environment import Environment, Setting
from tests.support.command import command, plain_environ
from tests.support.fixture_hosts import host_case

HOSTILE = "evil\x1b]0;title\x07\x9b2J\x85\u202e\u2066\u200e\u061c\u2028\u2029\u200b\U000e0041\x7f"
NAME = "evil\x1b]0;title\x07\x9b2J\x85\u202e\u2028\x7f\n.pt"
"""Of a file."""
_OURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\]8;[^\x07\x1b]*\x1b\\|\r")
"""Colours, the cursor's moves, links, and the line ends of a terminal."""


def shown(
    *arguments: str | Path, environ: Mapping[str, str] | None = None, cwd: Path | None = None, seconds: float = 90
) -> str:
    """What ddpdoctor writes to its terminal, without what it writes itself to colour it."""
    ours, theirs = pty.openpty()
    settings = plain_environ() | {"TERM": "xterm-256color", "COLUMNS": "400"} | dict(environ or {})
    process = subprocess.Popen(command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=settings, cwd=cwd)
    os.close(theirs)
    pieces = []
    ends = time.monotonic() + seconds
    try:
        while time.monotonic() < ends and (piece := os.read(ours, 65536)):
            pieces.append(piece)
    except OSError:
        pass  # The terminal's last user has gone.
    finally:
        os.close(ours)
        process.kill()
        process.wait()
    return _OURS.sub("", b"".join(pieces).decode("utf-8", "surrogateescape"))


def assert_clean(text: str, *, told: bool = True) -> None:
    found = re.search(rf".{{0,80}}[{UNSEEN}]", text)
    assert not found, ascii(found[0])
    assert "evil" in text or not told, text


def hostile_snapshot(path: Path) -> Path:
    """Sick, with hostile text wherever free text may stand."""
    sick = host_case("setting-misspelt/sick-transposed").snapshot()
    environment = sick.environment
    assert isinstance(environment, Environment)
    changed = tuple(
        Setting(setting.name, f"{setting.value}{HOSTILE}", setting.origin) for setting in environment.settings
    )
    sick = msgspec.structs.replace(sick, environment=msgspec.structs.replace(environment, settings=changed))
    # As somebody writes it who doesn't use ddpdoctor for it.
    path.write_text(json.dumps(msgspec.to_builtins(sick), ensure_ascii=False))
    return path


@pytest.mark.parametrize("more", [(), ("-v",), ("-q",), ("--json", "-v"), ("--markdown",)], ids=" ".join)
def test_check(more: Sequence[str], tmp_path: Path) -> None:
    path = hostile_snapshot(tmp_path / "host.json")
    assert_clean(shown("check", "--snapshot", path, *more), told="-q" not in more)


def test_check_of_this_host() -> None:
    environ = {"NCCL_IB_DISABEL": HOSTILE, "MASTER_ADDR": HOSTILE, "TORCH_LOGS": HOSTILE, f"NCCL_{HOSTILE}": "1"}
    assert_clean(shown("check", "--quick", "--select", "settings,launch,network", "-v", environ=environ))


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "--select", HOSTILE),
        ("check", "--python", f"/nonexistent/{HOSTILE}"),
        ("check", "--snapshot", f"/nonexistent/{HOSTILE}"),
        ("check", "--checkpoint", f"/nonexistent/{HOSTILE}", "--select", "checkpoint"),
        ("snapshot", "--quick", "-o", f"/nonexistent/{HOSTILE}"),
        ("explain", HOSTILE),
        ("explain", "apex", "--snapshot", f"/nonexistent/{HOSTILE}"),
        ("diagnose-log", f"/nonexistent/{HOSTILE}"),
        ("fix-checkpoint", f"/nonexistent/{HOSTILE}"),
        ("fix-checkpoint", "x", "--to", HOSTILE),
        ("jobs", HOSTILE),
        ("jobs", "--hang", HOSTILE),
        ("zombies", HOSTILE),
        ("netcheck", "--master-addr", HOSTILE, "--nnodes", "2", "--node-rank", "1", "--wait", "1"),
        ("netcheck", "--backend", HOSTILE),
        ("smoke", "--backend", HOSTILE),
        ("run", "--keep", f"/nonexistent/{HOSTILE}", "--", "true"),
        ("run", "--", f"/nonexistent/{HOSTILE}"),
        (HOSTILE,),
        ("check", f"--{HOSTILE}"),
    ],
    ids=lambda arguments: ascii(" ".join(arguments))[:40],
)
def test_what_was_typed(arguments: Sequence[str], tmp_path: Path) -> None:
    assert_clean(shown(*arguments, cwd=tmp_path), told=False)


def test_snapshot_to_a_terminal_and_a_file(tmp_path: Path) -> None:
    environ = {"NCCL_DEBUG_FILE": HOSTILE}
    text = shown("snapshot", "--quick", environ=environ)
    assert_clean(text)
    read = decode_snapshot(text[text.index("{") :].encode(), "terminal").environment
    assert isinstance(read, Environment)
    assert read.get("NCCL_DEBUG_FILE") == HOSTILE
    shown("snapshot", "--quick", "-o", tmp_path / "host.json", environ=environ)
    assert_clean((tmp_path / "host.json").read_text())


def test_explain() -> None:
    """Its own pages are whole: links and colours get through."""
    text = shown("explain", "shm-too-small")
    assert_clean(text, told=False)
    assert "\\x1b" not in text


@pytest.mark.parametrize("more", [(), ("-v",), ("-q",), ("--json", "-v")], ids=" ".join)
def test_diagnose_log(more: Sequence[str], tmp_path: Path) -> None:
    log = tmp_path / NAME
    log.write_text(
        f"[rank0]: Traceback (most recent call last):\n"
        f'[rank0]:   File "/home/{HOSTILE}/train.py", line 3, in {HOSTILE}\n'
        f"[rank0]:     {HOSTILE}()\n"
        f"[rank0]: ValueError: {HOSTILE}\n"
        f"[rank1]: RuntimeError: CUDA error: {HOSTILE}\n"
        f"{HOSTILE}\n"
    )
    assert_clean(shown("diagnose-log", log, *more))


def test_fix_checkpoint(tmp_path: Path) -> None:
    for content in (HOSTILE.encode(), b"PK\3\4" + HOSTILE.encode(), f"<html><title>{HOSTILE}</title>".encode()):
        (tmp_path / NAME).write_bytes(content)
        assert_clean(shown("fix-checkpoint", NAME, cwd=tmp_path))
        assert_clean(shown("check", "--select", "checkpoint", "--checkpoint", NAME, cwd=tmp_path))


@pytest.mark.parametrize(
    "arguments", [("jobs",), ("jobs", "-v"), ("zombies",), ("check", "--select", "processes", "-v")]
)
def test_others_processes(arguments: Sequence[str], tmp_path: Path) -> None:
    program = tmp_path / f"train{HOSTILE}.py"
    program.write_text("import time\ntime.sleep(300)\n")
    launched = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": HOSTILE, "MASTER_PORT": "29500"}
    with subprocess.Popen([sys.executable, program, HOSTILE], env=plain_environ() | launched) as process:
        try:
            time.sleep(0.5)
            assert_clean(shown(*arguments), told=arguments[0] == "jobs")
        finally:
            process.kill()


def test_netcheck_of_a_strangers_answer() -> None:
    import socket
    import threading

    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.sendall(f"220 {HOSTILE}\r\n".encode())
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        port = str(server.getsockname()[1])
        text = shown(
            "netcheck",
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            port,
            "--nnodes",
            "2",
            "--node-rank",
            "1",
            "--wait",
            "2",
        )
    assert_clean(text, told=False)


def test_run(tmp_path: Path) -> None:
    """What it says itself; the command's own output goes through as it is."""
    program = tmp_path / "x.py"
    program.write_text(f"import sys\nraise ValueError({HOSTILE!r})\n".replace("evil", "evil"))
    text = shown("run", "--", sys.executable, program)
    ours = text[text.rindex("ValueError") :].partition("\n")[2] if "ddpdoctor" in text else ""
    assert_clean(ours, told=False)
