"""Devices that a checkpoint remembers: of its tensors, and in what the user's own code will read from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import clip, human, listed, plural
from ddpdoctor.base.unknown import Maybe, Unknown, known
from ddpdoctor.checkpoints.finding_words import (
    is_dangerous,
    is_mapped,
    loading,
    paths,
    pins_of,
    readable,
    seen,
    subject,
    verb,
)
from ddpdoctor.checks.checkpoint.contents import NOT_TO_BE_LOADED, all_read
from ddpdoctor.checks.processes.full_gpus import memory_of_loaded
from ddpdoctor.engine.registry import LogTraits, check, requires
from ddpdoctor.facts.checkpoints import CheckpointFile, Checkpoints
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Environment, Gpus, Machine, Torch
from ddpdoctor.facts.visible import visible_gpus
from ddpdoctor.knowledge.evidence import planned, told, torch_version

CONTEXT_BYTES = 725 * 1024**2
"""Bytes that one more process takes on a GPU before its first tensor, as measured in pytorch#23138."""

EXTENSIONS = {"npu": "torch_npu", "hpu": "habana_frameworks.torch", "xla": "torch_xla", "xpu": "a torch built for XPU"}
"""What brings a kind of device to torch."""


def gpus_for_torch(torch: Torch, gpus: Maybe[Gpus], environment: Maybe[Environment]) -> int:
    """Count the GPUs that this torch can use: cuda:0 and so on (a ROCm build calls them the same).

    Leaves the check untested where nobody could say, or there is no torch.
    """
    requires(torch.installed, "torch is not installed")
    if torch.cpu_only or torch.cuda_available is False:
        return 0
    if isinstance(torch.device_count, int):
        return torch.device_count
    known(environment)
    return len(visible_gpus(known(gpus), environment))


def index(device: str) -> int | None:
    """The GPU's number in "cuda:7" ("cuda" alone is 0); None for any other device."""
    found = re.fullmatch(r"cuda:?(\d{1,18})?", device)
    return int(found[1] or 0) if found else None


def missing(devices: Sequence[str], count: int, machine: Maybe[Machine]) -> list[str]:
    """Those to which this torch cannot restore a tensor."""
    on_a_mac = isinstance(machine, Machine) and machine.system == "Darwin"
    return [
        device
        for device in devices
        if ((number := index(device)) is not None and number >= count) or (device.startswith("mps") and not on_a_mac)
    ]


def here(torch: Torch, count: int) -> str:
    if torch.cpu_only:
        return "torch here is a CPU-only build"
    if not count:
        return "torch here can use no GPU"
    if count == 1:
        return "torch here can use only cuda:0"
    return f"torch here can use cuda:0 {'and' if count == 2 else 'to'} cuda:{count - 1}"


def usable(torch: Torch, count: int) -> tuple[Evidence, ...]:
    if torch.cpu_only:
        return (torch_version(torch),)
    text = f"GPUs that it can use: {count}"
    if isinstance(torch.device_count, int):
        return (torch_version(torch), told(torch, "device_count", text))
    return (torch_version(torch), Evidence(text, "NVML and what hides GPUs in the environment"))


def in_order(devices: Iterable[str]) -> list[str]:
    """Each once, by kind and number: cuda:2 before cuda:10."""
    return sorted(set(devices), key=lambda device: (device.partition(":")[0], index(device) or 0, device))


def named(devices: Iterable[str]) -> str:
    """The first of them for a summary. Any text may stand in a device's place in a file."""
    return listed((device[:20] for device in in_order(devices)), 3)


def unpin(files: Sequence[CheckpointFile]) -> tuple[Fix, ...]:
    """The remedies, for one file or several."""
    harmless = [file for file in files if not is_dangerous(file)]
    if not harmless:
        return (NOT_TO_BE_LOADED,)
    return (
        Fix(
            f"Take the devices out of {verb(harmless, 'the file', 'the files')}; it takes milliseconds, and can be undone",
            (f"ddpdoctor fix-checkpoint {paths(harmless)}",),
            appliable=True,
        ),
        Fix("Or say where to load it, wherever your code loads it", (loading(harmless[0], 'map_location="cpu"'),)),
    )


@check("ckpt-device-pin", severity=FAIL, owner=Owner.USER, log=LogTraits(particulars=memory_of_loaded))
def ckpt_device_pin(
    checkpoints: Checkpoints,
    torch: Maybe[Torch],
    gpus: Maybe[Gpus],
    environment: Maybe[Environment],
    machine: Maybe[Machine],
    plan: Plan,
) -> Iterator[Finding]:
    """A checkpoint's tensors belong to GPUs: it can't be loaded here, or every rank loads it onto the same GPU.

    ## What breaks
    Where the GPU doesn't exist, `torch.load` ends with "Attempting to deserialize object on CUDA device 3". Where it does,
    every rank opens a context on it (about 725 MiB each) and puts its copy of the tensors there, so that GPU 0 runs out of
    memory while the others are empty.

    ## Why
    `torch.save` writes down the device of each tensor, and `torch.load` restores it there unless it is told otherwise by
    `map_location`.

    ## Fix
    Take the devices out of the file, once for all that load it: `ddpdoctor fix-checkpoint FILE`. Or load it with
    `torch.load(FILE, map_location="cpu")` in every rank, and let `load_state_dict` copy it to the rank's own GPU.
    """
    pinned = [file for file in readable(checkpoints) if file.pinned]
    if pinned:
        torch = known(torch)
        count = gpus_for_torch(torch, gpus, environment)
        unloadable = [file for file in pinned if missing([pin.device for pin in file.pinned], count, machine)]
        if stopping := [file for file in unloadable if not is_mapped(file)]:
            yield cannot_load(stopping, torch, count, machine)
        if mapped := [file for file in unloadable if is_mapped(file)]:
            yield loaded_elsewhere(mapped, torch, count, machine)
        loadable = [file for file in pinned if file not in unloadable]
        if extended := [file for file in loadable if extensions(file, torch)]:
            yield wants_extension(extended, torch)
        # Of files that each rank wrote for itself, each is loaded by one rank, and mostly on the device that it names.
        shared = [file for file in loadable if not file.rank_files and not is_mapped(file)]
        crowding = [file for file in shared if all(index(pin.device) is not None for pin in file.pinned)]
        if crowding and plan.nproc > 1:
            yield crowded(crowding, torch, count, plan, gpus, environment)
        elif crowding and plan.source != "--nproc":
            known(gpus)  # There may be several, with a rank each.
    all_read(checkpoints)


def cannot_load(files: Sequence[CheckpointFile], torch: Torch, count: int, machine: Maybe[Machine]) -> Finding:
    pins = [pin for file in files for pin in file.pinned if missing([pin.device], count, machine)]
    devices = named(pin.device for pin in pins)
    tensors = plural(sum(pin.tensors for pin in pins), "tensor")
    size = human(sum(pin.bytes for pin in pins))
    return Finding.of(
        f"{subject(files)} {verb(files, 'holds', 'hold')} {tensors} ({size}) for {devices}, and {here(torch, count)}",
        seen(files, map(pins_of, files)),
        usable(torch, count),
        unpin(files),
        cause="torch.load restores each tensor to the device that it was saved from, and stops where that doesn't exist.",
    )


def loaded_elsewhere(files: Sequence[CheckpointFile], torch: Torch, count: int, machine: Maybe[Machine]) -> Finding:
    """Nothing stops at a resume by the framework that wrote them."""
    stops = cannot_load(files, torch, count, machine)
    loaders = listed(dict.fromkeys(file.loader for file in files))
    return msgspec.structs.replace(
        stops,
        cause=f"A torch.load of your own stops there without map_location. At a resume {loaders} "
        f"{'loads' if len({file.loader for file in files}) == 1 else 'load'} {verb(files, 'it', 'them')}"
        f"{'' if loaders == 'nobody' else ', with map_location, and does not stop'}.",
        severity=WARN,
    )


def extensions(file: CheckpointFile, torch: Torch) -> list[str]:
    """Its devices of a kind that torch knows only by another package."""
    # On a Mac, mps is torch's own; elsewhere it is missing, which was told before.
    own = ("mps", "xpu") if "+xpu" in (torch.version or "") else ("mps",)
    return [pin.device for pin in file.pinned if index(pin.device) is None and pin.device.partition(":")[0] not in own]


def wants_extension(files: Sequence[CheckpointFile], torch: Torch) -> Finding:
    devices = in_order({device for file in files for device in extensions(file, torch)})
    wanted = listed(
        dict.fromkeys(EXTENSIONS.get(device.partition(":")[0], "the device's own package") for device in devices)
    )
    return Finding.of(
        f"{subject(files)} {verb(files, 'holds', 'hold')} tensors for {named(devices)}: loads only with {wanted}",
        seen(files, map(pins_of, files)),
        torch_version(torch),
        unpin(files),
        cause=f"torch alone knows no such device: {wanted} must be there, and be imported before torch.load.",
        severity=WARN,
    )


def crowded(
    files: Sequence[CheckpointFile],
    torch: Torch,
    count: int,
    plan: Plan,
    gpus: Maybe[Gpus],
    environment: Maybe[Environment],
) -> Finding:
    """All ranks on the few GPUs that the files name: too much for them where the copies alone exceed the memory."""
    devices = in_order({pin.device for file in files for pin in file.pinned})
    ranks = plan.nproc
    # A rank whose own GPU it is opens its context there anyway.
    extra = max(ranks - ((index(device) or 0) < ranks) for device in devices)
    largest = max((pin.bytes for file in files for pin in file.pinned), default=0)
    load = largest * ranks + extra * CONTEXT_BYTES
    visible = () if isinstance(gpus, Unknown) else visible_gpus(gpus, environment)
    # Bytes of the largest GPU that a rank may use; None where nobody says.
    totals = [(seen_gpu.slice and seen_gpu.slice.memory_total) or seen_gpu.gpu.memory_total for seen_gpu in visible]
    memory = max((total for total in totals if isinstance(total, int)), default=None)
    where = devices[0] if len(devices) == 1 else f"each of {named(devices)}"
    outcome = (
        f"{ranks} ranks load it onto {where}: {plural(extra, 'extra context')}, about {human(extra * CONTEXT_BYTES)}"
    )
    if too_much := memory is not None and load > memory:
        outcome = f"{ranks} ranks put {human(load)} on {where}, which has {human(memory or 0)}"
    return Finding.of(
        f"{subject(files)} {verb(files, 'is', 'are')} pinned to {named(devices)}: {outcome}",
        seen(files, map(pins_of, files)),
        usable(torch, count),
        planned(plan),
        unpin(files),
        cause=f"Without map_location each of the {ranks} ranks restores the tensors to the device in the file and not to its "
        f"own: {plural(extra, 'context')} of about {human(CONTEXT_BYTES)} that nobody needs, and {ranks} copies of up to {human(largest)}.",
        severity=FAIL if too_much else WARN,
    )


@check("ckpt-rng-state", severity=INFO, owner=Owner.USER)
def ckpt_rng_state(
    checkpoints: Checkpoints, torch: Maybe[Torch], gpus: Maybe[Gpus], environment: Maybe[Environment]
) -> Iterator[Finding]:
    """A checkpoint for a GPU holds states of random number generators, which must be loaded to the CPU.

    ## What breaks
    `torch.load(FILE, map_location="cuda:0")` works, and `torch.set_rng_state` then ends with "RNG state must be a
    torch.ByteTensor".

    ## Why
    `map_location` moves every tensor, also the generators' states. These must be on the CPU, even those of the GPUs'
    generators, to be set.

    ## Fix
    `map_location="cpu"`, which is right for all that is in it; or take the devices out of the file with
    `ddpdoctor fix-checkpoint FILE` and leave `map_location` away.
    """
    # Who loads a file that is on the CPU has no reason to name a GPU.
    tempting = [file for file in readable(checkpoints) if file.rng_states and file.pinned]
    if tempting:
        requires(gpus_for_torch(known(torch), gpus, environment), "torch can use no GPU here")
        first = tempting[0].rng_states[0]
        yield Finding.of(
            f"{subject(tempting)} {verb(tempting, 'holds', 'hold')} the state of random number generators "
            f"({first[:40]}): load to the CPU, not to a GPU",
            seen(tempting, (f"states: {listed(file.rng_states)}; {pins_of(file)}" for file in tempting)),
            unpin(tempting),
        )
    all_read(checkpoints)


@check("ckpt-device-in-config", severity=WARN, owner=Owner.USER)
def ckpt_device_in_config(
    checkpoints: Checkpoints,
    torch: Maybe[Torch],
    gpus: Maybe[Gpus],
    environment: Maybe[Environment],
    machine: Maybe[Machine],
) -> Iterator[Finding]:
    """A setting inside a checkpoint names a device that doesn't exist here.

    ## What breaks
    The file loads; later the program builds its model from the settings in it, and ends with "invalid device ordinal" or
    "Torch not compiled with CUDA enabled". A TorchScript model fails when it is run.

    ## Why
    Hyper-parameters and arguments are often saved beside the weights, with the device of that day. Neither `map_location` nor
    `ddpdoctor fix-checkpoint` changes them: to torch it is a text like any other, and what it is for only your code knows.
    TorchScript has devices in its code where tracing met a tensor made on one.

    ## Fix
    Set the device anew after loading and before the settings are used. Trace a TorchScript model anew on the CPU.
    """
    files = readable(checkpoints)
    settings = [NamedDevice(file, text.where, text.device) for file in files for text in file.device_texts]
    # "code/__torch__.py:12: cuda:0"
    places = [(file, place.partition(": ")) for file in files for place in file.code_devices]
    code = [NamedDevice(file, where, device.strip()) for file, (where, _, device) in places]
    for in_code, found in ((False, settings), (True, code)):
        if found:
            torch = known(torch)
            count = gpus_for_torch(torch, gpus, environment)
            if gone := [place for place in found if missing([place.device], count, machine)]:
                yield in_config(in_code, gone, torch, count)
    all_read(checkpoints)


class NamedDevice(NamedTuple):
    """A device that stands somewhere in a file."""

    file: CheckpointFile
    where: str
    device: str


def in_config(in_code: bool, gone: Sequence[NamedDevice], torch: Torch, count: int) -> Finding:
    files = list(dict.fromkeys(file for file, _, _ in gone))
    devices = named(device for _, _, device in gone)
    first = gone[0][1]
    noun, nouns = ("place in its code", "places in its code") if in_code else ("setting", "settings")
    place = (
        f"{noun} {clip(first, 50)} names" if len(gone) == 1 else f"{len(gone)} {nouns} ({clip(first, 40)}, ...) name"
    )
    lines = [listed((f"{where} is {device}" for holder, where, device in gone if holder == file), 6) for file in files]
    where = listed(dict.fromkeys(where for _, where, _ in gone), 3)
    fix = f"After loading, and before your code reads it, set {where} to a device of this host"
    if in_code:
        fix = "Trace or script the model anew on the CPU, and move it to a device after loading: `model.to(device)`"
    return Finding.of(
        f"{subject(files)}: {place} {devices}, and {here(torch, count)}",
        seen(files, lines),
        usable(torch, count),
        Fix(fix),
    )
