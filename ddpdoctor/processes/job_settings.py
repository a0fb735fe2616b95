"""In which settings the ranks of one running job differ where they must not. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.processes import Process
from ddpdoctor.knowledge.settings_agreement import PROTOCOL, meaning, must_agree
from ddpdoctor.knowledge.version_agreement import to_agree_on

MEETING = {
    "WORLD_SIZE": "ranks wait for different numbers of others",
    "MASTER_ADDR": "ranks meet at different places",
    "MASTER_PORT": "ranks meet at different places",
    "TORCHELASTIC_RUN_ID": "ranks belong to different runs",
}
"""What a launcher gives all ranks alike."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")

TUNING = "the ranks understand each other, but may not behave alike"
SLOWEST = "every step takes as long as the rank with the fewest threads"
SAME_FIRST = "some ranks call the same GPU their first, and the lists differ otherwise"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A setting with unlike values. values: each, None where it isn't set, with the ranks that have it, the usual one first.
    fatal: the ranks can't train together. why: what comes of it, the end of a sentence."""

    name: str
    values: Mapping[str | None, tuple[int, ...]]
    fatal: bool
    why: str

    @property
    def usual(self) -> str | None:
        return next(iter(self.values))

    @property
    def value(self) -> str | None:
        """The other one, the first of them."""
        return list(self.values)[1]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Who has that."""
        return self.values[self.value]

    @property
    def settable(self) -> bool:
        """It is the user's to set, and no launcher's."""
        return self.name not in ("WORLD_SIZE", "TORCHELASTIC_RUN_ID", *VISIBLE)


def comparable(ranks: Sequence[Process]) -> list[Process]:
    """Those of one job that still have what they were started with, as far as that can be seen.

    What a forked rank sets after the fork, nobody can see: all show their parent's. A rank that started others (Lightning's
    first) set for itself what it gave them. A process that wrote its title over its environment shows none.
    """
    starters = {rank.parent for rank in ranks}
    return [
        rank
        for rank in ranks
        if not isinstance(rank.settings, Unknown) and rank.settings and not rank.forked and rank.pid not in starters
    ]


def differences(ranks: Sequence[Process]) -> tuple[Difference, ...]:
    """Between ranks whose settings are known, those that matter most first.

    A meeting point that a rank was not started with it has set itself, or it could not train: that is unknown, not different.
    """
    own = {
        place: {setting.name: setting.value for setting in rank.settings if setting.origin == "environment"}
        for place, rank in enumerate(ranks)
        if not isinstance(rank.settings, Unknown)
    }
    found = []
    for name in sorted({name for settings in own.values() for name in settings}):
        values = {
            place: settings.get(name) for place, settings in own.items() if name in settings or name not in MEETING
        }
        if (why := _matters(name)) and _unlike(name, values):
            found.append(
                Difference(
                    name=name, values=_by_value(values, ranks), fatal=name in MEETING or name in PROTOCOL, why=why
                )
            )
    return tuple(sorted(found, key=lambda one: not one.fatal))


def _matters(name: str) -> str:
    """What comes of different values, "" where each rank may have its own."""
    if name in THREADS:
        return SLOWEST
    if name in VISIBLE:
        return SAME_FIRST
    return MEETING.get(name, "") or PROTOCOL.get(name, "") or (TUNING if must_agree(name) else "")


def _unlike(name: str, values: Mapping[int, str | None]) -> bool:
    if name in VISIBLE:
        # A GPU each, or all of them in an order of its own, is how wrappers give each rank its GPU.
        first = [(value or "0").split(",")[0].strip() for value in values.values()]
        return len(set(values.values())) > 1 and len(set(first)) < len(first)
    return len({meaning(name, value) for value in values.values()}) > 1


def _by_value(values: Mapping[int, str | None], ranks: Sequence[Process]) -> dict[str | None, tuple[int, ...]]:
    usual = to_agree_on(dict(values))
    order = dict.fromkeys([usual, *values.values()])
    return {value: tuple(_number(ranks[at], at) for at, own in values.items() if own == value) for value in order}


def _number(rank: Process, otherwise: int) -> int:
    return rank.place.rank if rank.place else otherwise
