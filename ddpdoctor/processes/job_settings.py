"""Finds settings in which the ranks of one running job differ where they must not. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.processes import Process
from ddpdoctor.knowledge.settings_agreement import meaning, must_agree, why_apart
from ddpdoctor.knowledge.version_agreement import to_agree_on

MEETING_SETTINGS = {
    "WORLD_SIZE": "ranks wait for different numbers of others",
    "MASTER_ADDR": "ranks meet at different places",
    "MASTER_PORT": "ranks meet at different places",
    "TORCHELASTIC_RUN_ID": "ranks belong to different runs",
}
"""What a launcher gives all ranks alike."""

THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
VISIBLE_SETTINGS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")

TUNING = "the ranks understand each other, but may not behave alike"
SLOWEST = "every step takes as long as the rank with the fewest threads"
SAME_FIRST = "some ranks call the same GPU their first, and the lists differ otherwise"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A setting with unlike values."""

    name: str
    values: Mapping[str | None, tuple[int, ...]]
    """The ranks that have each value, None where it isn't set, the usual one first."""
    fatal: bool
    """The ranks can't train together."""
    why: str
    """What comes of it, as the end of a sentence."""

    @property
    def usual(self) -> str | None:
        return next(iter(self.values))

    @property
    def value(self) -> str | None:
        """The first value that isn't the usual one."""
        return list(self.values)[1]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have that value."""
        return self.values[self.value]

    @property
    def is_settable(self) -> bool:
        """Whether it is the user's to set, and no launcher's."""
        return self.name not in ("WORLD_SIZE", "TORCHELASTIC_RUN_ID", *VISIBLE_SETTINGS)


def comparable(ranks: Sequence[Process]) -> list[Process]:
    """Pick the ranks that still have what they were started with, as far as that can be seen.

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
    """List the differences between ranks whose settings are known, those that matter most first.

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
            place: settings.get(name)
            for place, settings in own.items()
            if name in settings or name not in MEETING_SETTINGS
        }
        if (why := _why_it_matters(name)) and _differ(name, values):
            fatal = name in MEETING_SETTINGS or why_apart(name) != ""
            found.append(Difference(name=name, values=_by_value(values, ranks), fatal=fatal, why=why))
    return tuple(sorted(found, key=lambda difference: not difference.fatal))


def _why_it_matters(name: str) -> str:
    """Say what comes of different values; "" where each rank may have its own."""
    if name in THREAD_SETTINGS:
        return SLOWEST
    if name in VISIBLE_SETTINGS:
        return SAME_FIRST
    return MEETING_SETTINGS.get(name, "") or why_apart(name) or (TUNING if must_agree(name) else "")


def _differ(name: str, values: Mapping[int, str | None]) -> bool:
    if name in VISIBLE_SETTINGS:
        # A GPU each, or all of them in an order of its own, is how wrappers give each rank its GPU.
        first = [(value or "0").split(",")[0].strip() for value in values.values()]
        return len(set(values.values())) > 1 and len(set(first)) < len(first)
    return len({meaning(name, value) for value in values.values()}) > 1


def _by_value(values: Mapping[int, str | None], ranks: Sequence[Process]) -> dict[str | None, tuple[int, ...]]:
    usual = to_agree_on(dict(values))
    order = dict.fromkeys([usual, *values.values()])
    numbers = {place: found.rank if (found := ranks[place].place) else place for place in values}
    return {value: tuple(numbers[place] for place, own in values.items() if own == value) for value in order}
