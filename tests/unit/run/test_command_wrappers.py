"""Which program a command is about, behind those that only start it."""

from __future__ import annotations

import pytest

from ddpdoctor.run.command_wrappers import wrappers_and_program
from ddpdoctor.run.messages import SupervisorMessages


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("torchrun train.py", "torchrun train.py"),
        ("env X=1 Y= torchrun --nproc-per-node 2 train.py", "torchrun --nproc-per-node 2 train.py"),
        ("/usr/bin/env -i -u HOME --chdir=/tmp PATH=/bin python train.py", "python train.py"),
        ("nohup nice -n 5 ionice -c2 -n 7 python train.py", "python train.py"),
        ("nice -10 python train.py", "python train.py"),
        ("time -vo times torchrun train.py", "torchrun train.py"),
        ("timeout -k 30 --signal INT 2h srun python train.py", "srun python train.py"),
        ("stdbuf -oL -e 0 setsid -w torchrun train.py", "torchrun train.py"),
        ("taskset -c 0-3 numactl --membind=0 -N 0 -- python train.py", "python train.py"),
        # Nothing that could be told for sure.
        ("env", "env"),
        ("env -S torchrun", "env -S torchrun"),
        ("nice -n", "nice -n"),
        ("timeout 5", "timeout 5"),
    ],
)
def test_the_program(command: str, program: str) -> None:
    assert list(wrappers_and_program(command.split())[1]) == program.split()


def test_who_has_ended_it() -> None:
    limited = SupervisorMessages(["nice", "timeout", "2h", "/opt/bin/torchrun", "train.py"])
    assert "torchrun was ended by timeout (exit code 124) after 2 h" in limited.diagnosing(124 << 8, 7200)
    assert "torchrun ended with exit code 1 after 5 s" in limited.diagnosing(1 << 8, 5)
