"""Commands that start others on other hosts, in containers or as other users, and whether our settings get there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Final, NamedTuple


class Hands(Enum):
    """To whom a launcher hands its settings."""

    NOBODY = auto()
    THIS_HOST = auto()
    """And to other hosts only those that it is told to."""
    ALL_HOSTS = auto()


class Launcher(NamedTuple):
    """A command whose ranks may run where this host's folders aren't, or aren't theirs."""

    name: str
    hands: Hands


_HANDS: Final[Mapping[str, Hands]] = {
    "srun": Hands.ALL_HOSTS,
    **dict.fromkeys(("mpirun", "mpiexec", "deepspeed"), Hands.THIS_HOST),
    **dict.fromkeys(("ssh", "pdsh", "docker", "podman", "kubectl", "ray", "sudo", "su", "runuser"), Hands.NOBODY),
}


def launcher_among(words: Iterable[str]) -> Launcher | None:
    """Find the first launcher among the programs of a command, by the ends of their paths."""
    names = (Path(word).name for word in words)
    return next((Launcher(name, _HANDS[name]) for name in names if name in _HANDS), None)
