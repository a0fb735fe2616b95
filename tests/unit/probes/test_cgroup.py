"""The cgroup probe on made-up trees: version 1, version 2, both, nested, and in containers."""

from __future__ import annotations

from pathlib import Path

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.cgroup import Cgroup
from ddpdoctor.probes.cgroup import probe
from ddpdoctor.probes.context import Context

GIB = 1024**3
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def cgroup_of(root: Path, files: dict[str, str]) -> Cgroup:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = probe(Context("python", root=root))
    assert isinstance(found, Cgroup)
    return found


def v1_mount(controllers: str, root: str = "/") -> str:
    return f"31 23 0:27 {root} /sys/fs/cgroup/{controllers} rw - cgroup cgroup rw,{controllers}\n"


def test_version_2_takes_the_tightest_on_the_way_up(tmp_path: Path) -> None:
    job = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"
    found = cgroup_of(
        tmp_path,
        {
            "proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n",
            "proc/self/mountinfo": V2_MOUNT,
            f"{job}/memory.max": f"{64 * GIB}\n",
            f"{job}/memory.current": f"{10 * GIB}\n",
            f"{job}/memory.stat": "anon 5\nfile 7\nactive_file 1000\ninactive_file 2000\n",
            f"{job}/memory.events": "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n",
            f"{job}/step_0/memory.max": "max\n",
            f"{job}/step_0/user/task_0/memory.max": f"{128 * GIB}\n",
            f"{job}/step_0/user/task_0/memory.current": "4096\n",
            f"{job}/step_0/user/task_0/cpuset.cpus.effective": "0-3,96-99\n",
            f"{job}/cpu.max": "1600000 100000\n",
            f"{job}/step_0/cpu.max": "max 100000\n",
            "sys/fs/cgroup/system.slice/cpu.max": "6400000 100000\n",
            "sys/fs/cgroup/system.slice/pids.max": "4096\n",
            "sys/fs/cgroup/system.slice/pids.current": "77\n",
            f"{job}/pids.max": "max\n",
        },
    )
    assert found.version == 2
    assert (found.memory_limit, found.memory_used, found.memory_reclaimable) == (64 * GIB, 10 * GIB, 3000)
    assert found.oom_kills == 2
    assert found.cpu_limit == 16.0
    assert found.cpuset_cores == 8
    assert (found.pids_limit, found.pids_used) == (4096, 77)


def test_version_2_in_a_container_of_its_own_namespace(tmp_path: Path) -> None:
    found = cgroup_of(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/pids.max": "2048\n",
        },
    )
    assert (found.memory_limit, found.cpu_limit, found.pids_limit) == (8 * GIB, 0.5, 2048)


def test_a_process_outside_of_the_namespace_that_is_mounted(tmp_path: Path) -> None:
    found = cgroup_of(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../../job_9\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/memory.max": f"{2 * GIB}\n",
        },
    )
    assert found.memory_limit == 2 * GIB


def test_version_2_without_any_limit(tmp_path: Path) -> None:
    found = cgroup_of(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/user-1000.slice/session-3.scope\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/user.slice/memory.max": "max\n",
        },
    )
    assert found.version == 2
    assert found.memory_limit is None
    assert found.cpu_limit is None
    assert found.pids_limit is None


def test_version_1_in_docker_without_a_namespace(tmp_path: Path) -> None:
    """The host's path stands in /proc/self/cgroup, and that very cgroup is what is mounted."""
    inside = "/docker/4f0d"
    found = cgroup_of(
        tmp_path,
        {
            "proc/self/cgroup": f"5:memory:{inside}\n4:cpu,cpuacct:{inside}\n3:cpuset:{inside}\n2:pids:{inside}\n",
            "proc/self/mountinfo": "".join(
                v1_mount(controllers, inside) for controllers in ("memory", "cpu,cpuacct", "cpuset", "pids")
            ),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{16 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/memory.stat": "active_file 1\ntotal_active_file 10\ntotal_inactive_file 20\n",
            "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpuset/cpuset.cpus": "0-1\n",
            "sys/fs/cgroup/pids/pids.max": "max\n",
        },
    )
    assert found.version == 1
    assert (found.memory_limit, found.memory_used, found.memory_reclaimable) == (16 * GIB, GIB, 30)
    assert found.oom_kills == 4
    assert found.cpu_limit == 2.5
    assert found.cpuset_cores == 2
    assert found.pids_limit is None


def test_version_1_says_no_limit_with_a_huge_number_and_minus_one(tmp_path: Path) -> None:
    found = cgroup_of(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/user.slice\n4:cpu,cpuacct:/user.slice\n",
            "proc/self/mountinfo": v1_mount("memory") + v1_mount("cpu,cpuacct"),
            "sys/fs/cgroup/memory/user.slice/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/cpu,cpuacct/user.slice/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/user.slice/cpu.cfs_period_us": "100000\n",
        },
    )
    assert found.memory_limit is None
    assert found.cpu_limit is None


def test_both_versions_side_by_side(tmp_path: Path) -> None:
    """systemd's hybrid: memory in version 1, the rest of its tree in version 2."""
    found = cgroup_of(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n1:name=systemd:/job\n0::/job\n",
            "proc/self/mountinfo": v1_mount("memory") + "32 23 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{3 * GIB}\n",
            "sys/fs/cgroup/unified/job/cpu.max": "300000 100000\n",
        },
    )
    assert (found.version, found.memory_limit, found.cpu_limit) == (1, 3 * GIB, 3.0)


def test_no_cgroups_at_all(tmp_path: Path) -> None:
    assert cgroup_of(tmp_path, {"proc/self/cgroup": "", "proc/self/mountinfo": ""}).version == 0


def test_no_proc(tmp_path: Path) -> None:
    assert isinstance(probe(Context("python", root=tmp_path)), Unknown)


def test_what_is_there_but_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "sys/fs/cgroup/memory.max").mkdir(parents=True)  # A folder: even root cannot read it as a file.
    found = cgroup_of(tmp_path, {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2_MOUNT})
    assert isinstance(found.memory_limit, Unknown)
    assert found.cpu_limit is None
