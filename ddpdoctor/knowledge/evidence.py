"""Facts that many findings rest on, in words that need no knowledge of their fields' names."""

from __future__ import annotations

from ddpdoctor.facts.base import Facts, Unknown, sources
from ddpdoctor.facts.driver import Driver
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.torch import Torch
from ddpdoctor.findings import Evidence


def told(group: Facts, field: str, text: str) -> Evidence:
    """A fact in a sentence of its own, where "field name: value" would puzzle, with the field's source."""
    return Evidence(text, sources(type(group)).get(field, ""))


def planned(plan: Plan) -> Evidence:
    """How many ranks are judged for, and who said so."""
    return Evidence(f"ranks on this host: {plan.nproc}", plan.source)


def torch_version(torch: Torch) -> Evidence:
    """Which torch it is."""
    return told(torch, "version", f"torch {torch.version}" if torch.version else "this torch doesn't tell its version")


def torch_cuda(torch: Torch) -> Evidence:
    """Which CUDA torch is built for."""
    built_for = f"for CUDA {torch.cuda}" if torch.cuda else "without CUDA"
    return told(torch, "cuda", f"torch is built {built_for}")


def kernel_module(driver: Driver) -> Evidence:
    """The version of the driver's kernel module."""
    version = driver.kernel_version
    if isinstance(version, Unknown):
        text = f"version of the loaded kernel module: unknown ({version.reason})"
    else:
        text = f"loaded kernel module: {version}" if version else "no nvidia kernel module is loaded"
    return told(driver, "kernel_version", text)


def libcuda(driver: Driver) -> Evidence:
    """Which libcuda a program gets."""
    path = driver.libcuda_path
    where = f"unknown ({path.reason})" if isinstance(path, Unknown) else path or "not found"
    return told(driver, "libcuda_path", f"libcuda.so.1: {where}")


def cuda_start(driver: Driver) -> Evidence:
    """What became of CUDA's own start, apart from torch."""
    code = driver.cuda_init
    if isinstance(code, Unknown):
        text = f"CUDA's start (cuInit) was not tried: {code.reason}"
    elif code is None:
        text = "CUDA can't start: there is no libcuda.so.1"
    else:
        text = f"CUDA's start (cuInit) fails with code {code}" if code else "CUDA's start (cuInit) works"
    return told(driver, "cuda_init", text)


def nvml_start(driver: Driver) -> Evidence:
    """What became of NVML's start."""
    status = driver.nvml_status
    if isinstance(status, Unknown):
        text = f"NVML was not asked: {status.reason}"
    elif status is None:
        text = "NVML can't start: there is no libnvidia-ml.so.1"
    else:
        words = f" ({driver.nvml_message})" if driver.nvml_message else ""
        text = f"NVML fails with code {status}{words}" if status else "NVML works"
    return told(driver, "nvml_status", text)
