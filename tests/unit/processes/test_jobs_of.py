"""Which ranks are one job."""

from __future__ import annotations

from typing import Any

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.processes import Process, Processes, ProcessRole, RankPlace
from ddpdoctor.processes.jobs import TrainingJob, jobs_of, perhaps_of_several_runs

ORDER = "the order in which its parent started them"


def rank(
    pid: int,
    number: int,
    size: int = 2,
    *,
    parent: int = 1,
    age: float = 100.0,
    source: str = "RANK",
    local: int | None = None,
    here: int | None = None,
    network: str = "net:[1]",
    uid: int = 1000,
    state: str = "S",
    **settings: Any,
) -> Process:
    """The older its pid, the sooner it was started."""
    told = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "WORLD_SIZE": size, **settings}
    return Process(
        pid=pid,
        start=pid,
        parent=parent,
        age=age,
        uid=uid,
        state=state,
        role=ProcessRole.RANK,
        place=RankPlace(rank=number, world_size=size, local_rank=local, local_world_size=here, source=source),
        settings=tuple(Setting(name, str(value)) for name, value in told.items() if value is not None),
        network_namespace=network,
        pid_namespace="pid:[1]",
    )


def launcher(pid: int, parent: int = 1) -> Process:
    return Process(pid=pid, start=pid, parent=parent, role=ProcessRole.LAUNCHER)


def other(pid: int, parent: int, role: ProcessRole = ProcessRole.OTHER) -> Process:
    return Process(pid=pid, start=pid, parent=parent, role=role)


def jobs(*listed: Process) -> list[TrainingJob]:
    return list(jobs_of(Processes(listed=tuple(sorted(listed, key=lambda one: one.pid)))))


def named(*listed: Process) -> dict[str, list[int]]:
    return {job.name: [rank.pid for rank in job.ranks] for job in jobs(*listed)}


def test_none() -> None:
    assert jobs(other(1, 0), launcher(5)) == []


def test_under_a_launcher_through_a_shell() -> None:
    (job,) = jobs(launcher(10), rank(20, 1, parent=10), rank(21, 0, parent=15), other(15, 10))
    assert (job.name, [rank.pid for rank in job.ranks]) == ("10", [21, 20])
    assert job.launcher
    assert job.launchers == (job.launcher,)


def test_workers_of_a_rank_and_of_its_fork_server() -> None:
    (job,) = jobs(
        rank(20, 0),
        rank(21, 1),
        other(30, 20, ProcessRole.WORKER),
        other(31, 20, ProcessRole.HELPER),
        other(32, 31, ProcessRole.WORKER),
        other(33, 21, ProcessRole.WORKER),
        other(34, 99, ProcessRole.WORKER),
        other(35, 20),
    )
    assert [process.pid for process in job.others] == [30, 31, 32, 33]
    assert [process.pid for process in job.workers_of(job.ranks[0])] == [30, 32]


def test_two_jobs_by_hand_in_one_step_of_slurm() -> None:
    """Different ports alone are no two jobs: ranks that don't agree where to meet are one that is wrong."""
    step = [launcher(10), other(11, 10)]
    first = [rank(20 + count, count, parent=11) for count in range(2)]
    second = [rank(30 + count, count, parent=11, MASTER_PORT=29501) for count in range(2)]
    assert named(*step, *first, *second) == {"20": [20, 21], "30": [30, 31]}
    assert named(*step, first[0], second[1]) == {"10": [20, 31]}
    assert named(*step, *first, rank(40, 0, parent=11)) == {"10": [20, 40, 21]}


def test_orphans_by_their_meeting_point() -> None:
    assert named(rank(20, 0), rank(21, 1), rank(22, 0, MASTER_PORT=29501)) == {"20": [20, 21], "22": [22]}


def test_orphans_beside_a_new_run_at_the_same_port() -> None:
    assert named(rank(20, 0), rank(21, 1), launcher(30), rank(40, 0, parent=30), rank(41, 1, parent=30)) == {
        "20": [20, 21],
        "30": [40, 41],
    }


def test_two_runs_that_met_at_the_same_point() -> None:
    """One after the other, each complete: two jobs. Mixed, or of one rank twice: one that is wrong."""
    assert named(rank(20, 0), rank(21, 1), rank(30, 0), rank(31, 1)) == {"20": [20, 21], "30": [30, 31]}
    assert named(rank(20, 0, 1), rank(30, 0, 1)) == {"20": [20], "30": [30]}
    (mixed,) = jobs(rank(20, 0), rank(21, 0), rank(30, 1), rank(31, 1))
    assert mixed.doubled == (0, 1)
    (wrong,) = jobs(*(rank(20 + count, 0, 8) for count in range(8)))
    assert wrong.doubled == (0,)


def test_what_did_not_start_together_is_not_told_apart() -> None:
    (job,) = jobs(rank(20, 0, age=9000), rank(21, 1, age=200), rank(30, 0, age=150), rank(31, 1, age=100))
    assert job.doubled == (0, 1)


def test_same_port_in_another_network() -> None:
    home = {"MASTER_ADDR": "127.0.0.1"}
    assert named(rank(20, 0, **home), rank(21, 1, **home, network="net:[2]")) == {"20": [20], "21": [21]}
    assert named(
        launcher(10),
        rank(20, 0, parent=10, **home),
        launcher(11),
        rank(21, 1, parent=11, **home, network="net:[2]"),
    ) == {"10": [20], "11": [21]}


def test_parts_in_several_containers() -> None:
    """Each has a launcher and a network of its own, and they meet at an address that both reach."""
    (job,) = jobs(
        launcher(10),
        *(rank(20 + count, count, 4, parent=10, local=count, here=2) for count in range(2)),
        launcher(11),
        *(rank(30 + count, 2 + count, 4, parent=11, local=count, here=2, network="net:[2]") for count in range(2)),
    )
    assert [rank.pid for rank in job.ranks] == [20, 21, 30, 31]
    assert [launcher.pid for launcher in job.launchers] == [10, 11]
    assert (job.name, job.expected, job.missing) == ("10", (0, 1, 2, 3), ())


def test_parts_that_are_not_one_job() -> None:
    """Another user's, of another size, with the same ranks, or more of them than the job has."""
    first = (launcher(10), rank(20, 0, parent=10))
    for second in (
        rank(21, 1, parent=11, uid=7),
        rank(21, 1, 4, parent=11),
        rank(21, 0, parent=11),
        rank(21, 1, parent=11, TORCHELASTIC_RUN_ID="b"),
        rank(21, 1, parent=11, MASTER_PORT=None),
    ):
        assert len(jobs(*first, launcher(11), second)) == 2
    assert len(jobs(*first, launcher(11), rank(21, 1, parent=11))) == 1


def test_job_within_a_job() -> None:
    assert named(
        launcher(10),
        rank(20, 0, parent=10),
        rank(21, 1, parent=10),
        launcher(30, parent=20),
        rank(40, 0, parent=30, MASTER_PORT=29501),
        rank(50, 0, 1, parent=21, MASTER_PORT=29502),
    ) == {"10": [20, 21], "30": [40], "50": [50]}


def test_a_child_with_its_parents_settings_is_of_its_job() -> None:
    (job,) = jobs(launcher(10), rank(20, 0, parent=10), rank(21, 1, parent=10), rank(30, 0, parent=20))
    assert job.doubled == (0,)


def test_lightning() -> None:
    """The first rank has started the others, and its own settings tell of no meeting point."""
    first = rank(10, 0, source="its children's LOCAL_RANK", MASTER_ADDR=None, MASTER_PORT=None, WORLD_SIZE=None)
    (job,) = jobs(first, rank(20, 1, 3, parent=10, source="LOCAL_RANK"), rank(21, 2, 3, parent=10, source="LOCAL_RANK"))
    assert [rank.pid for rank in job.ranks] == [10, 20, 21]


def test_without_a_meeting_point() -> None:
    bare: dict[str, Any] = {"MASTER_ADDR": None, "MASTER_PORT": None}
    assert named(rank(20, 0, parent=5, **bare), rank(21, 1, parent=5, **bare), rank(22, 0, parent=6, **bare)) == {
        "20": [20, 21],
        "22": [22],
    }


NOBODY_SAYS_WHERE: dict[str, Any] = {"MASTER_ADDR": None, "MASTER_PORT": None}


def test_two_runs_of_lightning_from_one_shell() -> None:
    """Each rank 0 has started its own rank 1."""
    firsts = [rank(pid, 0, parent=5, source="its children's LOCAL_RANK", **NOBODY_SAYS_WHERE) for pid in (10, 11)]
    seconds = [rank(20 + at, 1, parent=10 + at, source="LOCAL_RANK", MASTER_PORT=29500 + at) for at in range(2)]
    assert named(*firsts, *seconds) == {"10": [10, 20], "11": [11, 21]}
    # The same below one step of Slurm.
    assert named(launcher(4), other(5, 4), *with_sockets((10, 20), (11, 21), of=[*firsts, *seconds])) == {
        "10": [10, 20],
        "11": [11, 21],
    }


def test_runs_of_lightning_below_a_python_with_a_group_of_its_own() -> None:
    """A notebook or a sweep agent that starts them is none of their ranks, nor is their rank 1 another's."""
    agent = msgspec.structs.replace(rank(5, 0, 1, **NOBODY_SAYS_WHERE), place=None)
    firsts = [rank(pid, 0, parent=5, source="its children's LOCAL_RANK", **NOBODY_SAYS_WHERE) for pid in (10, 11)]
    seconds = [rank(20 + at, 1, parent=10 + at, source="LOCAL_RANK", MASTER_PORT=29500 + at) for at in range(2)]
    assert named(agent, *firsts, *seconds) == {"5": [5], "10": [10, 20], "11": [11, 21]}


def with_sockets(*circles: tuple[int, ...], of: list[Process]) -> list[Process]:
    """Those of a circle are connected with its first."""
    heads = {pid: circle[0] for circle in circles for pid in circle}
    return [
        msgspec.structs.replace(process, connected=() if heads[process.pid] == process.pid else (heads[process.pid],))
        for process in of
    ]


def test_runs_from_one_shell_are_told_apart_by_their_sockets() -> None:
    ranks = [rank(20 + at, at // 2, parent=5, **NOBODY_SAYS_WHERE) for at in range(4)]
    assert named(*with_sockets((20, 22), (21, 23), of=ranks)) == {"20": [20, 22], "21": [21, 23]}
    placeless = [msgspec.structs.replace(rank, place=None) for rank in ranks]
    assert named(*with_sockets((20, 22), (21, 23), of=placeless)) == {"20": [20, 22], "21": [21, 23]}
    # One rank 1 too many, and all of them have met.
    (doubled,) = jobs(*with_sockets((20, 22, 23), of=[ranks[0], *ranks[2:]]))
    assert doubled.doubled == (1,)
    assert perhaps_of_several_runs(doubled) == ()


def test_where_sockets_can_t_be_seen_it_is_not_told_which_ranks_are_one_job() -> None:
    (job,) = jobs(*(rank(20 + at, at // 2, parent=5, **NOBODY_SAYS_WHERE) for at in range(4)))
    assert perhaps_of_several_runs(job) == (0, 1)
    (told,) = jobs(*(rank(20 + at, 0, 8) for at in range(4)))
    assert perhaps_of_several_runs(told) == ()


def test_missing() -> None:
    (job,) = jobs(rank(20, 4, 8, local=0, here=4), rank(22, 6, 8, local=2, here=4))
    assert (job.world_size, job.expected, job.missing) == (8, (4, 5, 6, 7), (5, 7))
    (alone,) = jobs(rank(20, 1, 3, MASTER_ADDR="localhost"))
    assert (alone.expected, alone.missing) == ((0, 1, 2), (0, 2))
    (elsewhere,) = jobs(rank(20, 1, 3))
    assert elsewhere.expected == ()


def test_dead_ranks_are_not_missing() -> None:
    (job,) = jobs(
        launcher(10), rank(20, 0, parent=10, local=0, here=2), rank(21, 1, parent=10, state="Z", source=ORDER)
    )
    assert job.missing == ()
    assert [rank.state for rank in job.ranks] == ["S", "Z"]


def test_a_dead_rank_is_of_its_siblings_job() -> None:
    """It has no settings any more."""

    def dead(parent: int) -> Process:
        one = rank(21, 1, parent=parent, state="Z", source=ORDER)
        return msgspec.structs.replace(one, settings=Unknown("the process has ended"))

    assert named(rank(20, 0, parent=10), dead(10)) == {"20": [20, 21]}
    # Whoever adopts orphans has not started them.
    assert len(jobs(rank(20, 0, parent=1), dead(1))) == 2


def test_absurd_settings() -> None:
    (job,) = jobs(rank(20, 5, 10**15, local=5, here=10**15, MASTER_ADDR="127.0.0.1"))
    assert len(job.expected) <= 4096
    hidden = Process(pid=1, start=1, parent=1, role=ProcessRole.RANK, settings=Unknown("Permission denied"))
    assert [job.name for job in jobs(hidden)] == ["1"]
