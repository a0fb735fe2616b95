"""netcheck's phase of real NCCL collectives."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from tests.gpu.kit import FailedError, Kit, NotPossibleError, Ran, part


@part("netcheck", "netcheck's nccl phase passes between two nodes in network namespaces, a GPU each", 30)
def netcheck(kit: Kit) -> None:
    kit.needs_root("to make network namespaces")
    kit.needs_program("ip")
    kit.needs_program("unshare")
    from tests.support.namespaces import network

    tried = kit.run(["unshare", "--mount", "--net", "true"])
    if tried.code:
        raise NotPossibleError(f"no namespaces can be made here: {tried.stderr.strip()}")
    with ExitStack() as stack:
        try:
            hosts = stack.enter_context(network("gpu1", "gpu2"))
        except (OSError, AssertionError) as error:
            raise NotPossibleError(f"the namespaces could not be made: {error}") from None
        _run(kit, hosts)


def _run(kit: Kit, hosts: list[Any]) -> None:
    def node(rank: int) -> Ran:
        settings = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}
        settings["CUDA_VISIBLE_DEVICES"] = str(rank if kit.machine.gpus > 1 else 0)
        if kit.machine.gpus == 1:
            # NCCL refuses two ranks on one GPU of a host; these are two hosts to it.
            settings["NCCL_HOSTID"] = f"kit-{rank}"
        words = [sys.executable, "-m", "ddpdoctor", "netcheck", "--json", "--master-addr", "10.77.0.11"]
        words += ["--nnodes", "2", "--node-rank", str(rank), "--wait", "20"]
        return kit.run(hosts[rank].command(*words), 60, **settings)

    with ThreadPoolExecutor(2) as nodes:
        said, _ = nodes.map(node, range(2))
    try:
        report = json.loads(said.stdout)
    except ValueError:
        raise FailedError(f"netcheck printed no JSON: {said.stderr.strip()[-300:]}") from None
    kit.keep("netcheck.json", said.stdout)
    phases = {phase["name"]: phase["passed"] for phase in report["phases"]}
    nccl = next(phase for phase in report["phases"] if phase["name"] == "nccl")
    kit.saw("phases", phases)
    kit.saw(
        "findings",
        [f"{finding['severity']}: {finding['slug']}: {finding['summary']}" for finding in report["findings"]],
    )
    kit.saw("nccl", nccl)
    failed = [finding["summary"] for finding in report["findings"] if finding["severity"] == "fail"]
    kit.hold(not failed, f"netcheck failed: {'; '.join(failed)}")
    kit.hold({*phases.values()} <= {"pass", "not tested"}, f"a phase did not pass: {phases}")
    if phases["nccl"] != "pass":
        raise NotPossibleError(f"the nccl phase was not tested: {nccl['reason']}")
