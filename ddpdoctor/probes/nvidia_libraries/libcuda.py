"""Asks libcuda which file it is, which CUDA it serves and whether it comes up."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.library_search import can_be_found
from ddpdoctor.probes.nvidia_libraries import inquiry
from ddpdoctor.probes.subprocesses import EndedProgram, run

SECONDS = 10.0
"""How long loading libcuda and cuInit may take together."""
HIDING_SETTINGS = ("CUDA_VISIBLE_DEVICES",)
"""Left out of the environment: whether the driver comes up is one question, which GPUs a job may see another."""


class CudaAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """See the fields of facts/driver.py."""

    path: str | Unknown | None = None
    version: tuple[int, int] | Unknown | None = None
    init: int | Unknown | None = None
    end: str = ""


def ask(context: Context) -> CudaAnswers:
    """Ask, if there is a libcuda.so.1 at all."""
    if not can_be_found(context, "libcuda.so.1"):
        return CudaAnswers()
    environ = {name: value for name, value in context.environ.items() if name not in HIDING_SETTINGS}
    ended = run([sys.executable, "-I", "-S", str(inquiry("libcuda"))], SECONDS, environ=environ)
    answers = ended.answers
    why = Unknown(_failure(ended, answers))
    version = answers.get("version", why)
    return CudaAnswers(
        path=answers.get("path", why),
        version=(version // 1000, version % 1000 // 10) if isinstance(version, int) else why,
        init=answers.get("init", why),
        end="" if "init" in answers else ended.cut_short,
    )


def _failure(ended: EndedProgram, answers: dict[str, Any]) -> str:
    doing = "cuInit" if "version" in answers else "cuDriverGetVersion" if "path" in answers else "loading libcuda"
    if ended.timed_out:
        return f"{doing} did not end within {SECONDS:.0f} s"
    if ended.signal_name:
        return f"{doing} crashed with {ended.signal_name}"
    if "error" in answers:
        return f"libcuda can't be used: {answers['error']}"
    return ended.failed_to_start or f"{doing} gave no answer"
