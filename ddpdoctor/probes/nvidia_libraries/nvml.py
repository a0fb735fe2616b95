"""NVML's account of the driver and the GPUs, asked once for both probes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import msgspec

from ddpdoctor.probes.context import Context
from ddpdoctor.probes.library_search import can_be_found
from ddpdoctor.probes.nvidia_libraries import inquiry
from ddpdoctor.probes.subprocesses import EndedProgram, run

SECONDS = 10.0
"""How long NVML may take for all of its answers."""
LIBRARY = "libnvidia-ml.so.1"


class NvmlAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of NVML. `status` None and `failure` "": there is no library to ask."""

    status: int | None = None
    """nvmlInit's return code."""
    message: str = ""
    path: str | None = None
    version: str | None = None
    driver_version: str | None = None
    gpus: tuple[dict[str, Any], ...] = ()
    p2p: Any = ()
    failure: str = ""
    """Why there is no full answer: it hung, it crashed."""
    end: str = ""
    """As `nvml_end` in facts/driver.py."""


def ask(context: Context) -> NvmlAnswers:
    """NVML's answers, from a subprocess that has the environment of a rank."""
    answers = context.once("nvml", lambda: _ask(context))
    assert isinstance(answers, NvmlAnswers)
    return answers


def _ask(context: Context) -> NvmlAnswers:
    if not can_be_found(context, LIBRARY):
        return NvmlAnswers()
    module = importlib.util.find_spec("pynvml")
    if module is None or module.origin is None:
        return NvmlAnswers(failure="the Python package nvidia-ml-py is missing beside ddpdoctor")
    # Isolated and without site: nothing of the target Python's settings or of the working directory may get in between.
    origin = Path(module.origin)
    folder = origin.parent.parent if module.submodule_search_locations else origin.parent
    command = [sys.executable, "-I", "-S", str(inquiry("nvml")), str(folder)]
    ended = run(command, SECONDS, environ=context.environ)
    answers = ended.answers
    system = answers.get("system", {})
    return NvmlAnswers(
        status=answers.get("init"),
        message=answers.get("message", ""),
        path=answers.get("path") or answers.get("library") or None,
        version=system.get("nvml_version"),
        driver_version=system.get("nvml_driver_version"),
        gpus=tuple(answer["gpu"] for answer in ended.json_objects() if "gpu" in answer),
        p2p=answers.get("p2p", ()),
        failure=_failure(ended, answers),
        end=ended.cut_short,
    )


def _failure(ended: EndedProgram, answers: dict[str, Any]) -> str:
    where = f" (asking GPU {answers['asking']})" if "asking" in answers else ""
    if ended.timed_out:
        return f"NVML did not answer within {SECONDS:.0f} s{where}"
    if ended.failed_to_start:
        return f"{sys.executable}: {ended.failed_to_start}"
    if ended.signal_name:
        return f"NVML crashed with {ended.signal_name}{where}"
    if not ended.ok:
        last = ended.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        return f"asking NVML failed: {''.join(last) or f'exit code {ended.returncode}'}"
    if "forbidden" in answers and "gpu" not in answers:
        return "this user may open none of the GPUs that NVML counts"
    return f"NVML can't count the GPUs: {answers['no_count']}" if "no_count" in answers else ""
