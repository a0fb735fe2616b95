"""Settings that a job's nodes must agree on, and what comes of it where they don't. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.fleet import Node
from ddpdoctor.knowledge.known_settings import known_settings
from ddpdoctor.knowledge.version_agreement import to_agree_on


def _across(name: str) -> str:
    known = known_settings().get(name)
    return known.across if known else ""


def concerns_other_nodes(name: str) -> bool:
    """Whether the value on one node matters to the others: it is to be equal, or has to be right on each."""
    return _across(name) != ""


def must_agree(name: str) -> bool:
    """Whether all nodes should have the same value."""
    return _across(name) == "equal"


def why_apart(name: str) -> str:
    """Why ranks that differ in that setting don't understand each other; "" where they do."""
    known = known_settings().get(name)
    return known.apart if known else ""


_BOOLEANS = {"y": "1", "yes": "1", "t": "1", "true": "1", "n": "0", "no": "0", "f": "0", "false": "0"}


def meaning(name: str, value: str | None) -> str:
    """The value as its reader takes it, so that "ring" and "Ring", or no setting and the default, are the same."""
    known = known_settings().get(name)
    text = (value or "").strip() or (known.default if known else "")
    if name == "TORCH_DISTRIBUTED_DEBUG":
        # INFO only writes more into the log.
        return "DETAIL" if text.upper() == "DETAIL" else "OFF"
    kind = known.kind if known else ""
    if kind == "torch-bool":
        return _BOOLEANS.get(text.lower(), text)
    if kind in ("nccl-int", "torch-int"):
        try:
            return str(int(text, 0))
        except ValueError:
            return text
    return text.lower() if kind in ("word", "words") else text


class Deviation(msgspec.Struct, frozen=True):
    """A setting of one node that isn't as the others'. `own` None: this node doesn't set it; `wanted` None: the others don't."""

    name: str
    own: Setting | None
    wanted: str | None

    @property
    def fatal(self) -> str:
        """Why ranks that differ in it don't understand each other; "" where they do."""
        return why_apart(self.name)

    @property
    def hits_gloo(self) -> bool:
        """Whether ranks that use gloo alone read it."""
        return "NCCL" not in self.name and self.name != "FI_PROVIDER"

    @property
    def hits_nccl(self) -> bool:
        """Whether ranks that use NCCL alone read it."""
        return "GLOO" not in self.name

    @property
    def of_infiniband(self) -> bool:
        """Whether NCCL reads it only where it has an InfiniBand or RoCE device."""
        return self.name.startswith("NCCL_IB_")


def deviations(own: Sequence[Setting], pattern: Sequence[Setting]) -> list[Deviation]:
    """In which settings that should be equal a node differs from the pattern, by name."""
    mine, theirs = (
        {setting.name: setting for setting in settings if must_agree(setting.name)} for settings in (own, pattern)
    )
    found = []
    for name in sorted({*mine, *theirs}):
        here = mine.get(name)
        wanted = theirs[name].value if name in theirs else None
        if meaning(name, here.value if here else None) != meaning(name, wanted):
            found.append(Deviation(name, here, wanted))
    return found


def value_of(node: Node, name: str) -> str | None:
    """The setting's value on that node, None where it isn't set."""
    return next((setting.value for setting in node.settings if setting.name == name), None)


def pattern_of(nodes: Sequence[Node]) -> tuple[Setting, ...]:
    """The settings that all nodes should have: for each name the majority's, on a tie that of the lowest rank."""
    pattern = []
    for name in sorted({setting.name for node in nodes for setting in node.settings if must_agree(setting.name)}):
        values = {node.rank: value_of(node, name) for node in nodes}
        wanted = to_agree_on({rank: meaning(name, value) for rank, value in values.items()})
        value = next(value for value in values.values() if meaning(name, value) == wanted)
        if value is not None:
            pattern.append(Setting(name, value))
    return tuple(pattern)
