"""The commands that give a node another node's torch."""

from __future__ import annotations

import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.fleet import Node
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.packages import Package, Packages
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.network_check.analysis.install_same_torch import same_torch

WHL = "https://download.pytorch.org/whl"
MEETING = Meeting(master="n0", port=29500, nnodes=2, node_rank=1)
OWN = Node(rank=1, host="n1", address="10.0.0.12", torch="2.12.0+cpu")


def target_python(**more: object) -> TargetPython:
    return TargetPython(python="/env/bin/python", chosen_by="PATH", prefix="/env", pip_version="25.0", **more)  # type: ignore[arg-type]


def commands(torch: str, cuda: str | None = None, installer: str = "pip", **more: object) -> tuple[str, ...]:
    pattern = Node(rank=0, host="n0", address="10.0.0.11", torch=torch, cuda=cuda, python="3.11.9")
    there = Packages(installed=(Package(name="torch", version="2.12.0", installer=installer),))
    (fix,) = same_torch(pattern, OWN, MEETING, target_python(**more), there)
    return fix.commands


@pytest.mark.parametrize(
    ("torch", "cuda", "index"),
    [
        ("2.13.0+cpu", None, "cpu"),
        ("2.13.0+cu130", "13.0", "cu130"),
        ("2.13.0", "13.0", "cu130"),
        ("2.13.0+rocm7.1", None, "rocm7.1"),
        ("2.13.0", None, "cpu"),
    ],
)
def test_pip_takes_the_same_release_from_the_same_index(torch: str, cuda: str | None, index: str) -> None:
    (command,) = commands(torch, cuda)
    assert command == f"/env/bin/python -m pip install --force-reinstall torch==2.13.0 --index-url {WHL}/{index}"


def test_what_conda_installed_is_removed_by_conda() -> None:
    assert commands("2.13.0+cu130", "13.0", installer="conda", environment_kind="conda") == (
        "conda remove -y -p /env pytorch",
        f"/env/bin/python -m pip install torch==2.13.0 --index-url {WHL}/cu130",
    )
    # pip's own in a conda environment is pip's.
    assert len(commands("2.13.0+cu130", "13.0", environment_kind="conda")) == 1


def test_what_conda_forge_built_comes_from_there() -> None:
    assert commands("2.5.1.post303", "12.6", environment_kind="conda") == (
        "conda install -p /env -c conda-forge 'pytorch=2.5.1=*cuda*'",
    )
    first, second = commands("2.5.1.post3")
    assert first == "conda create -y -p ./ddp-env -c conda-forge python=3.11 'pytorch=2.5.1=*cpu*'"
    assert second.endswith(" --node-rank 1 --python ddp-env/bin/python")


@pytest.mark.parametrize("torch", ["2.14.0.dev20261120+cu130", "2.9.0a0+gitabc", "2.6.0+rocm6.4.git76481f7c", "main"])
def test_no_command_for_what_no_index_has(torch: str) -> None:
    assert not any("pip install" in command for command in commands(torch))


def test_an_environment_where_pip_is_kept_out_and_pip_where_there_is_none() -> None:
    made, installed, again = commands("2.13.0+cpu", externally_managed=True)
    assert made == "/env/bin/python -m venv ddp-env"
    assert installed == f"ddp-env/bin/python -m pip install torch==2.13.0 --index-url {WHL}/cpu"
    assert again.endswith(" --python ddp-env/bin/python")


def test_a_patient_that_is_not_known_gets_no_command() -> None:
    pattern = Node(rank=0, host="n0", address="10.0.0.11", torch="2.13.0+cpu")
    assert same_torch(pattern, OWN, MEETING, Unknown("not asked"), Unknown("not asked")) == ()
