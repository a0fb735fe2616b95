"""`netcheck --nodes-out`: the lists for `srun --exclude`, of real hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.namespaces import network
from tests.support.netcheck_hosts import netcheck

pytestmark = [pytest.mark.root, pytest.mark.tool("ip", "unshare", "nft")]
STORE_ONLY = "ct state established,related accept; iif lo accept; tcp dport { 22, 29500 } accept; meta l4proto tcp drop"


def test_a_filtered_host_is_left_out_and_node_0_alone_writes(tmp_path: Path) -> None:
    with network("n1", "n2", "n3") as hosts:
        chain = f"chain input {{ type filter hook input priority 0; policy accept; {STORE_ONLY}; }};"
        hosts[2].run("nft", f"table inet filter {{ {chain} }}")
        ran = netcheck(hosts, "--nodes-out", str(tmp_path))
    assert [one.code for one in ran] == [1, 1, 1], ran[0].stderr
    assert (tmp_path / "passing_nodes.txt").read_text() == "n1\nn2\n"
    assert (tmp_path / "failing_nodes.txt").read_text() == "n3\n"
    assert (tmp_path / "failing_nodes.txt").stat().st_mode & 0o777 == 0o644
    assert "node 0 writes them" in ran[1].stderr


def test_an_absent_host_is_named_by_the_launchers_list(tmp_path: Path) -> None:
    slurm = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_NNODES": "2",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_NODEID": "0",
        "SLURM_STEP_NODELIST": "n1,n2",
        "SLURM_JOB_NODELIST": "n1,n2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    }
    with network("n1", "n2") as hosts:
        (ran,) = netcheck(
            hosts[:1], "--nnodes", "2", "--wait", "2", "--nodes-out", str(tmp_path), environ=slurm, ranks=False
        )
    assert ran.code == 1, ran.stderr
    assert (tmp_path / "failing_nodes.txt").read_text() == "n2\n"
    assert (tmp_path / "passing_nodes.txt").read_text() == ""
    assert "in neither list: n1: the connections between the nodes were not tried" in ran.stderr
