"""netcheck's phase of real NCCL collectives."""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.gpu.kit import Kit, NotPossibleError, part


@part("netcheck", "netcheck's nccl phase passes between two nodes in network namespaces, a GPU each", 50)
def netcheck(kit: Kit) -> None:
    kit.needs_root("to make network namespaces")
    kit.needs_program("ip")
    kit.needs_program("unshare")
    from tests.real.namespaces import network

    tried = kit.run(["unshare", "--mount", "--net", "true"])
    if tried.code:
        raise NotPossibleError(f"no namespaces can be made here: {tried.stderr.strip()}")
    try:
        with network("gpu1", "gpu2") as hosts:
            _run(kit, hosts)
    except OSError as error:
        raise NotPossibleError(f"the namespaces could not be made: {error}") from None


def _run(kit: Kit, hosts: list[Any]) -> None:
    import subprocess

    several = kit.machine.gpus > 1
    running = []
    for rank, host in enumerate(hosts):
        settings = {
            "CUDA_VISIBLE_DEVICES": str(rank if several else 0),
            "GLOO_SOCKET_IFNAME": "eth0",
            "NCCL_SOCKET_IFNAME": "eth0",
        }
        if not several:
            # NCCL refuses two ranks on one GPU of a host; these are two hosts to it.
            settings["NCCL_HOSTID"] = f"kit-{rank}"
        words = [sys.executable, "-m", "ddpdoctor", "netcheck", "--json", "--master-addr", "10.77.0.11"]
        words += ["--nnodes", "2", "--node-rank", str(rank), "--wait", "20"]
        command = host.command(*words)
        running.append(
            subprocess.Popen(
                command, env=kit.environ(**settings), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    said = []
    for process in running:
        try:
            said.append(process.communicate(timeout=110))
        except subprocess.TimeoutExpired:
            process.kill()
            said.append(process.communicate())
    kit.output += [f"[netcheck]\n{stdout[-9000:]}\n{stderr[-3000:]}" for stdout, stderr in said]
    report = json.loads(said[0][0])
    kit.keep("netcheck.json", said[0][0])
    phases = {one["name"]: one.get("state", one.get("outcome", "")) for one in report["phases"]}
    kit.saw("phases", phases)
    kit.saw("findings", [f"{one['severity']}: {one['slug']}: {one['summary']}" for one in report["findings"]])
    kit.saw("nccl", next((one for one in report["phases"] if one["name"] == "nccl"), None))
    failed = [one["summary"] for one in report["findings"] if one["severity"] == "fail"]
    kit.hold(not failed, f"netcheck failed: {'; '.join(failed)}")
    if not kit.machine.rehearsal:
        state = phases.get("nccl", "")
        if state != "passed":
            raise NotPossibleError(
                f"the nccl phase says {state!r}: {next((one for one in report['phases'] if one['name'] == 'nccl'), None)}"
            )
