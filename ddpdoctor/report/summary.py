"""The few lines that say who was examined: host, Python, GPUs, NCCL, plan."""

from __future__ import annotations

from collections import Counter

from ddpdoctor.base.text import dotted, human, listed, plural
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.examination import Examination
from ddpdoctor.facts.snapshot import Snapshot


def summary(examination: Examination) -> tuple[tuple[str, str], ...]:
    """(label, text) pairs, in the order in which to show them."""
    snapshot = examination.snapshot
    plan = examination.plan
    lines = [
        ("host", _host(snapshot)),
        ("python", _target_python(snapshot)),
        ("GPUs", _gpus(snapshot)),
        ("NCCL", _nccl(snapshot)),
        ("checkpoint", _checkpoints(snapshot)),
        ("plan", f"{plural(plan.nproc, 'rank')} on this host ({plan.source})"),
    ]
    return tuple((label, text) for label, text in lines if text)


def _host(snapshot: Snapshot) -> str:
    machine = snapshot.machine
    if isinstance(machine, Unknown):
        return snapshot.host
    parts = [snapshot.host]
    if isinstance(machine.os_name, str):
        parts.append(machine.os_name)
    if isinstance(machine.usable_cores, int):
        parts.append(plural(machine.usable_cores, "core"))
    if isinstance(machine.memory_total, int):
        parts.append(human(machine.memory_total))
    if not isinstance(snapshot.container, Unknown) and snapshot.container.runtime:
        parts.append(f"in a container ({snapshot.container.runtime})")
    return ", ".join(parts)


def _target_python(snapshot: Snapshot) -> str:
    target_python = snapshot.target_python
    if isinstance(target_python, Unknown):
        return ""
    if target_python.state != "ok":
        return f"{target_python.python} can't be asked"
    asked_as = f"asked as {target_python.asked_as}; " if target_python.asked_as else ""
    text = f"{target_python.python} (chosen by {target_python.chosen_by}; {asked_as}Python {target_python.version}"
    torch = snapshot.torch
    if not isinstance(torch, Unknown):
        if not torch.installed:
            text += ", no torch"
        elif torch.impostor:
            text += f", torch hidden by {torch.impostor}"
        else:
            built_for = (
                f", CUDA {torch.cuda}" if torch.cuda else f", ROCm HIP {torch.hip}" if torch.hip else ", CPU build"
            )
            text += f", torch {torch.version or 'of unknown version'}{built_for}"
    return text + ")"


def _gpus(snapshot: Snapshot) -> str:
    gpus = snapshot.gpus
    if isinstance(gpus, Unknown):
        return "" if gpus.reason.startswith("not looked at") else f"unknown: {gpus.reason}"
    if not gpus.devices:
        return "none found"
    names = Counter(device.name or "a GPU that doesn't answer" for device in gpus.devices)
    text = listed(f"{count} x {name}" for name, count in names.items())
    driver = snapshot.driver
    if not isinstance(driver, Unknown) and driver.version:
        text += f", driver {driver.version}"
        if isinstance(driver.cuda_version, tuple):
            text += f" (CUDA {dotted(driver.cuda_version)})"
    return text


def _nccl(snapshot: Snapshot) -> str:
    nccl = snapshot.nccl
    if isinstance(nccl, Unknown):
        return ""
    if not nccl.library:
        return "not tested: no libnccl was found"
    version = f"{nccl.version}, " if isinstance(nccl.version, str) else ""
    if nccl.answer_interface:
        return f"{version}would use {nccl.answer_interface}; no collective was run"
    return f"{version}no collective was run"


def _checkpoints(snapshot: Snapshot) -> str:
    if isinstance(snapshot.checkpoints, Unknown):
        return f"unknown: {snapshot.checkpoints.reason}"
    files = snapshot.checkpoints.files
    if folders := snapshot.checkpoints.folders:
        last = folders[-1]
        return f"{last.path}: {last.called}{f' (and {len(folders) - 1} more)' if len(folders) > 1 else ''}"
    if len(files) > 1:
        return f"{len(files)} files: {listed((file.path for file in files), 4)}"
    return "".join(f"{file.path}: {file.called}{f', {human(file.size)}' if file.size else ''}" for file in files)
