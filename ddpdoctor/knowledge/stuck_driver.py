"""Findings about a driver that hangs or crashes: a deadline of ours that passed is a fact like any other."""

from __future__ import annotations

import re

from ddpdoctor.base.findings import WARN, Finding, Fix
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.container import Container
from ddpdoctor.facts.driver import Driver
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.facts.torch import Torch
from ddpdoctor.knowledge.evidence import cuda_start, kernel_module, libcuda, told
from ddpdoctor.knowledge.privileges import by_root, runtime_of
from ddpdoctor.knowledge.python_commands import in_target_python

IN_TORCH = "CUDA initialisation: "
"""How torch's `cuda_error` begins where torch was imported and then hung or died in the driver."""


def _remedy(container: Maybe[Container], hangs: bool) -> Fix:
    """For a driver that hangs, or libraries of it that crash."""
    if runtime_of(container) and hangs:
        return Fix("Start the container anew; if it does the same, the host must be rebooted")
    if runtime_of(container):
        return Fix(
            "Start the container from an image without driver libraries of its own: NVIDIA's toolkit puts in the host's",
            ("ldconfig -p | grep -E 'libcuda.so|libnvidia-ml'",),
        )
    if hangs:
        return by_root("If it stays so: reboot", ("sudo reboot",))
    return by_root("Install the driver's libraries anew, in the version of the kernel module")


def nvml_cut_short(driver: Driver, container: Maybe[Container], gpus: Maybe[Gpus], cuda_works: bool) -> Finding:
    """NVML hung or crashed. cuda_works: torch could use the GPUs in the meantime, so that a hang may be mere slowness."""
    hangs = driver.nvml_end == "hangs"
    reasons = [fact.reason for fact in (driver.nvml_status, gpus) if isinstance(fact, Unknown)]
    asked = re.search(r"asking (GPU \d+)", " ".join(reasons))
    ends = "did not answer in time" if hangs else driver.nvml_end.replace("crashes: ", "crashed with ")
    fix = _remedy(container, hangs)
    if hangs and cuda_works:
        cause = "torch could use the GPUs, so the driver may only be slow: without persistence mode it starts them anew each time."
        fix = by_root("Switch persistence mode on", ("sudo nvidia-smi -pm 1",))
    elif hangs:
        cause = "The driver or a GPU is stuck; whatever asks for the GPUs, NCCL included, will wait as long."
    else:
        cause = "The library is damaged, or isn't the one that belongs to the loaded kernel module."
    return Finding(
        summary=f"NVML {ends}" + (f", asked about {asked[1]}" if asked else "") + ": nvidia-smi and NCCL need it",
        cause=cause,
        evidence=(
            told(driver, "nvml_end", reasons[0] if reasons else f"NVML {ends}"),
            *([told(driver, "nvml_path", f"NVML's library: {driver.nvml_path}")] if driver.nvml_path else []),
            kernel_module(driver),
        ),
        fixes=(
            Fix(
                "See whether nvidia-smi does the same and what the kernel says, and send it to the administrator",
                ("timeout 60 nvidia-smi", "sudo dmesg | grep -E 'NVRM|Xid' | tail -n 20"),
            ),
            fix,
        ),
        severity=WARN if hangs and cuda_works else None,
    )


def cuda_cut_short(driver: Driver, container: Maybe[Container]) -> Finding:
    """cuInit, all by itself, hung or crashed."""
    hangs = driver.cuda_end == "hangs"
    ends = "hangs" if hangs else f"crashes ({driver.cuda_end.partition(': ')[2]})"
    return Finding(
        summary=f"CUDA can't start: it {ends}, apart from torch, too",
        cause="The driver or a GPU is stuck, or the module nvidia_uvm is."
        if hangs
        else "libcuda.so.1 is damaged, or isn't the one that belongs to the loaded kernel module.",
        evidence=(cuda_start(driver), libcuda(driver), kernel_module(driver)),
        fixes=(
            Fix(
                "See whether other programs hang in the driver and what the kernel says, and send it to the administrator",
                (
                    "ps -eo pid,stat,wchan:30,cmd | grep -E '^ *[0-9]+ +D'",
                    "sudo dmesg | grep -E 'NVRM|Xid' | tail -n 20",
                ),
            ),
            _remedy(container, hangs),
        ),
    )


def torch_cut_short(torch: Torch, driver: Driver, target_python: TargetPython) -> Finding:
    """torch's own start of CUDA hung or killed the process."""
    end = torch.cuda_error.removeprefix(IN_TORCH)
    # A slow import leaves CUDA less of the time.
    slow = torch.import_seconds > 30 and driver.cuda_init == 0
    return Finding(
        summary=f"torch {torch.version} can't start CUDA: {end}"[:160],
        cause=f"The import alone took {torch.import_seconds:.0f} s, so CUDA may only have had too little time."
        if slow
        else "The driver, or a library that something puts in front of it, hangs or crashes.",
        evidence=(told(torch, "cuda_error", f"starting CUDA in torch: {end}"), cuda_start(driver), libcuda(driver)),
        fixes=(
            Fix(
                "See where it is stuck or dies",
                (
                    f"timeout -s ABRT 120 {in_target_python(target_python, '-X', 'faulthandler', '-c', 'import torch; torch.cuda.init()')}",
                ),
            ),
            Fix("Look for settings that lead CUDA astray", ("env | grep -E 'CUDA|NVIDIA|LD_'",)),
        ),
        severity=WARN if slow else None,
    )
