"""Secrets that lie wherever a snapshot could read them reach neither a snapshot nor a report."""

from __future__ import annotations

import string
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddpdoctor.engine.snapshots import encode_snapshot
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.runner import take_snapshot
from tests.support.command import ROOT, plain_environ
from tests.support.pythons import fake_torch, stand_in
from tests.support.sick_hosts import run

MARK = "zQ7canary"
"""Part of every secret, so that a piece of one is found as well."""

NAMES = (
    "HF_TOKEN", "WANDB_API_KEY", "MYSQL_PWD", "NCCL_ACCESS_TOKEN", "TORCH_HUB_TOKEN", "PYTORCH_API_KEY", "CUDA_SECRET",
    "TORCHELASTIC_PASSWORD", "OMPI_COMM_WORLD_PASSWD", "PMI_SECRET", "FI_CREDENTIALS", "UCX_AUTH", "PET_PASSWORD",
    "DDPDOCTOR_KEY", "SLURM_JWT", "GLOO_PRIVATE_KEY",
)  # fmt: skip
"""Variables whose whole value is a secret; most begin as settings do that a snapshot keeps."""

SETTINGS = (
    "MASTER_ADDR", "INIT_METHOD", "DIST_URL", "DIST_INIT_METHOD", "PET_RDZV_ENDPOINT", "PET_RDZV_CONF", "NCCL_DEBUG_FILE",
    "NCCL_COMM_ID", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG", "TORCH_LOGS", "TORCH_DISTRIBUTED_DEBUG", "TORCH_HOME", "ROLE_NAME",
    "NCCL_MISSPELT_SETTING", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "TMPDIR", "RANK", "MASTER_PORT", "SLURM_NODELIST", "CC",
)  # fmt: skip
"""Settings that a snapshot keeps."""

SHAPES: tuple[Callable[[str], str], ...] = (
    lambda secret: f"https://ada:{secret}@node01:29500/log",
    lambda secret: f"tcp://{secret}@node01:29500",
    lambda secret: f"ada:{secret}@node01.example.org",
    lambda secret: f"file:///shared/rdzv?token={secret}",
    lambda secret: f"env://?rank=0&access_token={secret}&world_size=2",
    lambda secret: f"is_host=1,password={secret}",
    lambda secret: f"train.py --api-key {secret} --lr 1",
    lambda secret: f'{{"token": "{secret}", "n": 1}}',
    lambda secret: f"Authorization: Bearer {secret}",
    lambda secret: f"AWS_SECRET_ACCESS_KEY={secret}",
)
"""What says in a value that a secret follows."""

secrets = st.text(string.ascii_letters + string.digits, min_size=8, max_size=30).map(lambda text: MARK + text)


@given(secret=secrets, data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_secret_of_the_settings_reaches_a_snapshot(tmp_path: Path, secret: str, data: st.DataObject) -> None:
    shapes = st.sampled_from(SHAPES)
    environ = {name: data.draw(shapes, label=name)(secret) for name in SETTINGS} | dict.fromkeys(NAMES, secret)
    configuration = tmp_path / "nccl.conf"
    lines = [
        f"NCCL_ACCESS_TOKEN={secret}",
        f"export WANDB_API_KEY={secret}",
        f"MY_PASSWORD: {secret}",
        f"--token {secret}",
    ]
    lines += [f"{name}={data.draw(shapes)(secret)}" for name in ("NCCL_DEBUG_FILE", " NCCL_IB_HCA", "TORCH_HOME")]
    configuration.write_text("\n".join(lines) + "\n")
    context = Context(sys.executable, environ=environ | {"NCCL_CONF_FILE": str(configuration)})
    taken = take_snapshot(context, ("environment", "network", "disks", "toolchain"))
    written = encode_snapshot(taken).decode()
    assert MARK not in written, written[max(0, written.index(MARK) - 200) : written.index(MARK) + 60]
    assert "NCCL_MISSPELT_SETTING" in written
    assert str(configuration) in written


@contextmanager
def listening(*arguments: str) -> Iterator[int]:
    """A process with these words on its command line that listens on a free port; gives the port."""
    code = (
        "import socket, sys; one = socket.create_server(('127.0.0.1', 0));"
        " print(one.getsockname()[1], flush=True); sys.stdin.read()"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    try:
        yield int(started.stdout.readline())
    finally:
        started.kill()
        started.wait()
        started.stdout.close()
        if started.stdin:
            started.stdin.close()


@pytest.fixture
def surrounded(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment full of secrets, whose port a process with a password on its command line holds."""
    secret = f"{MARK}8fK2nQ0x"
    broken = f"raise RuntimeError('can not fetch https://ada:{secret}@example.org/libtorch.so with token={secret}')"
    environ = plain_environ() | {name: SHAPES[at % len(SHAPES)](secret) for at, name in enumerate(SETTINGS)}
    environ |= dict.fromkeys(NAMES, secret)
    environ |= {
        "PYTHONPATH": f"{fake_torch(tmp_path, broken)}:{ROOT}",
        "TMPDIR": str(tmp_path),
        "MASTER_ADDR": "127.0.0.1",
    }
    with listening("--password", secret, f"--url=https://ada:{secret}@example.org", f"HF_TOKEN={secret}") as port:
        yield environ | {"MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}


@pytest.mark.parametrize(
    "command",
    [("snapshot",), ("check", "--json", "-v"), ("check", "--markdown", "-v"), ("check", "-v"), ("check", "-q")],
    ids=" ".join,
)
def test_no_secret_reaches_what_is_printed(surrounded: dict[str, str], command: tuple[str, ...]) -> None:
    ended = run(*command, "--python", sys.executable, environ=surrounded | {"COLUMNS": "1000"})
    shown = ended.stdout + ended.stderr
    assert ended.returncode == (0 if command == ("snapshot",) else 1), shown
    assert MARK not in shown, shown[max(0, shown.index(MARK) - 200) : shown.index(MARK) + 60]
    if command != ("snapshot",):
        # The findings stand, without the secrets.
        assert "torch-import-broken" in shown
        assert "port-in-use" in shown
    assert "[redacted]" in shown


def test_what_a_wrong_interpreter_prints_is_no_way_out(tmp_path: Path) -> None:
    python = stand_in(tmp_path, f"echo 'wrapper: using --api-key {MARK}12345678 for the licence'; exit 1")
    for how in (("snapshot",), ("check", "--json", "-v"), ("check",)):
        ended = run(*how, "--quick", "--python", python)
        assert MARK not in ended.stdout + ended.stderr
        assert "wrapper" in ended.stdout
