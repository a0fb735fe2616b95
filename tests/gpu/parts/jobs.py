"""jobs and jobs --hang on real NCCL ranks."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.gpu.kit import Kit, NotPossibleError, Training, part
from tests.support.command import ROOT

RECORDER = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}


def found_of(report: dict[str, Any], job: Training) -> dict[str, Any] | None:
    pids = set(job.pids())
    return next((job for job in report["jobs"] if pids & {rank["process"]["pid"] for rank in job["ranks"]}), None)


@part("jobs", "jobs shows a healthy training with its GPUs, and finds nothing", 15)
def jobs(kit: Kit) -> None:
    with kit.training() as job:
        job.until_it_trains()
        report = kit.report("jobs")
        found = found_of(report, job)
        pids = job.pids()
    kit.hold(found is not None, "the training is not listed")
    assert found
    kit.saw("job", found)
    kit.hold([rank["process"]["pid"] for rank in found["ranks"]] == pids, "the ranks are others")
    wrong = [finding for finding in report["findings"] if any(str(pid) in json.dumps(finding) for pid in pids)]
    kit.hold(not [one for one in wrong if one["severity"] == "fail"], f"a healthy training fails: {wrong}")
    kit.saw("findings", [f"{finding['severity']}: {finding['slug']}: {finding['summary']}" for finding in wrong])
    if kit.machine.rehearsal:
        return
    for rank in found["ranks"]:
        held = [gpu for gpu in rank["gpus"] if gpu["memory"]]
        if len(held) != 1:
            kit.differs.append(f"rank {rank['rank']} holds one GPU, and jobs shows {rank['gpus']}")


@part("hang-healthy", "jobs --hang lets a healthy training be", 20, beside=True)
def hang_healthy(kit: Kit) -> None:
    with kit.training() as job:
        job.until_it_trains()
        report = kit.report("jobs", "--hang", str(job.pids()[0]))
    kit.keep("hang.json", json.dumps(report, indent=1))
    kit.saw("verdict", report["verdict"])
    failed = [finding["summary"] for finding in report["findings"] if finding["severity"] == "fail"]
    kit.hold(not failed, f"a healthy training is called {failed}")


def hung(kit: Kit, fault: str, *arguments: str, settings: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What jobs --hang says of a training whose last rank has that fault."""
    with kit.training(fault=f"{fault}@4", settings=settings) as job:
        job.wait_for(f"rank-{job.ranks - 1}.fault")
        time.sleep(3)
        report = kit.report("jobs", "--hang", str(job.pids()[0]), *arguments, seconds=90)
        kit.saw("faulty rank's pid", job.pids()[-1])
    kit.keep("hang.json", json.dumps(report, indent=1))
    kit.saw(
        "findings",
        [f"{finding['severity']}: {finding['slug']}: {finding['summary']}" for finding in report["findings"]],
    )
    return report


def names_the_last(kit: Kit, report: dict[str, Any]) -> None:
    rank = kit.machine.ranks - 1
    named = [
        finding for finding in report["findings"] if finding.get("rank") == rank or f"ank {rank}" in json.dumps(finding)
    ]
    kit.hold(named, f"rank {rank} is not named: {[finding['summary'] for finding in report['findings']]}")


@part("hang-sleep", "jobs --hang shows the rank that sleeps in user code, and its line", 20, beside=True)
def hang_sleep(kit: Kit) -> None:
    report = hung(kit, "sleep_in_user_code")
    kit.hold("sleep_in_user_code" in json.dumps(report["hang"]), "the function in which it sleeps is not shown")
    if kit.machine.ranks > 1:
        names_the_last(kit, report)


@part("hang-endless-kernel", "jobs --hang on a kernel that never ends", 22)
def hang_endless_kernel(kit: Kit) -> None:
    report = hung(kit, "endless_kernel")
    kit.hold("endless_kernel" in json.dumps(report["hang"]), "the call that waits for the GPU is not shown")
    kit.saw("verdict", report["verdict"])
    if kit.machine.ranks > 1:  # Nobody misses an only rank.
        names_the_last(kit, report)


@part("hang-stopped", "jobs --hang on a stopped rank", 20, beside=True)
def hang_stopped(kit: Kit) -> None:
    names_the_last(kit, hung(kit, "stop"))


@part("hang-recorder", "jobs --hang reads the flight recorders of real NCCL ranks", 25, beside=True)
def hang_recorder(kit: Kit) -> None:
    beginning = kit.folder / "dumps" / "rank_"
    beginning.parent.mkdir()
    settings = {
        **RECORDER,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(beginning),
        "TORCH_FR_DUMP_TEMP_FILE": str(beginning),
    }
    settings["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] = str(kit.folder / "dumps" / "pipe_")
    with kit.training(fault="sleep_in_user_code@4", settings=settings) as job:
        job.wait_for(f"rank-{job.ranks - 1}.fault")
        pipes = sorted((kit.folder / "dumps").glob("pipe_*"))
        kit.saw("pipes", [path.name for path in pipes])
        for path in pipes:
            try:
                writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                kit.differs.append(f"no recorder listens at {path.name}: {error.strerror}")
                continue
            os.write(writer, b"1\n")
            os.close(writer)
        until = time.monotonic() + 15
        while pipes and not written(beginning.parent) and time.monotonic() < until:
            time.sleep(0.2)
        time.sleep(2)  # until it is whole
        if kit.machine.rehearsal:
            for path in (ROOT / "fixtures" / "flight_recorder" / "healthy").glob("rank_?"):
                (kit.folder / "dumps" / path.name).write_bytes(path.read_bytes())
        dumps = written(beginning.parent)
        for path in dumps:
            kit.keep(f"dumps/{path.name}", path.read_bytes())
        kit.saw("dumps", {path.name: path.stat().st_size for path in dumps})
        kit.hold(dumps, "no recorder wrote anything when it was asked through its pipe")
        report = kit.report("jobs", "--hang", "--dumps", str(kit.folder / "dumps"), str(job.pids()[0]))
    kit.keep("hang.json", json.dumps(report, indent=1))
    hang = report["hang"]
    kit.saw("refused", hang["refused"])
    kit.saw("recorded", [{key: recording[key] for key in list(recording)[:6]} for recording in hang["recorded"]])
    kit.hold(not hang["refused"], f"dumps were refused: {hang['refused']}")
    kit.hold(len(hang["recorded"]) == len(dumps), f"of {len(dumps)} dumps {len(hang['recorded'])} were read")
    kit.hold("all_reduce" in json.dumps(hang["recorded"]).lower(), "no collective of the recorders is told")


def written(folder: Path) -> list[Path]:
    """The dumps there, and not the pipes."""
    return sorted(path for path in folder.iterdir() if path.is_file())


@part("hang-ras", "jobs --hang --ras reads the answer of NCCL's RAS", 25)
def hang_ras(kit: Kit) -> None:
    with kit.training(fault="sleep_in_user_code@4", settings={"NCCL_RAS_ENABLE": "1"}) as job:
        job.wait_for(f"rank-{job.ranks - 1}.fault")
        time.sleep(2)
        for name, order in (("json", b"SET FORMAT json\nVERBOSE STATUS\n"), ("text", b"VERBOSE STATUS\n")):
            kit.keep(f"ras.{name}", asked_of_ras(order))
        report = kit.report("jobs", "--hang", "--ras", str(job.pids()[0]))
    kit.keep("hang.json", json.dumps(report, indent=1))
    hang = report["hang"]
    kit.saw("counts", hang["counts"])
    kit.saw("why there is no answer", hang["ras"])
    kit.hold(hang["counts"] or hang["ras"], "the report has neither RAS's counts nor a word why not")
    if not hang["counts"]:
        raise NotPossibleError(f"RAS was not asked, or its answer not understood: {hang['ras']}")


def asked_of_ras(order: bytes) -> bytes:
    """The whole answer, or as much as came, and why no more did."""
    import socket

    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", 28028), timeout=5) as connection:
            connection.settimeout(8)
            connection.sendall(b"CLIENT PROTOCOL 2\n" + order)
            while piece := connection.recv(65536):
                answer += piece
            return answer
    except OSError as error:
        return answer + f"({error})".encode()


@part("jobs-killed-rank", "a training whose rank was killed", 20)
def jobs_killed_rank(kit: Kit) -> None:
    kit.needs_gpus(2)
    kit.needs_gpu_itself("with gloo the others would end, too")
    with kit.training() as job:
        job.until_it_trains()
        launcher = job.process.pid
        os.kill(launcher, signal.SIGSTOP)  # torchrun would end the others at once
        os.kill(job.pids()[-1], signal.SIGKILL)
        time.sleep(2)
        report = kit.report("jobs", str(job.pids()[0]))
        os.kill(launcher, signal.SIGCONT)
    kit.saw(
        "findings",
        [f"{finding['severity']}: {finding['slug']}: {finding['summary']}" for finding in report["findings"]],
    )
    names_the_last(kit, report)
