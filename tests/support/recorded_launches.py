"""What launchers really left in the environment of their processes: the names that speak of ranks, nodes and stores.

Recorded from torchrun 2.13, Open MPI 4.1.4 and Slurm 22.05 on two hosts, n1 and n2, out of network namespaces; those of
MVAPICH, Intel MPI and Kubernetes are written after their documentation.
"""

from __future__ import annotations

_TORCHRUN_WORKER = {
    "GROUP_WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "n1",
    "ROLE_NAME": "default",
    "ROLE_WORLD_SIZE": "2",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "WORLD_SIZE": "2",
}
TORCHRUN_STATIC = _TORCHRUN_WORKER | {
    "GROUP_RANK": "1", "MASTER_PORT": "29511", "RANK": "1", "ROLE_RANK": "1", "TORCHELASTIC_RUN_ID": "none",
}  # fmt: skip
"""torchrun --nnodes 2 --node-rank 1 --master-addr n1 --master-port 29511"""

TORCHRUN_C10D = _TORCHRUN_WORKER | {
    "GROUP_RANK": "1", "MASTER_PORT": "38945", "RANK": "1", "ROLE_RANK": "1", "TORCHELASTIC_RUN_ID": "job-100",
}  # fmt: skip
"""torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint n1:29433 --rdzv-id job-100"""

TORCHRUN_ONE_NODE = TORCHRUN_STATIC | {
    "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
}  # fmt: skip
"""torchrun --nproc-per-node 2 --master-addr 127.0.0.1 --master-port 29511, the second process."""

_SLURM_JOB = {
    "SLURMD_NODENAME": "n1",
    "SLURM_CPUS_ON_NODE": "3",
    "SLURM_GTIDS": "0",
    "SLURM_JOBID": "1",
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "0",
    "SLURM_NODELIST": "n[1-2]",
    "SLURM_NPROCS": "6",
    "SLURM_NTASKS": "6",
    "SLURM_NTASKS_PER_NODE": "3",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "3(x2)",
}
SBATCH = _SLURM_JOB
"""In the script of sbatch -N2 --ntasks-per-node=3"""

SALLOC = {
    name: value for name, value in _SLURM_JOB.items() if name not in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
}
"""In the shell of salloc -N2 --ntasks-per-node=3"""

SRUN = {
    "SLURMD_NODENAME": "n2",
    "SLURM_CPUS_ON_NODE": "2",
    "SLURM_GTIDS": "2,3",
    "SLURM_JOBID": "1",
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_LAUNCH_NODE_IPADDR": "10.77.0.11",
    "SLURM_LOCALID": "1",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_NODELIST": "n[1-2]",
    "SLURM_NPROCS": "4",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_PROCID": "3",
    "SLURM_SRUN_COMM_HOST": "10.77.0.11",
    "SLURM_STEPID": "0",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_TASKS_PER_NODE": "2(x2)",
}
"""srun -N2 --ntasks-per-node=2, the fourth task."""

MPIRUN_ONE_HOST = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_MCA_ess_base_jobid": "522518529",
    "OMPI_MCA_orte_num_nodes": "1",
    "OMPI_MCA_orte_precondition_transports": "2a2bbc0e48f1cb35-e0dc070d56c4bdb0",
    "OMPI_UNIVERSE_SIZE": "2",
    "PMIX_NAMESPACE": "522518529",
    "PMIX_RANK": "1",
}
"""mpirun --oversubscribe -np 2, the second process."""

MPIRUN_IN_SLURM = SBATCH | {
    "SLURMD_NODENAME": "n2",
    "SLURM_NNODES": "1",
    "SLURM_NPROCS": "1",
    "SLURM_NTASKS": "1",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_STEPID": "2",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "n2",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURM_TASKS_PER_NODE": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_COMM_WORLD_NODE_RANK": "0",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_MCA_ess_base_jobid": "467599361",
    "OMPI_MCA_orte_num_nodes": "2",
    "OMPI_MCA_orte_precondition_transports": "d814ccfee9c82380-ae8c0bccbd98dea7",
    "PMIX_NAMESPACE": "467599361",
    "PMIX_RANK": "1",
}
"""mpirun --map-by ppr:1:node in the script above, the process on n2: mpirun's own step speaks through, with task 0 of 1."""

INTEL_MPI = {"PMI_RANK": "8", "PMI_SIZE": "16", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "8"}
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_LOCAL_RANK": "0", "MV2_COMM_WORLD_LOCAL_SIZE": "1",
}  # fmt: skip

_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
PYTORCHJOB = _POD | {
    "HOSTNAME": "mnist-worker-0", "MASTER_ADDR": "mnist-master-0", "MASTER_PORT": "23456", "RANK": "1", "WORLD_SIZE": "2",
}  # fmt: skip
PYTORCHJOB_ELASTIC = _POD | {
    "HOSTNAME": "mnist-worker-1", "PET_NNODES": "2:4", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "mnist-worker-0:23456",
}  # fmt: skip
TRAINJOB = _POD | {
    "HOSTNAME": "mnist-node-0-1", "JOB_COMPLETION_INDEX": "1", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "8",
    "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "mnist-node-0-0.mnist", "PET_MASTER_PORT": "29400",
}  # fmt: skip
INDEXED_JOB = _POD | {"HOSTNAME": "train-1", "JOB_COMPLETION_INDEX": "1"}
