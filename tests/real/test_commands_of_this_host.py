"""Commands for this host, where names in its environment were made for a shell to obey."""

from __future__ import annotations

from tests.support.command import plain_environ
from tests.support.shell_words import SHELL, carried_out, is_bare
from tests.support.sick_hosts import check


def test_names_and_values_of_settings_are_words() -> None:
    odd = SHELL.replace("=", "")
    environ = {
        f"NCCL_IB_DISABEL{odd}": "1",
        f"NCCL_IB_{odd}": "1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        f"TORCHELASTIC_{odd}": "1",
        "NCCL_IB_DISABEL": SHELL,
        "NCCL_SOCKET_IFNAME": SHELL,
        "OMP_NUM_THREADS": SHELL,
        "MASTER_ADDR": SHELL,
        "MASTER_PORT": SHELL,
        "RANK": "0",
        "INIT_METHOD": f"file:///tmp/{SHELL}",
        "LD_LIBRARY_PATH": f"/nonexistent/{SHELL}",
        "CUDA_VISIBLE_DEVICES": SHELL,
        "TORCH_HOME": f"/nonexistent/{SHELL}",
    }
    raw = {f"NCCL_RAW{odd}".encode(): b"\xff\xfe", **{name.encode(): value.encode() for name, value in environ.items()}}
    report = check(
        "--quick", environ={key.encode(): value.encode() for key, value in plain_environ().items()} | raw
    ).report
    commands = [command for finding in report["findings"] for fix in finding["fixes"] for command in fix["commands"]]
    hostile = [command for command in commands if "pwn" in command]
    assert hostile
    assert not [command for command in hostile if is_bare(command)]
    assert not carried_out(hostile)
