"""Wrappers of a model, by the prefix that they put before every key of its state dict. Pure."""

from __future__ import annotations

from ddpdoctor.base.text import listed

WRITERS = {
    "module.": "DistributedDataParallel or DataParallel",
    "_orig_mod.": "torch.compile",
    "_forward_module.": "Lightning Fabric",
    "_fsdp_wrapped_module.": "FSDP",
}
HOLDERS = frozenset({"model", "net", "network", "module"})
"""Names under which modules of all sorts hold a whole model."""


def prefix_parts(prefix: str) -> list[str]:
    """ "module._orig_mod." as the prefixes one after the other."""
    return [part + "." for part in prefix.removesuffix(".").split(".")]


def writers(prefix: str) -> str:
    """Name who put a prefix there, one wrapper or several; what isn't one's is the name under which another module holds the
    model, as with Lightning."""
    return listed(
        dict.fromkeys(WRITERS.get(part, f"a module that holds it as {part[:-1]}") for part in prefix_parts(prefix))
    )
