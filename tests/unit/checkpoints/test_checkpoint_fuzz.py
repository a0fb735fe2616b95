"""Files that were cut, torn, forged or made to do harm: never a traceback, never a changed file unless it came out right,
and nothing in them ever runs."""

from __future__ import annotations

import contextlib
import io
import pickle
import pickletools
import random
import resource
import struct
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpdoctor.checkpoints.fixing import Action, EditOptions, fix, undo
from ddpdoctor.checkpoints.formats import opening
from ddpdoctor.checkpoints.inspection import inspect
from tests.support.checkpoint_files import repacked
from tests.support.checkpoints import assert_same, by_size, on, pickle_of, save, saved
from tests.support.command import ddpdoctor
from tests.unit.checkpoints.test_pickle_machine import tampered

MEMORY = 400 << 20
"""Bytes: more than this may no test here add to what the process needs at most."""


def model() -> dict[str, Any]:
    shared = torch.arange(12.0)
    weights = {f"module.layer.{number}": torch.arange(float(number)) for number in range(4)}
    return {"model": weights, "tied": [shared, shared[2:]], "epoch": 3, "device": "cuda:3", "lr": 0.1}


def _corpus() -> dict[str, Callable[[Path], Path]]:
    def script(path: Path) -> Path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)).save(path)
        return path

    def packed(path: Path, method: int, **options: bool) -> Path:
        repacked(save(model(), path, on("cuda:3")), method, **options)
        return path

    return {
        "zip": lambda path: save(model(), path, on("cuda:3")),
        "zip of several devices": lambda path: save(model(), path, by_size("cpu", "cuda:1", "mps")),
        "zip of protocol 4": lambda path: save(model(), path, on("cuda:3"), protocol=4),
        "stored": lambda path: packed(path, zipfile.ZIP_STORED),
        "deflated": lambda path: packed(path, zipfile.ZIP_DEFLATED),
        "zip64": lambda path: packed(path, zipfile.ZIP_STORED, streamed=True, large=True),
        "legacy": lambda path: save(model(), path, on("cuda:3"), legacy=True),
        "legacy of protocol 4": lambda path: save(model(), path, on("cuda:3"), legacy=True, protocol=4),
        "script": script,
    }


CORPUS = _corpus()


def torn(data: bytes, dice: random.Random) -> bytes:
    """The bytes, changed here and there."""
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 5))):
        place = _interesting(changed, dice)
        kind = dice.randrange(8)
        if kind == 0:
            changed[place] ^= 1 << dice.randrange(8)
        elif kind == 1:
            changed[place] = dice.randrange(256)
        elif kind == 2:
            changed[place : place + 4] = struct.pack("<I", dice.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, len(data))))
        elif kind == 3:
            changed[place : place + 2] = dice.choice((b"\0\0", b"\xff\xff", b"\x01\x00"))
        elif kind == 4:
            del changed[place : place + dice.choice((1, 2, 30, 1000))]
        elif kind == 5:
            changed[place:place] = dice.randbytes(dice.choice((1, 4, 100)))
        elif kind == 6:
            other = _interesting(changed, dice)
            changed[other : other + 64] = changed[place : place + 64]
        else:
            changed[place:place] = changed[place : place + dice.choice((46, 200))]
        if not changed:
            return b""
    return bytes(changed)


def _interesting(data: bytearray, dice: random.Random) -> int:
    """A place in it, more often than not near a zip header or where devices are named."""
    sign = dice.choice((b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"cuda", b"storage", None, None))
    at = data.find(sign, dice.randrange(len(data))) if sign else -1
    return min(len(data) - 1, at + dice.randrange(46)) if at >= 0 else dice.randrange(len(data))


def judged(path: Path) -> Action:
    """Handles the file in every way, and has torch judge if it is changed."""
    before = path.read_bytes()
    facts = inspect(path)
    assert path.read_bytes() == before
    foreseen = fix(path, EditOptions(strip_prefixes=("module.",)), dry_run=True)
    assert path.read_bytes() == before
    assert foreseen.action in (Action.WOULD_FIX, Action.CLEAN, Action.LEFT, Action.REFUSED)
    outcome = fix(path, EditOptions())
    if outcome.action is not Action.FIXED:
        assert path.read_bytes() == before
        assert outcome.action is not Action.REFUSED or outcome.error
        return outcome.action
    assert not facts.problem
    after = path.read_bytes()
    assert fix(path, EditOptions()).action is Action.CLEAN
    assert undo(path).action is Action.UNDONE
    assert path.read_bytes() == before
    expected = trusting(before)
    if expected is not None and _inflates(path):
        got = trusting(after)
        assert got is not None
        assert_same(got[0], expected[0])
    return outcome.action


def _inflates(path: Path) -> bool:
    """False for what torch fills with whatever was in memory: compressed records that are broken."""
    try:
        with zipfile.ZipFile(path) as archive:
            return all(not member.compress_type for member in archive.infolist()) or archive.testzip() is None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError):
        return not zipfile.is_zipfile(path)


def trusting(data: bytes) -> tuple[Any] | None:
    """What torch makes of it without running anything, or nothing if it refuses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return (torch.load(io.BytesIO(data), map_location="cpu", weights_only=True),)
        except Exception:  # torch refuses in many words
            return None


@pytest.fixture(autouse=True)
def little_memory() -> Any:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < MEMORY


@pytest.mark.parametrize("kind", CORPUS)
def test_torn_files(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    whole = CORPUS[kind](path).read_bytes()
    actions = set()
    for seed in range(120):
        path.write_bytes(torn(whole, random.Random(seed)))
        actions.add(judged(path))
        assert list(tmp_path.iterdir()) == [path]
    assert Action.REFUSED in actions or Action.LEFT in actions


@pytest.mark.parametrize("kind", ["zip", "zip of protocol 4", "deflated"])
def test_pickles_that_were_tampered_with(kind: str, tmp_path: Path) -> None:
    """The archive is whole, checksums and all; what is in it is not."""
    path = CORPUS[kind](tmp_path / "a.pt")
    whole = pickle_of(path)
    with zipfile.ZipFile(path) as archive:
        records = [(info, archive.read(info)) for info in archive.infolist()]
    actions = set()
    for seed in range(150):
        dice = random.Random(seed)
        with zipfile.ZipFile(path, "w") as archive:
            for info, data in records:
                method = info.compress_type
                archive.writestr(info.filename, tampered(whole, dice) if data == whole else data, method)
        actions.add(judged(path))
    assert Action.REFUSED in actions


@pytest.mark.parametrize("kind", CORPUS)
def test_cut_off_anywhere(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    whole = CORPUS[kind](path).read_bytes()
    step = len(whole) // 60 + 1
    for length in sorted({*range(0, len(whole), step), *range(24), *range(len(whole) - 24, len(whole))}):
        path.write_bytes(whole[:length])
        outcome = fix(path, EditOptions())
        assert outcome.action is Action.REFUSED, length
        assert outcome.error
        assert inspect(path).problem
        assert path.read_bytes() == whole[:length]


@pytest.mark.parametrize("kind", CORPUS)
def test_something_behind_the_end(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    whole = CORPUS[kind](path).read_bytes()
    for tail in (b"\0", b"garbage", whole, b"PK\5\6" + bytes(18)):
        path.write_bytes(whole + tail)
        judged(path)


def _text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def _harms(command: str) -> dict[str, bytes]:
    """Pickles that run a command when they are loaded, each in another way. `%` is where a checkpoint goes on."""
    run = b"cposix\nsystem\n" + _text(command) + b"\x85R"
    return {
        "first": b"]" + run + b"a%a.",
        "last": b"]%a" + run + b"a.",
        "thrown away": run + b"0%.",
        "thrown away with its mark": b"(" + run + b"1%.",
        "as a key": b"}" + run + b"K\x01s0%.",
        "in the memo": run + b"q\xf00%.",
        "by name on the stack": _text("posix") + _text("system") + b"\x93" + _text(command) + b"\x85R0%.",
        "by a dotted name": _text("os") + _text("path.os.system") + b"\x93" + _text(command) + b"\x85R0%.",
        "by a class": b"csubprocess\nPopen\n](" + _text("sh") + _text("-c") + _text(command) + b"e\x85R0%.",
        "by INST": b"(" + _text(command) + b"iposix\nsystem\n0%.",
        "by OBJ": b"(cposix\nsystem\n" + _text(command) + b"o0%.",
        "by exec": b"cbuiltins\nexec\n" + _text(f"import os; os.system({command!r})") + b"\x85R0%.",
        "by Python 2's name": b"c__builtin__\neval\n" + _text(f"__import__('os').system({command!r})") + b"\x85R0%.",
        "by getattr": b"cbuiltins\ngetattr\ncos\npath\n" + _text("os") + b"\x86R0%.",
        "as state": b"ccollections\nOrderedDict\n)R}" + _text("x") + run + b"sb0%.",
        "behind the end": b"%." + run + b".",
        "through a tensor's function": b"ctorch.storage\n_load_from_bytes\nC\x03abc\x85R0%.",
    }


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("harm", _harms(""))
def test_nothing_ever_runs(harm: str, legacy: bool, tmp_path: Path) -> None:
    canary = tmp_path / "ran"
    path = tmp_path / "a.pt"
    value = {"model": model()["model"]}
    before, after = _harms(f"touch {canary}")[harm].split(b"%")
    whole = saved(value, on("cuda:3"), legacy=legacy)
    old = _main_pickle(whole, legacy)
    new = b"\x80\x02" + before + old[2:-1] + after
    if legacy:
        path.write_bytes(whole.replace(old, new))
    else:
        with zipfile.ZipFile(io.BytesIO(whole)) as archive, zipfile.ZipFile(path, "w") as made:
            for name in archive.namelist():
                data = archive.read(name)
                made.writestr(name, new if data == old else data)
    judged(path)
    facts = inspect(path)
    assert facts.problem or any(global_name.dangerous for global_name in facts.globals), facts.globals
    ran = ddpdoctor("fix-checkpoint", path, "--dry-run") if harm in ("first", "behind the end") else None
    assert ran is None or (ran.returncode in (1, 2) and "Traceback" not in ran.stderr)
    assert not canary.exists()


def _main_pickle(whole: bytes, legacy: bool) -> bytes:
    if not legacy:
        with zipfile.ZipFile(io.BytesIO(whole)) as archive:
            return archive.read("archive/data.pkl")
    file = io.BytesIO(whole)
    for _ in range(3):
        pickle.load(file)
    start = file.tell()
    for _ in pickletools.genops(file):
        pass
    return whole[start : file.tell()]


HARMLESS = ("behind the end", "by getattr", "through a tensor's function", "by a dotted name")
"""Python doesn't read the first; the others fetch the means and go no further."""


@pytest.mark.parametrize("harm", [harm for harm in _harms("") if harm not in HARMLESS])
def test_these_pickles_do_run_where_they_are_loaded(harm: str, tmp_path: Path) -> None:
    canary = tmp_path / "ran"
    with contextlib.suppress(Exception):
        pickle.loads(b"\x80\x02" + _harms(f"touch {canary}")[harm].replace(b"%", b"N"))
    deadline = time.monotonic() + 10
    while not canary.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert canary.exists()


def test_what_a_file_says_can_not_take_over_the_terminal(tmp_path: Path) -> None:
    """Names from the file are shown; what would steer the terminal, or can't be written at all, is not."""
    clear = "\x1b[2J\x1b]0;owned\x07"
    value = {f"{clear}\udcff\n": "cuda:3", "x" * 5000: "cuda:1", "model": {f"module.{clear}": torch.ones(2)}}
    path = save(value, tmp_path / "a.pt", on(f"cuda:3{clear}"))
    for arguments in (["--dry-run"], ["--dry-run", "--json"], ["--strip-prefix", "module."]):
        run = ddpdoctor("fix-checkpoint", path, *arguments)
        assert run.returncode in (0, 1, 2)
        assert "Traceback" not in run.stderr
        assert "\x1b" not in run.stdout + run.stderr
        assert "\x07" not in run.stdout + run.stderr
    run = ddpdoctor("check", "--checkpoint", path, "--only", "ckpt-device-pin")
    assert "Traceback" not in run.stderr
    assert "\x1b" not in run.stdout + run.stderr


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".", id="nested lists"),
        pytest.param(b"\x80\x02" + b"N" + b"\x85" * 200_000 + b".", id="nested tuples"),
        pytest.param(b"\x80\x02" + b"}" + b"q\0" + (b"K\x01h\0s" * 50_000) + b".", id="a dict that holds itself"),
        pytest.param(b"\x80\x02" + b"cos\ngetcwd\n" + b")R" * 100_000 + b".", id="calls of calls"),
        pytest.param(
            b"\x80\x02}(" + b"".join(b"\x8b\x88\x13\0\0" + b"\x7f" * 5000 + b"N" for _ in range(50)) + b"u.", id="keys"
        ),
        pytest.param(b"\x80\x02" + b"(" * 300_000 + b"1" * 299_999 + b"N.", id="marks"),
        pytest.param(b"\x80\x04" + (b"\x95" + bytes(8)) * 100_000 + b"N.", id="frames"),
    ],
)
def test_pickles_that_no_pickler_writes(data: bytes, tmp_path: Path) -> None:
    path = save(model(), tmp_path / "a.pt", on("cuda:3"))
    with zipfile.ZipFile(path) as archive:
        records = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, record in records:
            archive.writestr(name, data if name.endswith("/data.pkl") else record)
    before = path.read_bytes()
    inspect(path)
    assert fix(path, EditOptions()).action in (Action.CLEAN, Action.REFUSED)
    assert path.read_bytes() == before


@pytest.mark.parametrize("error", [MemoryError(), RecursionError(), OSError(5, "Input/output error")])
def test_what_the_machine_lacks_is_a_fact_too(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(model(), tmp_path / "a.pt", on("cuda:3"))
    before = path.read_bytes()

    def fails(data: bytes, start: int = 0) -> Any:
        raise error

    monkeypatch.setattr(opening, "scan", fails)
    assert inspect(path).problem
    assert not inspect(path).damaged
    assert fix(path, EditOptions()).action is Action.REFUSED
    assert path.read_bytes() == before
