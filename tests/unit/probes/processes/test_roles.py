"""What a process is, by its command, settings, parents and threads."""

from __future__ import annotations

import os
from typing import Any

import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.processes import ProcessRole, RankPlace
from ddpdoctor.probes.proc import FORKED, Stat
from ddpdoctor.probes.processes.command_lines import is_launcher, program_and_arguments
from ddpdoctor.probes.processes.process_tree import ObservedProcess, ObservedTree
from ddpdoctor.probes.processes.roles import BY_CHILDREN, BY_ORDER, roles

TRAIN = "python3 train.py --lr 0.1"
GLOO = ("gloo_tcp_loop", "pt_gloo_runloop")
SPAWNED = (
    "python3",
    "-c",
    "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)",
    "x",
)
SERVER = ("python3", "-c", "from multiprocessing.forkserver import main; main(3, 5, [], **{})")
TRACKER = ("python3", "-c", "from multiprocessing.resource_tracker import main;main(3)")
DENIED = Unknown("/proc/1/environ: Permission denied")


def one(
    pid: int,
    parent: int = 1,
    command: str | tuple[str, ...] = TRAIN,
    *,
    marks: tuple[str, ...] = (),
    meets: bool = False,
    forked: bool = False,
    name: str = "python3",
    state: str = "S",
    hidden: bool = False,
    python: bool = True,
    **settings: Any,
) -> ObservedProcess:
    """Started in the order of the pids."""
    words = tuple(command.split()) if isinstance(command, str) else command
    environ = b"".join(f"{key}={value}\0".encode() for key, value in {"PATH": "/bin", **settings}.items())
    stat = Stat(pid, name, state, parent, 10, 10, 0, FORKED if forked else 0, 5, 1, pid, 100)
    made = ObservedProcess(stat, words, "/usr/bin/python3.11" if python else "/bin/sh", DENIED if hidden else environ)
    made.note_threads(marks)
    made.awaits_others = meets
    return made


def judged(*some: ObservedProcess, asked: int = 0) -> dict[int, tuple[ProcessRole, RankPlace | None]]:
    return roles(ObservedTree({seen.stat.pid: seen for seen in some}), asked)


def ranks(*some: ObservedProcess) -> dict[int, int | None]:
    """Pid to rank, of the ranks."""
    return {
        pid: place and place.rank for pid, (role, place) in sorted(judged(*some).items()) if role is ProcessRole.RANK
    }


def place(rank: int, size: int = 2, **more: Any) -> dict[str, Any]:
    return {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, **more}


TORCHRUN = one(10, command="/venv/bin/python3 /venv/bin/torchrun --nproc-per-node 2 train.py")


@pytest.mark.parametrize(
    "command",
    [
        "python -m torch.distributed.run --nproc-per-node 2 train.py",
        "python3.11 -u -X dev -W ignore -m torch.distributed.launch train.py",
        "/opt/conda/bin/python -um torch.distributed.run train.py",
        "/venv/bin/python /venv/bin/torchrun train.py",
        "torchrun train.py",
        "python /venv/bin/accelerate launch train.py",
        "python -m accelerate.commands.launch train.py",
        "accelerate-launch train.py",
        "python /venv/bin/deepspeed train.py",
        "python -u -m deepspeed.launcher.launch --world_info=abc train.py",
        "python /site-packages/torch/distributed/run.py train.py",
        "srun python train.py",
        "/usr/bin/mpirun -np 2 python train.py",
        "orted --hnp",
        "hydra_pmi_proxy --control-port x",
    ],
)
def test_launchers(command: str) -> None:
    assert is_launcher(tuple(command.split()))


def test_slurm_calls_itself_by_one_word() -> None:
    assert is_launcher(("slurmstepd: [4711.0]",))


@pytest.mark.parametrize(
    "command",
    [
        "",
        "python",
        "python -i",
        "python train.py -m torch.distributed.run",
        "python train.py torchrun",
        "python /venv/bin/accelerate config",
        "python -c import torch.distributed.run",
        "vim torchrun.txt",
        "bash -c torchrun",
        "python run.py",
        "grep srun log",
        "python launch.py",
    ],
)
def test_no_launchers(command: str) -> None:
    assert not is_launcher(tuple(command.split()))


def test_program_and_arguments() -> None:
    assert program_and_arguments(("python", "-W", "ignore", "-OO", "train.py", "-m", "x")) == ("train.py", ("-m", "x"))
    assert program_and_arguments(("python", "-mtorch.distributed.run", "a")) == ("-m torch.distributed.run", ("a",))
    assert program_and_arguments(("python", "-X")) == ("", ())
    assert program_and_arguments(("python", "-m")) == ("-m ", ())


def test_torchrun_with_workers_and_a_tool() -> None:
    found = judged(
        TORCHRUN,
        one(20, 10, **place(0), TORCHELASTIC_RUN_ID="none"),
        one(21, 10, **place(1), TORCHELASTIC_RUN_ID="none"),
        one(30, 20, forked=True, **place(0), TORCHELASTIC_RUN_ID="none"),
        one(31, 20, TRACKER, **place(0), TORCHELASTIC_RUN_ID="none"),
        one(32, 20, SPAWNED, **place(0), TORCHELASTIC_RUN_ID="none"),
        one(33, 20, SERVER, **place(0), TORCHELASTIC_RUN_ID="none"),
        one(34, 33, SERVER, forked=True, **place(0), TORCHELASTIC_RUN_ID="none"),
        one(35, 20, "python3 export.py", **place(0), TORCHELASTIC_RUN_ID="none"),
    )
    assert {pid: role for pid, (role, _) in found.items()} == {
        10: ProcessRole.LAUNCHER, 20: ProcessRole.RANK, 21: ProcessRole.RANK, 30: ProcessRole.WORKER, 31: ProcessRole.HELPER, 32: ProcessRole.WORKER,
        33: ProcessRole.HELPER, 34: ProcessRole.WORKER,
    }  # fmt: skip
    assert found[21][1] == RankPlace(rank=1, world_size=2, local_rank=1, local_world_size=2, source="RANK")


def test_stale_slurm_rank_under_mpirun() -> None:
    slurm = {"SLURM_PROCID": 0, "SLURM_STEP_ID": 0, "SLURM_NTASKS": 1, "SLURM_LOCALID": 0}
    mpi = {"OMPI_COMM_WORLD_SIZE": 2, "OMPI_COMM_WORLD_LOCAL_SIZE": 2}
    found = judged(
        one(10, command="mpirun -np 2 python train.py", python=False, **slurm),
        one(20, 10, OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_LOCAL_RANK=0, **mpi, **slurm),
        one(21, 10, OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_LOCAL_RANK=1, **mpi, **slurm),
    )
    assert [found[pid][1] and found[pid][1].rank for pid in (20, 21)] == [0, 1]  # type: ignore[union-attr]
    assert found[21][1]
    assert found[21][1].source == "OMPI_COMM_WORLD_RANK"


def test_slurm_step_by_its_own_settings_and_by_rank() -> None:
    """A script that starts several ranks in one task gives them a RANK of their own, and torch reads that."""
    step = {"SLURM_STEP_ID": 0, "SLURM_NTASKS": 2, "SLURM_LOCALID": 0}
    assert ranks(
        one(10, command=("slurmstepd: [1.0]",), python=False),
        one(11, 10, "bash train.sh", python=False, SLURM_PROCID=1, **step),
        one(12, 11, SLURM_PROCID=1, **step),
    ) == {12: 1}
    assert ranks(*(one(20 + n, 1, SLURM_PROCID=0, RANK=n, WORLD_SIZE=2, **step) for n in range(2))) == {20: 0, 21: 1}


def test_agent_in_a_pod_is_no_rank() -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "RANK": 1, "WORLD_SIZE": 2}
    agent = one(10, 1, "python3 -m torch.distributed.run --nproc-per-node 2 train.py", **pod)
    assert ranks(agent, one(20, 10, **{**pod, **place(2, 4)}, TORCHELASTIC_RUN_ID="x")) == {20: 2}


def test_ranks_that_a_pod_spawns() -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "RANK": 1, "WORLD_SIZE": 2}
    found = judged(
        one(10, 1, **pod),
        one(11, 10, TRACKER, **pod),
        *(one(20 + n, 10, SPAWNED, marks=GLOO, **pod) for n in range(2)),
    )
    assert found[10] == (ProcessRole.LAUNCHER, None)
    guess = RankPlace(rank=3, world_size=4, local_rank=1, local_world_size=2, source=BY_ORDER)
    assert found[21] == (ProcessRole.RANK, guess)


def test_forked_ranks_one_late_and_one_dead() -> None:
    found = judged(
        one(10),
        one(20, 10, forked=True, marks=GLOO),
        one(21, 10, forked=True),
        one(22, 10, (), state="Z", hidden=True, python=False),
        one(23, 10, "sh -c true", python=False, name="sh"),
    )
    assert [found[pid][1] and found[pid][1].rank for pid in (20, 21, 22)] == [0, 1, 2]  # type: ignore[union-attr]
    assert 23 not in found


def test_forked_ranks_of_a_torch_that_names_no_threads() -> None:
    """They listen for each other, and what they fork themselves has only sockets that it inherited."""
    some = (one(10), *(one(20 + n, 10, SPAWNED, meets=True) for n in range(2)), one(30, 20, SPAWNED, forked=True))
    assert ranks(*some) == {20: 0, 21: 1}
    assert judged(*some)[30][0] is ProcessRole.WORKER
    assert ranks(one(10), one(20, 10, SPAWNED, meets=True)) == {}


def test_forked_ranks_whose_parent_is_gone() -> None:
    orphans = [one(20 + n, 1, forked=True, marks=GLOO) for n in range(2)]
    assert ranks(*orphans) == {20: 0, 21: 1}
    assert ranks(orphans[0]) == {20: None}


def test_worker_left_behind() -> None:
    """Also one of an older torch, which doesn't name it: what was forked and has no process group is no rank."""
    assert judged(one(30, 1, name="pt_data_worker", forked=True)) == {30: (ProcessRole.WORKER, None)}
    assert judged(one(30, 1, forked=True, **place(0))) == {30: (ProcessRole.WORKER, None)}
    assert ranks(one(30, 1, **place(0))) == {30: 0}


def test_wrapping_python_is_no_rank() -> None:
    chain = (one(10, 1, "python3 wrap.py", **place(1)), one(11, 10, "sh -c x", python=False, **place(1)))
    assert ranks(*chain, one(12, 11, **place(1))) == {10: 1}
    assert ranks(*chain, one(12, 11, marks=GLOO, **place(1))) == {12: 1}


def test_job_within_a_job() -> None:
    """Rank 0 of one starts a torchrun of its own: its rank 0 is one, too."""
    inner = "python3 -m torch.distributed.run eval.py"
    assert ranks(
        TORCHRUN,
        one(20, 10, marks=GLOO, **place(0, 1)),
        one(30, 20, inner, **place(0, 1)),
        one(40, 30, marks=GLOO, **place(0, 1)),
    ) == {20: 0, 40: 0}


def test_lightning() -> None:
    """It gives the ranks that it starts a LOCAL_RANK; the first has none, since the user started it."""
    found = judged(one(10), *(one(20 + n, 10, LOCAL_RANK=n, NODE_RANK=0, WORLD_SIZE=3) for n in (1, 2)))
    assert {pid: place_ and place_.rank for pid, (_, place_) in found.items()} == {10: 0, 21: 1, 22: 2}
    assert found[10][1]
    assert found[10][1].source == BY_CHILDREN


def test_lightning_on_a_further_node() -> None:
    """Its ranks count on from those of the nodes before, which have as many."""
    told = {"NODE_RANK": 1, "WORLD_SIZE": 4, "MASTER_ADDR": "10.0.0.11", "MASTER_PORT": 29500}
    found = judged(one(10), one(21, 10, LOCAL_RANK=1, **told))
    assert {pid: place_ and place_.rank for pid, (_, place_) in found.items()} == {10: 2, 21: 3}
    place_ = found[21][1]
    assert place_
    assert (place_.world_size, place_.local_rank, place_.local_world_size, place_.node_rank) == (4, 1, 2, 1)
    # Without where it meets, or of a child alone, nobody can tell.
    assert judged(one(10), one(21, 10, LOCAL_RANK=1, NODE_RANK=1, WORLD_SIZE=4)) == {}
    assert judged(one(10), one(22, 10, LOCAL_RANK=2, **told)) == {}


def test_dead_rank_of_a_launcher() -> None:
    alive = [one(20 + n, 10, **place(n, 3), TORCHELASTIC_RUN_ID="x") for n in (0, 2)]
    dead = one(21, 10, (), state="Z", hidden=True, python=False)
    assert ranks(TORCHRUN, *alive, dead) == {20: 0, 21: 1, 22: 2}
    # With two candidates for one place nobody knows.
    assert ranks(TORCHRUN, *alive, dead, one(23, 10, (), state="Z", hidden=True)) == {20: 0, 21: None, 22: 2, 23: None}


def test_other_users_ranks() -> None:
    assert ranks(TORCHRUN, *(one(20 + n, 10, marks=GLOO, hidden=True) for n in range(2))) == {20: 0, 21: 1}


def test_rank_that_only_its_script_knows() -> None:
    assert ranks(one(10, command="python3 train.py --rank 1 --world-size=4", marks=GLOO)) == {10: 1}
    assert ranks(one(10, marks=GLOO)) == {10: None}
    assert ranks(one(10, command="python3 train.py --rank 1")) == {}


def test_tools_with_a_ranks_settings() -> None:
    for command in ("python3 -m wandb service", "python3 /venv/bin/ddpdoctor netcheck", "python3 -m ddpdoctor smoke"):
        assert ranks(one(10, 1, command, **place(0))) == {}
    wrapped = (one(10, 1, "python3 /opt/conda/bin/conda run python3 train.py", **place(0)), one(11, 10, **place(0)))
    assert ranks(*wrapped) == {11: 0}


def test_shell_is_no_rank() -> None:
    assert ranks(one(10, 1, "bash", python=False, name="bash", **place(0))) == {}


def test_endless_parents() -> None:
    """Processes that are read one after the other may seem to be each other's parents."""
    assert ranks(one(10, 11, **place(0)), one(11, 10, **place(0))) in ({10: 0}, {11: 0}, {10: 0, 11: 0})


SCRIPT = one(10, command="python3 start_ranks.py")


def dead(pid: int, parent: int = 10, name: str = "python3") -> ObservedProcess:
    return one(pid, parent, "", name=name, state="Z", hidden=True, python=False)


def test_a_zombie_between_the_ranks_of_a_script_is_the_one_that_is_missing() -> None:
    found = judged(SCRIPT, one(11, 10, **place(0, 3)), dead(12), one(13, 10, **place(2, 3)))
    assert found[12] == (
        ProcessRole.RANK,
        RankPlace(rank=1, world_size=3, local_rank=1, local_world_size=3, source=BY_ORDER),
    )


@pytest.mark.parametrize(
    "others",
    [
        pytest.param((dead(11), one(12, 10, **place(0)), one(13, 10, **place(1))), id="older than rank 0"),
        pytest.param((one(11, 10, **place(0)), one(12, 10, **place(1)), dead(13)), id="one more than there are ranks"),
        pytest.param((one(11, 10, **place(0)), dead(12, name="git")), id="another name"),
        pytest.param((one(11, 1, **place(0)), dead(12, 1)), id="whoever adopts orphans"),
        pytest.param((one(11, 10, **place(0, 4)), one(12, 10, **place(0, 4)), dead(13)), id="ranks of two jobs"),
    ],
)
def test_a_zombie_that_may_be_anything_is_no_rank(others: tuple[ObservedProcess, ...]) -> None:
    found = judged(one(1, 0, "/sbin/init", python=False), SCRIPT, *others)
    assert all(
        found.get(seen.stat.pid, (ProcessRole.OTHER, None))[0] is ProcessRole.OTHER
        for seen in others
        if seen.stat.state == "Z"
    )


def test_a_training_on_one_gpu_is_a_rank_where_somebody_asks_for_it() -> None:
    shell = one(10, 1, "bash run.sh", python=False, name="bash")
    script = one(11, 10, "python3 experiments.py")
    train = one(12, 11)
    worker, tracker = one(13, 12, forked=True), one(14, 12, TRACKER)
    everybody = (shell, script, train, worker, tracker)
    assert judged(*everybody) == {14: (ProcessRole.HELPER, None)}
    for asked in (10, 11, 12):
        found = judged(*everybody, asked=asked)
        assert {pid: role for pid, (role, _) in found.items()} == {
            12: ProcessRole.RANK,
            13: ProcessRole.WORKER,
            14: ProcessRole.HELPER,
        }
    assert not [role for role, _ in judged(one(10, 1, "sleep 9", python=False), asked=10).values()]
    assert judged(one(12, hidden=True), asked=12) == {}


def test_what_belongs_to_a_rank_is_none_because_somebody_asks_for_it() -> None:
    rank = one(21, 20, RANK=0, WORLD_SIZE=1)
    everybody = (one(20, 1, "torchrun train.py"), rank, one(22, 21, "python3 evaluate.py"))
    for asked in (20, 21, 22):
        assert [pid for pid, (role, _) in judged(*everybody, asked=asked).items() if role is ProcessRole.RANK] == [21]


def test_what_runs_us_as_well_is_not_asked_for() -> None:
    """A test, or a service, that is in a process group itself and starts a training under our eye."""
    rank = one(21, 20, RANK=0, WORLD_SIZE=1)
    us, train = one(os.getpid(), 21, "ddpdoctor run", python=False), one(22, 21, "python3 train.py")
    assert judged(one(20, 1, "torchrun train.py"), rank, us, train, asked=22)[22][0] is ProcessRole.RANK
