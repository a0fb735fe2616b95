"""Wrappers of a model, by what they put before every key of its state dict. Pure."""

from __future__ import annotations

from ddpdoctor.wording import listed

WRITERS = {
    "module.": "DistributedDataParallel or DataParallel",
    "_orig_mod.": "torch.compile",
    "_forward_module.": "Lightning Fabric",
    "_fsdp_wrapped_module.": "FSDP",
}


def prefix_parts(prefix: str) -> list[str]:
    """ "module._orig_mod." as the prefixes one after the other."""
    return [part + "." for part in prefix.removesuffix(".").split(".")]


def writers(prefix: str) -> str:
    """Who put a prefix there, of one wrapper or of several; as it stands in the file where we don't know."""
    return listed(dict.fromkeys(WRITERS.get(part, part) for part in prefix_parts(prefix)))
