"""How the launcher that was used is given another port: in logs, in a rank's settings, by a command."""

from __future__ import annotations

import shlex

import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.checks.network.ports import port_in_use
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.network import Listener, Network
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.knowledge.launcher_options import launcher_of_command
from ddpdoctor.logs.diagnosis import judge_log
from tests.support.command import ROOT
from tests.support.logs_by_hand import read

TAKEN = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: 29501, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
)
LOGS = ROOT / "fixtures" / "logs"
SITE = "/opt/venv/lib/python3.11/site-packages"


def traceback(*files: str) -> str:
    frames = "".join(f'  File "{file}", line 7, in main\n    run(args)\n' for file in files)
    return f"Traceback (most recent call last):\n{frames}{TAKEN}"


def fixes(text: str) -> list[str]:
    (opinion,) = judge_log(read(text), catalogue()).opinions
    assert opinion.check.slug == "port-in-use"
    return [command for fix in opinion.finding.fixes for command in fix.commands]


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (traceback(f"{SITE}/torch/distributed/run.py"), "torchrun --master-port 29502 ..."),
        (
            traceback(f"{SITE}/accelerate/commands/launch.py", f"{SITE}/torch/distributed/run.py"),
            "accelerate launch --main_process_port 29502 ...",
        ),
        (traceback(f"{SITE}/lightning/pytorch/trainer/trainer.py", "train.py"), "MASTER_PORT=29502 python ..."),
        (traceback(f"{SITE}/torch/multiprocessing/spawn.py", "train.py"), "MASTER_PORT=29502 python ..."),
        (f"[2026-01-01 10:00:00,000] [INFO] [launch.py:165:main] nproc\n{traceback('train.py')}", "deepspeed --master_port 29502 ..."),
        (f"{traceback('train.py')}srun: error: n1: task 0: Exited with exit code 1\n", "MASTER_PORT=29502 srun ..."),
        (
            f"{traceback('train.py')}mpirun noticed that process rank 0 with PID 0 on node n1 exited on signal 6 (Aborted).\n",
            "mpirun -x MASTER_PORT=29502 ...",
        ),
        (
            "ConnectionError: Tried to launch distributed communication on port `29501`, but another process is utilizing it. "
            "Please specify a different port (such as using the `--main_process_port` flag ...\n",
            "accelerate launch --main_process_port 29502 ...",
        ),
    ],
    ids=["torchrun", "accelerate", "Lightning", "spawn", "deepspeed", "srun", "mpirun", "accelerate's own words"],
)  # fmt: skip
def test_a_log_s_launcher_is_given_another_port_its_own_way(text: str, command: str) -> None:
    assert fixes(text)[1] == command


def test_where_nothing_tells_the_launcher_each_is_named() -> None:
    (opinion,) = judge_log(read(TAKEN), catalogue()).opinions
    said = opinion.finding.fixes[1].text
    for option in (
        "torchrun takes it as --master-port",
        "accelerate launch as --main_process_port",
        "deepspeed as --master_port",
    ):
        assert option in said


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        ({"TORCHELASTIC_RUN_ID": "7", "RANK": "0", "WORLD_SIZE": "2"}, "torchrun --master-port"),
        (
            {"TORCHELASTIC_RUN_ID": "7", "RANK": "0", "WORLD_SIZE": "2", "ACCELERATE_MIXED_PRECISION": "no"},
            "accelerate launch --main_process_port",
        ),
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}, "srun ..."),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "mpirun -x MASTER_PORT"),
        ({}, "accelerate launch as --main_process_port"),
    ],
)
def test_a_host_s_settings_tell_the_launcher(settings: dict[str, str], command: str) -> None:
    named = {"MASTER_ADDR": "n1", "MASTER_PORT": "29713", **settings}
    environment = Environment(settings=tuple(Setting(name=name, value=value) for name, value in named.items()))
    network = Network(
        hostname="n1",
        fqdn="n1",
        own_name=Unknown("not asked"),
        wanted_ports=(29713,),
        taken_ports=(29713,),
        listeners=(Listener(address="", port=29713),),
    )
    (finding,) = port_in_use(network, environment, TargetPython(python="/usr/bin/python3", chosen_by="PATH"), Meeting())
    assert command in finding.fixes[-1].text
    assert ("torchrun" in finding.fixes[-1].text) is ("torchrun" in command or not settings)


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        ("torchrun --nproc-per-node 2 train.py", "torchrun"),
        ("python -m torch.distributed.run train.py", "torchrun"),
        ("/opt/venv/bin/accelerate launch train.py", "accelerate"),
        ("srun --ntasks 2 torchrun train.py", "torchrun"),
        ("srun --ntasks 2 python train.py", "srun"),
        ("mpirun -np 2 python train.py --launcher torchrun", "mpirun"),
        ("deepspeed --num_gpus 2 train.py", "deepspeed"),
        ("python train.py", ""),
    ],
)
def test_the_launcher_of_a_command(command: str, launcher: str) -> None:
    assert launcher_of_command(shlex.split(command)) == launcher


@pytest.mark.parametrize(
    ("module", "option"),
    [("accelerate/commands/launch.py", "--rdzv_conf"), ("torch/distributed/run.py", "--rdzv-conf")],
)
def test_the_rendezvous_is_configured_as_the_launcher_spells_it(module: str, option: str) -> None:
    log = (LOGS / "rdzv-connect-failed" / "sick-nobody-hosts.log").read_text()
    begins = "Traceback (most recent call last):\n"
    assert begins in log
    text = log.replace(begins, f'{begins}  File "{SITE}/{module}", line 7, in main\n    run(args)\n')
    (opinion,) = judge_log(read(text), catalogue()).opinions
    assert opinion.check.slug == "rdzv-connect-failed"
    assert f"{option} is_host=1" in opinion.finding.fixes[-1].text
