"""Words that look alike, or stand alone, and what each may be taken for: lines by hand, in the words of the libraries' own sources."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from tests.support.logs_by_hand import read

NAMED, PERHAPS, FOLLOWS, WARNS, STOPS, UNKNOWN, NOTHING = (
    "named",
    "perhaps",
    "follows",
    "warns",
    "stops",
    "unknown",
    "nothing",
)
NCCL = "node0:4711:4790 [0] "
RETRIES = NCCL + "NCCL INFO Call to connect returned Connection refused, retrying\n"
NO_IPV6 = (
    "[W1122 23:07:19.986610795 socket.cpp:764] [c10d] The IPv6 network addresses of (node0, 29500) cannot be retrieved (gai error: -2"
    " - Name or service not known).\n"
)
SEGMENT = (
    NCCL
    + "misc/shmutils.cc:112 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-A1b2C3 (size 33030528){}\n"
)
WATCHDOG = "[rank1]:[{}1122 23:07:19.986610795 ProcessGroupNCCL.cpp:1316] [PG 0 Rank 1] {}\n"
STUCK = WATCHDOG.format(
    "F",
    "[PG 0 Rank 1] ProcessGroupNCCL's watchdog got stuck for 600 seconds without making progress in monitoring enqueued collectives.",
)
MISTAKE = "mistake"
KERNEL = "Apr 25 06:31:57 node0 kernel: [594677.436088] "
EVICTED = "  Warning  Evicted    3m    kubelet    "
ABORTED = "Fatal Python error: Aborted\n\nThread 0x00007f0a (most recent call first):\n"
RAISED = (
    'Traceback (most recent call last):\n  File "/home/ada/train.py", line 7, in <module>\n    run()\nValueError: 3\n'
)
BARRIER = (
    'Traceback (most recent call last):\n  File "/opt/conda/lib/python3.11/site-packages/torch/distributed/elastic/agent/server/api.py", '
    "line 904, in _exit_barrier\n    barrier_timeout=self._exit_barrier_timeout,\nRuntimeError: Socket Timeout\n"
)
CASES = {
    "a segment, and why": (SEGMENT.format(", error: No space left on device (28)"), "shm-too-small", NAMED),
    "a segment": (SEGMENT.format(""), "shm-too-small", PERHAPS),
    "a segment that CUDA refuses": (
        f"{NCCL}misc/shmutils.cc:103 NCCL WARN Cuda failure 'invalid argument'\n{SEGMENT.format('')}",
        "shm-too-small",
        PERHAPS,
    ),
    "a segment that couldn't grow": (
        f"{NCCL}misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-A1b2C3 to 33030532 bytes\n{SEGMENT.format('')}",
        "shm-too-small",
        NAMED,
    ),
    "a segment of another's": (SEGMENT.format(", error: Invalid argument (22)"), "", UNKNOWN),
    "a store on this very host": (
        "TimeoutError: The client socket has timed out after 1800s while trying to connect to (127.0.0.1, 48391).\n",
        "master-addr-unreachable",
        PERHAPS,
    ),
    "no heartbeat": (
        WATCHDOG.format(
            "E",
            "Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=1",
        ),
        "nccl-watchdog-timeout",
        FOLLOWS,
    ),
    "a watchdog that is stuck": (STUCK, "nccl-watchdog-timeout", FOLLOWS),
    "a watchdog that is stuck, newer": (
        WATCHDOG.format(
            "F", "Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang."
        ),
        "nccl-watchdog-timeout",
        FOLLOWS,
    ),
    "what the watchdog aborts": (STUCK + ABORTED, "nccl-watchdog-timeout", FOLLOWS),
    "an abort": (ABORTED, "process-crashed", PERHAPS),
    "an abort before the others wait": (ABORTED + STUCK, "process-crashed", PERHAPS),
    "an abort of another rank": (STUCK + f"[rank0]: {ABORTED}", "process-crashed", PERHAPS),
    "a peer that answers no more": (
        f"{NCCL}transport/net_ib.cc:839 NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129\n",
        "ib-link-error",
        NAMED,
    ),
    "a queue pair that can't be set up": (
        "Failed to modify QP to RTR: Connection timed out\nerrno: 110\n",
        "roce-gid-index",
        PERHAPS,
    ),
    "no more sockets": (
        f"{NCCL}misc/socket.cc:483 NCCL WARN socketStartConnect: socket failed : Too many open files\n",
        "nofile-limit",
        NAMED,
    ),
    "no more threads": (
        "OpenBLAS blas_thread_init: pthread_create failed for thread 5 of 64: Resource temporarily unavailable\n",
        "pids-limit",
        NAMED,
    ),
    "a shell that tries again": ("bash: fork: retry: Resource temporarily unavailable\n", "pids-limit", WARNS),
    "a fabric manager without a fabric": (
        "Nov 15 14:15:47 node0 nv-fabricmanager[4177]: request to query NVSwitch device information from NVSwitch driver failed with"
        " error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]\n",
        "",
        NOTHING,
    ),
    "an old kernel's kill": (
        f"{KERNEL}Out of memory: Kill process 29918 (python) score 900 or sacrifice child\n",
        "host-oom-killed",
        NAMED,
    ),
    "its second line": (
        f"{KERNEL}Killed process 29918 (python) total-vm:99kB, anon-rss:9kB, file-rss:0kB\n",
        "host-oom-killed",
        NAMED,
    ),
    "its last line": (
        f"{KERNEL}oom_reaper: reaped process 29918 (pt_data_worker), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB\n",
        "host-oom-killed",
        NAMED,
    ),
    "a kill of something else": (
        f"{KERNEL}gsd-color invoked oom-killer: gfp_mask=0x14200ca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0\n",
        "",
        NOTHING,
    ),
    "a container's end": (
        "    Last State:  Terminated\n      Reason:    Error\n      Exit Code: 137\n",
        "host-oom-killed",
        PERHAPS,
    ),
    "a container at its limit": (
        "    Last State:  Terminated\n      Reason:    OOMKilled\n      Exit Code: 137\n",
        "cgroup-memory-limit",
        NAMED,
    ),
    "an eviction for memory": (f"{EVICTED}The node was low on resource: memory. \n", "memory-low", NAMED),
    "an eviction for the disk": (
        f"{EVICTED}Pod ephemeral local storage usage exceeds the total limit of containers 10Gi. \n",
        "disk-full",
        NAMED,
    ),
    "an eviction": (f"{EVICTED}The node had condition: [PIDPressure]. \n", "stopped-from-outside", STOPS),
    "no EFA device": (
        f"{NCCL}find_ofi_provider:543 NCCL WARN NET/OFI Couldn't find any optimal provider\n",
        "efa-plugin-misconfigured",
        WARNS,
    ),
    "no EFA device, newer": (
        f"{NCCL}nccl_net_ofi_rdma_init:7978 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data available\n",
        "efa-plugin-misconfigured",
        WARNS,
    ),
    "a name of digits": (
        "[E socket.cpp:753] [c10d] The client socket has failed to connect to any network address of (0017, 47389).\n",
        "rdzv-own-name-unreachable",
        NAMED,
    ),
    "calls that differ, older": (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running inconsistent collective: CollectiveFingerPrint(Op\n",
        "collective-desync",
        NAMED,
    ),
    "calls that differ, as NCCL's kernels saw it": (
        "init.cc:1247 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 39. You can use\n",
        "collective-desync",
        NAMED,
    ),
    "sizes that differ over InfiniBand": (
        f"{NCCL}transport/net_ib.cc:1038 NCCL WARN NET/IB : req 0/1 tag 0 peer 10.0.0.6<58683> collective mismatch error, local size 9"
        " remote size 6\n",
        "nccl-message-truncated",
        NAMED,
    ),
    "workers that don't come": (
        "torch.distributed.DistStoreError: Timed out after 6 seconds waiting for workers. 1/2 workers joined.\n",
        "rdzv-missing-node",
        FOLLOWS,
    ),
    "a kernel that NCCL hasn't got": (
        f"{NCCL}enqueue.cc:58 NCCL WARN Cuda failure 'named symbol not found'\n",
        "gpu-arch-unsupported",
        PERHAPS,
    ),
    "torch's own library without torch's own function": (
        "ImportError: /opt/venv/lib/python3.11/site-packages/torch/lib/libtorch_python.so: undefined symbol: _ZN3c1010SymIntTypeE\n",
        "torch-import-broken",
        NAMED,
    ),
    "GPUs that don't reach each other": (
        f"{NCCL}transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 peer access is not supported between these two"
        " devices\n",
        "p2p-acs-iommu",
        PERHAPS,
    ),
    "a shell's whole word": ("step 1 loss 0.1\nKilled\n", "host-oom-killed", PERHAPS),
    "a thread that may not be made": (
        "OpenBLAS blas_thread_init: pthread_create failed for thread 3 of 48: Operation not permitted\n"
        "OpenBLAS blas_thread_init: RLIMIT_NPROC -1 current, -1 max\n",
        "",
        UNKNOWN,
    ),
    "what Slurm ends, and then kills": (
        "step 1\nslurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-11-22T10:00:00 DUE TO TIME LIMIT ***\n"
        "srun: error: n1: task 3: Killed\nsrun: error: n2: task 5: Terminated\n",
        "stopped-from-outside",
        STOPS,
    ),
    "a store that is gone at the end": (
        "[rank1]:[E614 11:14:03.086670611 ProcessGroupNCCL.cpp:1319] [PG 0 Rank 1] Failed to get exception dump flag from the global"
        " store.Connection reset by peer\n",
        "",
        NOTHING,
    ),
    "NCCL tries on": (RETRIES * 3, "nccl-wrong-interface", WARNS),
    "NCCL tried on, and then it failed": (
        RETRIES * 3
        + f"{NCCL}misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.7<41234> failed : No route to host\n",
        "nccl-wrong-interface",
        PERHAPS,
    ),
    "an exception, and what a launcher does then": (
        RAISED + "WARNING:torch.distributed.elastic.agent.server.api:Received 15 death signal, shutting down workers\n",
        "user-code-error",
        MISTAKE,
    ),
    "an agent that waited in vain at the end, and a run that fails": (
        BARRIER
        + f"{NCCL}NCCL INFO Using network Socket\n" * 5
        + f"{NCCL}misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.7<41234> failed : No route to host\n",
        "firewall-blocked-ports",
        PERHAPS,
    ),
    "mpirun, of a process that it doesn't name": (
        "done\n" + "-" * 60 + "\nPrimary job  terminated normally, but 1 process returned\n"
        "a non-zero exit code. Per user-direction, the job has been aborted.\n" + "-" * 60 + "\n",
        "",
        UNKNOWN,
    ),
    "torch tries on": (NO_IPV6 * 2, "master-addr-unresolvable", WARNS),
}


def test_an_abort_behind_an_exception_is_of_its_end() -> None:
    assert standing(verdict_of(read(RAISED + ABORTED), catalogue())) == MISTAKE


def standing(found: LogVerdict) -> str:
    """How sure the verdict is."""
    if found.outcome is RunOutcome.ILLNESS:
        return WARNS if found.ended_well else NAMED if found.suspects[0].sure else PERHAPS
    names = {
        RunOutcome.STOPPED: STOPS,
        RunOutcome.USER_ERROR: MISTAKE,
        RunOutcome.EFFECTS_ONLY: FOLLOWS,
        RunOutcome.UNRECOGNISED: UNKNOWN,
        RunOutcome.NOTHING: NOTHING,
    }
    return names[found.outcome]


@pytest.mark.parametrize(("text", "slug", "sure"), CASES.values(), ids=CASES)
def test_words_are_worth_no_more_and_no_less_than_they_say(text: str, slug: str, sure: str) -> None:
    found = verdict_of(read(text), catalogue())
    assert ([suspect.slug for suspect in found.suspects[:1]], standing(found)) == ([slug] if slug else [], sure)
