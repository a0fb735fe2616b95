"""`netcheck` in NVSentinel's init containers: the gang says who meets where."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.namespaces import network
from tests.support.netcheck_hosts import start

pytestmark = [pytest.mark.root, pytest.mark.tool("ip", "unshare")]


def environ(folder: Path, pod: str, seconds: int = 30) -> dict[str, str]:
    return {
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "GANG_ID": "kubernetes-train-workers",
        "GANG_CONFIG_DIR": str(folder),
        "GANG_TIMEOUT_SECONDS": str(seconds),
        "POD_NAME": pod,
    }


def gang(folder: Path, *pods: str) -> None:
    told = {"expected_count": "2", "master_addr": "10.77.0.11", "master_port": "29511"}
    for name, text in (told | {"peers": "".join(f"{pod}\n" for pod in pods)}).items():
        (folder / name).write_text(text)


def test_the_pods_of_a_gang_meet(tmp_path: Path) -> None:
    gang(tmp_path, "worker-0;10.77.0.11;0", "worker-1;10.77.0.12;1")
    with network("n1", "n2") as hosts:
        running = [
            start(host, "--json", "--quick", "--wait", "20", environ=environ(tmp_path, f"worker-{rank}"))
            for rank, host in enumerate(hosts)
        ]
        ran = [one.end() for one in running]
    assert [one.code for one in ran] == [0, 0], ran[0].stderr
    assert [node["host"] for node in ran[0].report["nodes"]] == ["n1", "n2"]


def test_a_gang_that_does_not_form_is_no_verdict_on_this_node(tmp_path: Path) -> None:
    gang(tmp_path, "worker-0;10.77.0.11;0")
    with network("n1") as (host,):
        ran = start(host, "--quick", environ=environ(tmp_path, "worker-0", 1)).end()
    assert ran.code == 2
    assert "The gang did not form in time: 1 of 2 pods have come. That is no fault of this node" in ran.stderr
    assert "waiting for the gang: 1 of 2 pods have come" in ran.stderr
