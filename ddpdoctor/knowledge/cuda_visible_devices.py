"""How CUDA reads the list of GPUs in CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ddpdoctor.base.text import quoted
from ddpdoctor.facts.gpus import Gpu


class ListedGpus(msgspec.Struct, frozen=True):
    """CUDA's reading of CUDA_VISIBLE_DEVICES: the entries that it takes, and why it stopped, "" if it took them all."""

    taken: tuple[str, ...]
    """Numbers as plain ones, or UUIDs."""
    stopped: str = ""

    @property
    def count(self) -> int:
        return len(self.taken)


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
            return ListedGpus(tuple(taken), problem)
        key = entry if by_name else str(int(re.match(r"[0-9]{1,9}", entry)[0]))  # type: ignore[index]
        if key in taken:
            return ListedGpus((), f"{entry[:40]} is in it twice, and then CUDA shows none")
        taken.append(key)
        if not by_name and not (entry.isascii() and entry.isdigit()):
            return ListedGpus(tuple(taken), f"CUDA reads {quoted(entry)} as {key}; entries are separated by commas")
    return ListedGpus(tuple(taken))


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
