"""Which job a process belongs to, by the environments that launchers leave and the flags that go before them."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddpdoctor.facts.meeting import Conflict
from ddpdoctor.network_check.job import Flags, JobError, NetcheckJob, job_of
from tests.support.recorded_launches import (
    INDEXED_JOB,
    INTEL_MPI,
    MPIRUN_IN_SLURM,
    MPIRUN_ONE_HOST,
    MVAPICH,
    PYTORCHJOB,
    PYTORCHJOB_ELASTIC,
    SALLOC,
    SBATCH,
    SRUN,
    TORCHRUN_C10D,
    TORCHRUN_ONE_NODE,
    TORCHRUN_STATIC,
    TRAINJOB,
)

N1 = Flags(master="n1")
RECORDED = [
    {}, INDEXED_JOB, INTEL_MPI, MPIRUN_IN_SLURM, MPIRUN_ONE_HOST, MVAPICH, PYTORCHJOB, PYTORCHJOB_ELASTIC, SALLOC, SBATCH, SRUN,
    TORCHRUN_C10D, TORCHRUN_ONE_NODE, TORCHRUN_STATIC, TRAINJOB,
]  # fmt: skip
PLAIN = {"MASTER_ADDR": "n1", "RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    ("environ", "flags", "expected"),
    [
        pytest.param({}, N1, NetcheckJob(master="n1", port=29500), id="only a master"),
        pytest.param(
            {}, Flags("10.0.0.11", 29600, 3, 2), NetcheckJob(master="10.0.0.11", port=29600, nnodes=3, node_rank=2), id="by hand"
        ),
        pytest.param({}, Flags("n1", None, 2), NetcheckJob(master="n1", port=29500, nnodes=2), id="the hub gives the rank"),
        pytest.param(
            TORCHRUN_STATIC,
            Flags(),
            NetcheckJob(
                master="n1", port=29511, nnodes=2, node_rank=1, local_rank=0, launcher="torchrun", store_running=True
            ),
            id="torchrun",
        ),
        pytest.param(
            TORCHRUN_C10D,
            Flags(),
            NetcheckJob(
                master="n1", port=38945, nnodes=2, node_rank=1, local_rank=0, launcher="torchrun", store_running=True,
                job_id="torchrun job-100",
            ),
            id="torchrun c10d",
        ),
        pytest.param(
            TORCHRUN_ONE_NODE,
            Flags(),
            NetcheckJob(
                master="127.0.0.1", port=29511, nnodes=1, node_rank=0, local_rank=1, launcher="torchrun", store_running=True
            ),
            id="torchrun on one node",
        ),
        pytest.param(
            SRUN,
            Flags(),
            NetcheckJob(
                master="n1", port=29500, nnodes=2, node_rank=1, local_rank=1, launcher="Slurm", hosts=("n1", "n2"),
                job_id="Slurm 1.0",
            ),
            id="srun",
        ),
        pytest.param(
            SRUN | TORCHRUN_STATIC | {"GROUP_RANK": "0"},
            Flags(),
            NetcheckJob(
                master="n1", port=29511, nnodes=2, node_rank=0, local_rank=0, launcher="torchrun", store_running=True,
                job_id="Slurm 1.0",
            ),
            id="torchrun under srun, which may number the nodes otherwise",
        ),
        pytest.param(
            SRUN | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n2", "SLURM_NODEID": "0"},
            Flags(),
            NetcheckJob(
                master="n2", port=29500, nnodes=1, node_rank=0, local_rank=1, launcher="Slurm", hosts=("n2",),
                job_id="Slurm 1.0",
            ),
            id="a step on part of the job's nodes",
        ),
        pytest.param(
            MPIRUN_IN_SLURM,
            Flags(),
            NetcheckJob(
                master="n1", port=29500, nnodes=2, node_rank=1, local_rank=0, launcher="Open MPI",
                conflicts=(Conflict("OMPI_COMM_WORLD_RANK", "1", "SLURM_PROCID", "0"),),
                job_id="d814ccfee9c82380-ae8c0bccbd98dea7",
            ),
            id="mpirun in a Slurm job: the stale task number loses",
        ),
        pytest.param(
            MPIRUN_ONE_HOST,
            Flags("127.0.0.1"),
            NetcheckJob(
                master="127.0.0.1", port=29500, nnodes=1, local_rank=1, launcher="Open MPI",
                job_id="2a2bbc0e48f1cb35-e0dc070d56c4bdb0",
            ),
            id="mpirun on one host",
        ),
        pytest.param(
            INTEL_MPI, N1, NetcheckJob(master="n1", port=29500, nnodes=2, local_rank=0, launcher="Intel MPI"), id="Intel MPI"
        ),
        pytest.param(
            INTEL_MPI | {"PMI_RANK": "0"},
            N1,
            NetcheckJob(master="n1", port=29500, nnodes=2, node_rank=0, local_rank=0, launcher="Intel MPI"),
            id="rank 0 is node 0",
        ),
        pytest.param(
            MVAPICH, N1, NetcheckJob(master="n1", port=29500, nnodes=2, node_rank=1, local_rank=0, launcher="MVAPICH"), id="MVAPICH"
        ),
        pytest.param(
            PYTORCHJOB,
            Flags(),
            NetcheckJob(
                master="mnist-master-0", port=23456, nnodes=2, node_rank=1, launcher="Kubernetes", job_id="Kubernetes mnist"
            ),
            id="PyTorchJob counts pods",
        ),
        pytest.param(
            PYTORCHJOB_ELASTIC,
            Flags(nnodes=2, node_rank=1),
            NetcheckJob(master="mnist-worker-0", port=23456, nnodes=2, node_rank=1),
            id="elastic PyTorchJob",
        ),
        pytest.param(
            TRAINJOB,
            Flags(),
            NetcheckJob(
                master="mnist-node-0-0.mnist", port=29400, nnodes=2, node_rank=1, launcher="Kubernetes",
                job_id="Kubernetes mnist-node-0",
            ),
            id="TrainJob",
        ),
        pytest.param(
            INDEXED_JOB,
            Flags("train-0.train", None, 2),
            NetcheckJob(
                master="train-0.train", port=29500, nnodes=2, node_rank=1, launcher="Kubernetes", job_id="Kubernetes train"
            ),
            id="Indexed Job",
        ),
        pytest.param(
            PLAIN, Flags(), NetcheckJob(master="n1", port=29500, nnodes=2, node_rank=1, local_rank=1), id="plain settings"
        ),
        pytest.param(
            {"MASTER_ADDR": "n1", "MASTER_PORT": "1234", "NNODES": "4", "NODE_RANK": "3"},
            Flags(),
            NetcheckJob(master="n1", port=1234, nnodes=4, node_rank=3),
            id="node rank and count",
        ),
        pytest.param(
            {"PET_MASTER_ADDR": "[fd00::1]", "PET_MASTER_PORT": "1234", "PET_NNODES": "2", "PET_NODE_RANK": "1"},
            Flags(),
            NetcheckJob(master="fd00::1", port=1234, nnodes=2, node_rank=1),
            id="what torchrun would take",
        ),
        pytest.param(
            {"PET_RDZV_ENDPOINT": "n1", "PET_RDZV_BACKEND": "c10d"}, Flags(), NetcheckJob(master="n1", port=29400), id="an endpoint"
        ),
        pytest.param(
            SBATCH, Flags("n1", None, 2, 0), NetcheckJob(master="n1", port=29500, nnodes=2, node_rank=0), id="by hand in a batch script"
        ),
        pytest.param(
            SBATCH | {"SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "n1"},
            Flags(),
            NetcheckJob(master="n1", port=29500),
            id="a batch script on one node",
        ),
    ],
)  # fmt: skip
def test_the_job(environ: dict[str, str], flags: Flags, expected: NetcheckJob) -> None:
    assert msgspec.structs.replace(job_of(flags, environ), counted_by="") == expected


@pytest.mark.parametrize(
    ("environ", "flags", "conflicts"),
    [
        (SRUN, Flags(nnodes=3), ["--nnodes says 3, SLURM_STEP_NUM_NODES says 2; 3 counts"]),
        (SRUN, Flags(node_rank=0), ["--node-rank says 0, SLURM_NODEID says 1; 0 counts"]),
        (TORCHRUN_STATIC, Flags(nnodes=3, node_rank=2), [
            "--nnodes says 3, GROUP_WORLD_SIZE says 2; 3 counts", "--node-rank says 2, GROUP_RANK says 1; 2 counts",
        ]),
        (TORCHRUN_STATIC, Flags("n2", 29600), [
            "--master-addr says n2, MASTER_ADDR says n1; n2 counts", "--master-port says 29600, MASTER_PORT says 29511; 29600 counts",
        ]),
        (TORCHRUN_STATIC, Flags("n1.cluster", 29511), []),
        (TORCHRUN_STATIC, Flags("10.77.0.11"), []),
        (TORCHRUN_STATIC | {"MASTER_ADDR": "10.77.0.12"}, Flags("10.77.0.11"), [
            "--master-addr says 10.77.0.11, MASTER_ADDR says 10.77.0.12; 10.77.0.11 counts",
        ]),
        (SRUN | {"RANK": "0", "WORLD_SIZE": "2"}, Flags(), [
            "SLURM_PROCID says 3, RANK says 0; 3 counts", "SLURM_STEP_NUM_TASKS says 4, WORLD_SIZE says 2; 4 counts",
        ]),
        (SRUN | {"NODE_RANK": "0"}, Flags(), ["SLURM_NODEID says 1, NODE_RANK says 0; 1 counts"]),
        # One task a node for this test; the job itself is to have 8 there.
        (SRUN | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "WORLD_SIZE": "16"}, Flags(), []),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "WORLD_SIZE": "1"}, Flags(), [
            "SLURM_STEP_NUM_TASKS says 2, WORLD_SIZE says 1; 2 counts",
        ]),
        # A program that finds RANK doesn't look at SLURM_PROCID.
        (MPIRUN_IN_SLURM | {"RANK": "1", "WORLD_SIZE": "2"}, Flags(), []),
        (MPIRUN_IN_SLURM | {"RANK": "0"}, Flags(), ["OMPI_COMM_WORLD_RANK says 1, RANK says 0; 1 counts"]),
        (MPIRUN_IN_SLURM | {"OMPI_COMM_WORLD_RANK": "0"}, Flags(), []),
    ],
)  # fmt: skip
def test_conflicts_name_both_sides(environ: dict[str, str], flags: Flags, conflicts: list[str]) -> None:
    found = job_of(flags, environ).conflicts
    said = [
        f"{one.name} says {one.value}, {one.other_name} says {one.other_value}; {one.value} counts" for one in found
    ]
    assert said == conflicts


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (Flags(), "nothing says where the nodes meet: add --master-addr and the name or address of node 0"),
        (Flags(""), "--master-addr is empty; it takes the name or address of node 0"),
        (Flags("http://n1"), "--master-addr is 'http://n1'; it takes a host alone, as in --master-addr node01"),
        (Flags("tcp://n1:29500"), "--master-addr is 'tcp://n1:29500'; it takes a host alone, as in --master-addr node01"),
        (Flags("10.0.0.0/24"), "--master-addr is '10.0.0.0/24'; it takes a host alone, as in --master-addr node01"),
        (Flags("n1:0"), "--master-addr: '0' is no port; ports go from 1 to 65535"),
        (Flags("n1:"), "--master-addr is 'n1:', with no port after the colon"),
        (Flags("n1:70000"), "--master-addr: '70000' is no port; ports go from 1 to 65535"),
        (Flags("[fd00::1]:ssh"), "--master-addr: 'ssh' is no port; ports go from 1 to 65535"),
        (Flags("[n1]:29500"), "--master-addr is '[n1]:29500'; only an IPv6 address stands in brackets"),
        (Flags("n[1-2]"), "--master-addr is 'n[1-2]', a list of hosts; it takes one of them, node 0's: n1"),
        (Flags("n1,n2"), "--master-addr is 'n1,n2', a list of hosts; it takes one of them, node 0's: n1"),
        (Flags("n[2-1]"), "--master-addr is 'n[2-1]', a list of hosts; it takes one of them, node 0's"),
        (Flags("$HEAD"), "--master-addr is '$HEAD': the shell did not fill in the variable"),
        (Flags("node 1"), "--master-addr is 'node 1', which is neither a host's name nor an address"),
        (Flags("--nnodes"), "--master-addr is '--nnodes', which is neither a host's name nor an address"),
        (Flags("n1\x1b[2J"), "--master-addr is 'n1\\x1b[2J', a list of hosts; it takes one of them, node 0's"),
        (Flags("10.0.0.256"), "--master-addr is '10.0.0.256', which is no IPv4 address"),
        (Flags("0.0.0.0"), "--master-addr is 0.0.0.0, which stands for every address; it takes one that the other nodes can dial"),
        (Flags("n1:1", 2), "--master-addr n1:1 and --master-port 2 name two ports: leave one of them out"),
        (Flags("n1", 0), "--master-port: '0' is no port; ports go from 1 to 65535"),
        (Flags("n1", -5), "--master-port: '-5' is no port; ports go from 1 to 65535"),
        (Flags("n1", 70000), "--master-port: '70000' is no port; ports go from 1 to 65535"),
        (Flags("n1", None, 0), "--nnodes is 0; a job has 1 to 4096 nodes"),
        (Flags("n1", None, -2), "--nnodes is -2; a job has 1 to 4096 nodes"),
        (Flags("n1", None, 1_000_000), "--nnodes is 1000000; a job has 1 to 4096 nodes"),
        (Flags("n1", None, 2, -1), "--node-rank is -1; nodes are counted from 0, and a job has at most 4096"),
        (Flags("n1", None, None, 1),
         "--node-rank says that this is node 1, but nothing says of how many: add --nnodes and the number of nodes"),
    ],
)  # fmt: skip
def test_no_such_job(flags: Flags, sentence: str) -> None:
    with pytest.raises(JobError) as error:
        job_of(flags, {})
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        (SBATCH, "This is the batch script of Slurm job 1, which runs on the first of its 2 nodes only. Start it on all of them: "
                 "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 ddpdoctor netcheck"),
        (SALLOC, "This shell belongs to Slurm job 1, but runs on one machine only, and the job has 2 nodes. "
                 "Start it on all of them: srun --nodes=2 --ntasks=2 --ntasks-per-node=1 ddpdoctor netcheck"),
        (INDEXED_JOB, "JOB_COMPLETION_INDEX says that this is node 1, but nothing says of how many: add --nnodes and the "
                      "number of nodes"),
        (INTEL_MPI | {"PMI_SIZE": "15"}, "Intel MPI runs 8 of its 15 ranks here and not as many on every node, so the number "
                                         "of nodes isn't known. Start one on each node: mpirun -ppn 1 ddpdoctor netcheck; "
                                         "or add --nnodes and the number of nodes"),
        (INTEL_MPI | {"MPI_LOCALNRANKS": ""}, "Intel MPI says that this is rank 8 of 16, but nothing says of how many: add "
                                              "--nnodes and the number of nodes"),
        (INTEL_MPI, "nothing says where the nodes meet: add --master-addr and the name or address of node 0"),
        ({"MASTER_ADDR": "n1:29500"}, "MASTER_ADDR is n1:29500: torch takes the port as part of the name. "
                                      "Write MASTER_ADDR=n1 MASTER_PORT=29500"),
        ({"MASTER_ADDR": "n1", "MASTER_PORT": "many"}, "MASTER_PORT: 'many' is no port; ports go from 1 to 65535"),
        ({"PET_RDZV_ENDPOINT": "n1:0"}, "PET_RDZV_ENDPOINT: '0' is no port; ports go from 1 to 65535"),
        (SRUN | {"SLURM_NODEID": "4096"}, "SLURM_NODEID is 4096; nodes are counted from 0, and a job has at most 4096"),
    ],
)  # fmt: skip
def test_what_the_launcher_leaves_open(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(JobError) as error:
        job_of(Flags(), environ)
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("master", "host", "port"),
    [
        ("n1:29501", "n1", 29501),
        (" n1 ", "n1", 29500),
        ("fd00::1", "fd00::1", 29500),
        ("[fd00::1]", "fd00::1", 29500),
        ("[fd00::1]:29501", "fd00::1", 29501),
        ("fe80::1%eth0", "fe80::1%eth0", 29500),
        ("10.0.0.11:1", "10.0.0.11", 1),
        ("gpu_node-1.cluster.", "gpu_node-1.cluster.", 29500),
    ],
)
def test_ways_to_write_the_master(master: str, host: str, port: int) -> None:
    job = job_of(Flags(master), {})
    assert (job.master, job.port) == (host, port)


@pytest.mark.parametrize("nnodes", [None, 2])
def test_what_was_asked_for_goes_to_all_nodes(nnodes: int | None) -> None:
    with pytest.raises(JobError, match="ddpdoctor netcheck --master-addr n1:29501 --master-port 29501"):
        job_of(Flags("n1:29501", 29501, nnodes), SBATCH)


def test_a_rank_that_is_too_high_goes_to_node_0_which_waits_for_it() -> None:
    assert job_of(Flags("n1", None, 2, 2), {}).node_rank == 2


def test_a_pod_whose_name_says_another_job_has_no_job_id() -> None:
    assert job_of(Flags("10.0.0.11", None, 2), INDEXED_JOB).job_id == ""
    assert job_of(Flags("other-0.other", None, 2), INDEXED_JOB).job_id == ""


NAMES = sorted({name for environ in RECORDED for name in environ} | {"NNODES", "NODE_RANK", "PMI_RANK", "PMI_SIZE"})
VALUES = st.one_of(
    st.sampled_from(["0", "1", "2", "8", "4097", "", "none", "n[1-2]", "n[", "n1:29400", "[fd00::1]:1", "True", "1:4"]), st.text(max_size=12)
)  # fmt: skip
MASTERS = st.one_of(
    st.none(), st.sampled_from(["n1", "n1:1", "fd00::1", "10.0.0.1", "::"]), st.text("n1:[]./%-,$ \n", max_size=12)
)
NUMBERS = st.one_of(st.none(), st.integers(-1, 5), st.integers())


@settings(max_examples=300)
@given(
    base=st.sampled_from(RECORDED),
    changes=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6),
    flags=st.builds(Flags, MASTERS, NUMBERS, NUMBERS, NUMBERS),
)
@example(base={}, changes={"SLURM_NODELIST": "$"}, flags=Flags(None, None, None, None))
def test_whatever_is_set_it_is_a_job_that_can_be_or_a_sentence(
    base: dict[str, str], changes: dict[str, str], flags: Flags
) -> None:
    with contextlib.suppress(JobError):
        job = job_of(flags, base | changes)
        assert 1 <= job.port <= 65535
        assert job.master
        assert not set(job.master) & set(" []/$\n")
        assert job.nnodes is None or 1 <= job.nnodes <= 4096
        assert job.node_rank is None or job.nnodes is not None
        assert job.node_rank is None or 0 <= job.node_rank < 4096
        assert len(job.hosts) in (0, job.nnodes)


@pytest.mark.parametrize(
    ("here", "size", "nodes"),
    [("3", "4", "2"), ("1", "4", "2"), ("4", "6", ""), ("1", "6", "3")],
    ids=["the larger share", "the smaller share", "no count of nodes", "one of three"],
)
def test_mpi_with_uneven_numbers_of_ranks_says_how_to_start_one_a_node(here: str, size: str, nodes: str) -> None:
    uneven = {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": size,
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": here,
        "OMPI_MCA_orte_num_nodes": nodes,
    }
    with pytest.raises(JobError) as caught:
        job_of(N1, uneven)
    assert f"Open MPI runs {here} of its {size} ranks here and not as many on every node" in str(caught.value)
    assert "mpirun --map-by ppr:1:node ddpdoctor netcheck; or add --nnodes" in str(caught.value)
    told = job_of(Flags("n1", None, 2), uneven)
    assert (told.nnodes, told.node_rank, told.conflicts) == (2, 0, ())


def test_mpi_whose_daemons_are_on_more_hosts_than_its_ranks() -> None:
    """mpirun itself may run on a host of its own."""
    assert job_of(N1, MPIRUN_IN_SLURM | {"OMPI_MCA_orte_num_nodes": "3"}).nnodes == job_of(N1, MPIRUN_IN_SLURM).nnodes


def test_a_component_of_a_heterogeneous_slurm_job_counts_for_nothing() -> None:
    component = SRUN | {"SLURM_HET_SIZE": "2"}
    with pytest.raises(JobError, match="has 2 components, and each counts its own nodes only"):
        job_of(N1, component)
    with pytest.raises(JobError, match="nothing says where the nodes meet"):
        job_of(Flags(nnodes=5), component)
    # The hub numbers the nodes; ids and lists are the component's.
    assert job_of(Flags("n1", None, 5), component) == NetcheckJob(
        master="n1", port=29500, nnodes=5, counted_by="--nnodes", local_rank=1, launcher="Slurm"
    )
    assert job_of(N1, SRUN | {"SLURM_HET_SIZE": "1"}) == job_of(N1, SRUN)
