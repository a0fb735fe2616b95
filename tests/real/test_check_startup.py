"""What `check --quick` loads: a check that brings a heavy module along makes everybody wait, and nobody would notice."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.support.command import command, plain_environ

pytestmark = pytest.mark.root

HEAVY = (
    "ahocorasick_rs", "asyncio", "cryptography", "elftools", "email", "hashlib", "http", "importlib.metadata", "multiprocessing",
    "numpy", "packaging.requirements", "pip", "prometheus_client", "psutil", "py_spy", "pygments", "pynvml", "secrets", "setuptools", "statistics", "torch", "unittest",
    "xml", "rich", "typer.rich_utils",
)  # fmt: skip
"""Modules, and with them those below, that nothing asks for on an idle host without a GPU."""
OF_OTHER_COMMANDS = (
    "checkpoints.fixing", "checkpoints.formats", "checkpoints.kinds", "checkpoints.pickles", "checkpoints.named_paths",
    "checkpoints.writing", "fixes", "hang.examining", "hang.flight_recorder.collect_dumps", "hang.ras", "hang.stack_sampling", "hang.watching",
    "logs.match", "logs.parse", "network_check.phases", "network_check.protocol.agent", "network_check.protocol.hub",
    "network_check.protocol.messages", "network_check.protocol.peer_handshake", "network_check.run",
    "report.live", "run", "smoke_training.progress", "smoke_training.local", "smoke_training.training_order",
)  # fmt: skip
"""The working parts of the other rooms; of their vocabulary some is loaded by the checks."""
MOST_OF_OUR_MODULES = 270
"""There are 255. Whoever needs more should know what they cost: a quarter of a millisecond each, or more."""
TELL_AT_THE_END = """
import os, sys
end = os._exit
os._exit = lambda code: end(print(*sys.modules, file=sys.stderr, flush=True) or code)
from ddpdoctor.cli.main import main
main()
"""
"""Python's own list of imports (-X importtime) loses those of threads."""


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """Names of the modules; on a host with nobody else's processes, since ranks of others make it look closely."""
    alone = ["unshare", "--pid", "--fork", "--mount-proc"]
    line = [*alone, sys.executable, "-c", TELL_AT_THE_END, *command("check", "--quick")[3:], "--python", sys.executable]
    ended = subprocess.run(line, env=plain_environ(), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode in (0, 1), ended.stderr[-2000:]
    return set(ended.stderr.splitlines()[-1].split())


def test_the_modules_of_other_commands_exist() -> None:
    """A room that was renamed would otherwise be looked for in vain, for ever."""
    assert [name for name in OF_OTHER_COMMANDS if find_spec(f"ddpdoctor.{name}") is None] == []


def test_nothing_heavy_is_loaded_that_nobody_needs(loaded: set[str]) -> None:
    assert {"ddpdoctor.probes.libraries", "ddpdoctor.report.terminal"} <= loaded
    heavy = (*HEAVY, *(f"ddpdoctor.{name}" for name in OF_OTHER_COMMANDS))
    assert [
        name for name in sorted(loaded) if name.startswith(tuple(f"{one}." for one in heavy)) or name in heavy
    ] == []
    assert [name for name in sorted(loaded) if name.startswith("ddpdoctor.") and ".render_" in name] == []


def test_the_number_of_modules_is_seen_to_grow(loaded: set[str]) -> None:
    assert len([name for name in loaded if name.startswith("ddpdoctor")]) <= MOST_OF_OUR_MODULES
