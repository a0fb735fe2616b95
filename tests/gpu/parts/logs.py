"""run and diagnose-log on what real CUDA errors print."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.gpu.kit import Kit, NotPossibleError, part, torchrun

CASES = {
    "illegal_access": ("an illegal memory access", "cuda-illegal-access"),
    "out_of_memory": ("too little GPU memory", "oom-batch-too-large"),
    "fail": ("an exception of the user's", ""),
}
"""By the function of faults.py: what it is, and what the log must be diagnosed as, where the code has a name for it."""


def run_of(function: str) -> Callable[[Kit], None]:
    def work(kit: Kit) -> None:
        script = Path(__file__).parent.parent / "training.py"
        folder = kit.folder / "markers"
        folder.mkdir()
        ran = kit.ddpdoctor(
            "run", "--keep", kit.folder / "log.txt", "--", *torchrun(kit.machine.ranks), script, kit.machine.device,
            seconds=120, GPU_KIT_FOLDER=str(folder), GPU_KIT_FAULT=f"{function}@4", OMP_NUM_THREADS="1",
        )  # fmt: skip
        log = (kit.folder / "log.txt").read_text(errors="replace")
        kit.keep("log.txt", log)
        kit.keep("report.txt", ran.stderr)
        kit.hold(ran.code, "the training ended well, with a fault in it")
        report = kit.report("diagnose-log", kit.folder / "log.txt")
        slugs = [finding["slug"] for finding in report["findings"]]
        kit.saw("diagnosed as", [f"{finding['slug']}: {finding['summary']}" for finding in report["findings"]])
        kit.saw("verdict", report["verdict"])
        kit.hold(report["findings"] or report.get("log", {}).get("first"), "nothing was found in the log")
        expected = CASES[function][1]
        if expected:
            kit.compare("the diagnosis's name", True, expected in slugs)

    return work


for function, (title, _) in CASES.items():
    part(
        f"run-{function.replace('_', '-')}",
        f"run diagnoses what torch prints on {title}",
        18,
        beside=function != "illegal_access",
    )(run_of(function))


@part("xid", "the kernel log's XID after an illegal access", 15)
def xid(kit: Kit) -> None:
    before = set(kernel_log(kit))
    with kit.training(1, fault="illegal_access@2") as job, suppress(subprocess.TimeoutExpired):
        job.process.wait(timeout=40)
    new = [line for line in kernel_log(kit) if line not in before]
    kit.keep("kernel-log.txt", "\n".join(new))
    xids = [line for line in new if "Xid" in line]
    kit.saw("XIDs", xids)
    if not xids:
        raise NotPossibleError("the driver wrote no XID that could be read here")
    report = kit.report("check", "--quick", "--select", "gpu,driver")
    kit.saw("findings", [f"{finding['slug']}: {finding['summary']}" for finding in report["findings"]])


def kernel_log(kit: Kit) -> list[str]:
    """Its lines, oldest first.

    Raises:
        NotPossibleError: this user, or this sandbox, may not read it.
    """
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        ran = kit.run([kit.needs_program("dmesg")])
        if ran.code:
            raise NotPossibleError(f"the kernel log can't be read: {error.strerror}; {ran.stderr.strip()}") from None
        return ran.stdout.splitlines()
    lines = []
    with os.fdopen(log, "rb", buffering=0) as file:
        while True:
            try:
                piece = file.read(8192)
            except BrokenPipeError:  # What was next is overwritten already.
                continue
            except OSError:
                break
            if not piece:
                break
            lines.append(piece.decode(errors="replace").rstrip("\n"))
    return lines
