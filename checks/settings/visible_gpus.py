"""The GPUs that the program is shown: CUDA_VISIBLE_DEVICES and the order of the numbers in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import listed, plural
from ddpdoctor.base.unknown import Maybe, known
from ddpdoctor.checks.settings.invalid import evidence_of, quoted, take_away
from ddpdoctor.engine.registry import check, required, requires
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.gpus import Gpu, Gpus
from ddpdoctor.knowledge.evidence import told
from ddpdoctor.knowledge.nvidia import NO_GPU


class ListedGpus(msgspec.Struct, frozen=True):
    """CUDA's reading of CUDA_VISIBLE_DEVICES: how many entries it takes, and why it stopped, "" if it took them all."""

    count: int
    stopped: str = ""


def what_cuda_shows(value: str, gpus: Sequence[Gpu] | None) -> ListedGpus:
    """Reads the list as CUDA does: entry by entry, up to the first bad one. `gpus` None: only the text is judged."""
    entries = [entry.strip() for entry in value.split(",")]
    if len(entries) > 1 and not entries[-1]:
        entries.pop()
    by_name = entries[0].startswith(("GPU-", "MIG-"))
    taken: list[str] = []
    for entry in entries:
        problem = wrong_uuid(entry, gpus) if by_name else wrong_index(entry, gpus)
        if problem:
            return ListedGpus(len(taken), problem)
        key = entry if by_name else str(int(re.match(r"[0-9]{1,9}", entry)[0]))  # type: ignore[index]
        if key in taken:
            return ListedGpus(0, f"{entry[:40]} is in it twice, and then CUDA shows none")
        taken.append(key)
        if not by_name and not (entry.isascii() and entry.isdigit()):
            return ListedGpus(len(taken), f"CUDA reads {quoted(entry)} as {key}; entries are separated by commas")
    return ListedGpus(len(taken))


def wrong_index(entry: str, gpus: Sequence[Gpu] | None) -> str:
    found = re.match(r"[0-9]{1,9}", entry)
    if not entry:
        return "there is an empty entry"
    if not found:
        return f"{quoted(entry)} names no GPU"
    if gpus is not None and int(found[0]) >= len(gpus):
        return f"there is no GPU {int(found[0])} (they count from 0)"
    return ""


def wrong_uuid(entry: str, gpus: Sequence[Gpu] | None) -> str:
    if not entry.startswith(("GPU-", "MIG-")):
        return f"{quoted(entry)} is no UUID, but the first entry is one"
    # An older form of a slice's name: MIG-GPU-<UUID>/<instance>/<compute instance>.
    if gpus is None or entry.startswith("MIG-GPU-"):
        return ""
    if entry.startswith("GPU-"):
        uuids = [gpu.uuid for gpu in gpus]
    else:
        uuids = [slice_.uuid for gpu in gpus for slice_ in gpu.mig_instances]
        if not uuids:
            return ""  # NVML doesn't list slices to everyone, so their absence says nothing.
    return "" if any(uuid.startswith(entry) for uuid in uuids) or not all(uuids) else f"no GPU here is {entry[:44]}"


@check("cuda-visible-devices-wrong", severity=FAIL, owner=Owner.USER)
def cuda_visible_devices_wrong(environment: Environment, gpus: Maybe[Gpus]) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES hides GPUs that it was meant to show.

    ## What breaks
    "No CUDA GPUs are available", or "invalid device ordinal" on the ranks whose GPU is hidden.

    ## Why
    CUDA reads the list up to the first entry that it can't use, and hides that one and all behind it, without a warning. An
    empty value, or -1, hides all.

    ## Fix
    List numbers from 0, or UUIDs as `nvidia-smi -L` prints them, separated by commas; or unset it to see all GPUs.
    """
    found = required(environment.setting("CUDA_VISIBLE_DEVICES"), "CUDA_VISIBLE_DEVICES is not set")
    devices: Sequence[Gpu] | None = None
    if isinstance(gpus, Gpus):
        requires(gpus.devices and gpus.vendor != "amd", NO_GPU)
        devices = gpus.devices
    value = found.value.strip()
    if value in ("", "-1", "NoDevFiles"):
        yield hidden(found, known(gpus).devices)
        return
    shown = what_cuda_shows(value, devices)
    if shown.stopped:
        yield partly_hidden(found, shown, devices)
    elif devices is None:
        known(gpus)


def hidden(found: Setting, devices: Sequence[Gpu]) -> Finding:
    by_slurm = found.value == "NoDevFiles"
    which = "the GPU" if len(devices) == 1 else f"all {len(devices)} GPUs"
    return Finding.of(
        f"CUDA_VISIBLE_DEVICES={quoted(found.value)} hides {which}",
        evidence_of(found),
        Evidence(f"GPUs on this host: {len(devices)}", "NVML"),
        Fix(f"Ask Slurm for GPUs when you submit the job: `--gpus-per-node={len(devices)}`")
        if by_slurm
        else take_away(found, certain=False),
        cause="That is right for a run on the CPU alone."
        + (" Slurm sets it where the job asked for no GPU." if by_slurm else ""),
        severity=WARN,
    )


def partly_hidden(found: Setting, shown: ListedGpus, devices: Sequence[Gpu] | None) -> Finding:
    left = "no GPU" if not shown.count else f"only {plural(shown.count, 'GPU')}"
    everything = ",".join(str(index) for index in range(len(devices or ())))
    every = Fix("Or name the GPUs that you want; these are all", (f"export CUDA_VISIBLE_DEVICES={everything}",))
    return Finding.of(
        f"CUDA_VISIBLE_DEVICES={quoted(found.value)} leaves {left}: {shown.stopped}",
        evidence_of(found),
        Evidence(f"GPUs on this host: {len(devices)}", "NVML") if devices is not None else None,
        take_away(found, certain=False),
        every if devices else None,
    )


@check("cuda-device-order", severity=INFO, owner=Owner.USER)
def cuda_device_order(environment: Environment, gpus: Gpus) -> Iterator[Finding]:
    """CUDA numbers these GPUs in another order than nvidia-smi.

    ## What breaks
    `CUDA_VISIBLE_DEVICES=0` and `cuda:0` are not the GPU that `nvidia-smi` calls 0, so another job's GPU is taken.

    ## Why
    CUDA puts the fastest GPU first unless CUDA_DEVICE_ORDER is PCI_BUS_ID; nvidia-smi goes by the PCI bus. Where all GPUs
    are alike the two are the same.

    ## Fix
    `export CUDA_DEVICE_ORDER=PCI_BUS_ID`.
    """
    kinds = sorted({device.name for device in gpus.devices if device.name})
    requires(gpus.vendor != "amd" and gpus.devices, NO_GPU)
    requires(len(kinds) > 1, "all GPUs are alike")
    listing = required(environment.setting("CUDA_VISIBLE_DEVICES"), "CUDA_VISIBLE_DEVICES holds no numbers")
    requires(listing.value.strip()[:1].isdigit(), "CUDA_VISIBLE_DEVICES holds no numbers")
    # A list of all GPUs picks nothing, whatever the order.
    if environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(listing.value.split(",")) >= len(gpus.devices):
        return
    yield Finding.of(
        f"{len(kinds)} kinds of GPUs: CUDA counts them in another order than nvidia-smi, so CUDA_VISIBLE_DEVICES may mean others",
        evidence_of(listing),
        told(gpus, "devices", f"GPUs: {listed(kinds)}"),
        Fix("Number them as nvidia-smi does", ("export CUDA_DEVICE_ORDER=PCI_BUS_ID",), appliable=True),
    )
