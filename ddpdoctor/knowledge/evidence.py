"""Facts that many findings rest on, in words that need no knowledge of their fields' names."""

from __future__ import annotations

from ddpdoctor.base.findings import Evidence
from ddpdoctor.base.unknown import Facts, Maybe, Unknown, sources
from ddpdoctor.facts.driver import Driver
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.toolchain import Nvcc
from ddpdoctor.facts.torch import Torch


def told(group: Facts, field: str, text: str) -> Evidence:
    """A fact in a sentence of its own, where "field name: value" would puzzle, with the field's source."""
    return Evidence(text, sources(type(group)).get(field, ""))


def planned(plan: Plan) -> Evidence:
    """Evidence of how many ranks are judged for, and who said so."""
    return Evidence(f"ranks on this host: {plan.nproc}", plan.source)


def torch_version(torch: Torch) -> Evidence:
    """Evidence of torch's version."""
    return told(torch, "version", f"torch {torch.version}" if torch.version else "this torch doesn't tell its version")


def torch_cuda(torch: Torch) -> Evidence:
    """Evidence of the CUDA that torch is built for."""
    built_for = f"for CUDA {torch.cuda}" if torch.cuda else "without CUDA"
    return told(torch, "cuda", f"torch is built {built_for}")


def nvcc_version(nvcc: Nvcc) -> Evidence:
    """Evidence of the CUDA that nvcc is of."""
    return Evidence(f"{nvcc.path} is of CUDA {nvcc.version} (found by {nvcc.found_by})", "nvcc --version")


def kernel_module(driver: Driver) -> Evidence:
    """Evidence of the version of the driver's kernel module."""
    version = driver.kernel_version
    if isinstance(version, Unknown):
        text = f"version of the loaded kernel module: unknown ({version.reason})"
    else:
        text = f"loaded kernel module: {version}" if version else "no nvidia kernel module is loaded"
    return told(driver, "kernel_version", text)


def libcuda(driver: Driver) -> Evidence:
    """Evidence of the libcuda that a program gets."""
    path = driver.libcuda_path
    where = f"unknown ({path.reason})" if isinstance(path, Unknown) else path or "not found"
    return told(driver, "libcuda_path", f"libcuda.so.1: {where}")


def cuda_start(driver: Driver) -> Evidence:
    """Evidence of CUDA's own start, apart from torch."""
    return told(driver, "cuda_init", _outcome("CUDA's start (cuInit)", driver.cuda_init, "libcuda.so.1"))


def nvml_start(driver: Driver) -> Evidence:
    """Evidence of NVML's start."""
    words = f" ({driver.nvml_message})" if driver.nvml_status and driver.nvml_message else ""
    return told(driver, "nvml_status", _outcome("NVML's start", driver.nvml_status, "libnvidia-ml.so.1") + words)


def _outcome(what: str, code: Maybe[int | None], library: str) -> str:
    if isinstance(code, Unknown):
        return f"{what}: {code.reason}"
    if code is None:
        return f"{what} fails: there is no {library}"
    return f"{what} fails with code {code}" if code else f"{what} works"
