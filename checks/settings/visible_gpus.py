"""The GPUs that the program is shown: CUDA_VISIBLE_DEVICES and the order of the numbers in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import listed, plural, quoted
from ddpdoctor.base.unknown import Maybe, known
from ddpdoctor.checks.settings.invalid import evidence_of, take_away
from ddpdoctor.engine.registry import check, required, requires
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.gpus import Gpu, Gpus
from ddpdoctor.knowledge.cuda_visible_devices import ListedGpus, what_cuda_shows
from ddpdoctor.knowledge.evidence import told
from ddpdoctor.knowledge.nvidia import NO_GPU


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
