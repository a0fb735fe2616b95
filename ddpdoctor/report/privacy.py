"""Takes out of a report what a public bug tracker need not know: names of people and hosts, public and hardware addresses."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.snapshot import Snapshot

_HOME = re.compile(r"/(?:home|Users|users)/[^/\s:'\"]+")
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?!\.?\d)")
_IPV6 = re.compile(
    r"(?<![\w:])(?:[23][0-9a-fA-F]{3}:|(?:[0-9a-fA-F]{1,4}:){2})(?:[0-9a-fA-F]{0,4}:){0,7}[0-9a-fA-F]{0,4}(?!\w)"
)
"""What may be one, with a colon or a port behind it."""
_MAC = re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b")
_GPU_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F]{8}-[0-9a-fA-F-]{27,}")


_NAMES_HOSTS = re.compile(
    r"(?:PET_)?MASTER_ADDR|PET_RDZV_ENDPOINT|(?:DIST_)?(?:INIT_METHOD|URL)|NCCL_COMM_ID|SLURM\w*NODELIST|SLURMD_NODENAME"
    r"|SLURM_SRUN_COMM_HOST|SLURM_LAUNCH_NODE_IPADDR|JOBSET_NAME|KUBERNETES_SERVICE_HOST"
)


_CUT = re.compile(r"(?<![\w-])([\w.-]{4,80}?)\.\.\.(?!\.)")
"""A name whose end was left out."""

_NO_PERSON = frozenset({"", "root", "nobody", "daemon"})


def people_in(facts: Any) -> set[str]:
    """The accounts that facts name.

    Args:
        facts: a snapshot's or a report's, as builtin types.
    """
    return _values_of(("user", "owner"), facts) - _NO_PERSON


def hosts_in(facts: Any) -> set[str]:
    """The hosts that facts name; addresses and lists are none.

    Args:
        facts: as for `people_in`.
    """
    names = _values_of(("host", "hosts", "master"), facts) - {"", "localhost"}
    return {name for name in names if not _is_address(name) and ", " not in name}


def _values_of(keys: Sequence[str], facts: Any) -> set[str]:
    if isinstance(facts, dict):
        given = [facts[key] for key in keys if key in facts]
        named = (name for value in given for name in (value if isinstance(value, list | tuple) else [value]))
        found = {name for name in named if isinstance(name, str)}
        return found.union(*(_values_of(keys, inner) for inner in facts.values()))
    if isinstance(facts, list | tuple):
        return set().union(*(_values_of(keys, inner) for inner in facts))
    return set()


class Anonymiser:
    """Replaces hosts' names and their users' wherever they stand, the same host always by the same word.

    Args:
        snapshots: of the hosts, which are numbered where there are several.
        people: accounts that the snapshots don't name.
    """

    def __init__(self, *snapshots: Snapshot, people: Iterable[str] = ()) -> None:
        self._words: dict[str, str] = {}
        self._accounts = set(people)
        for number, snapshot in enumerate(snapshots, 1):
            self._accounts |= people_in(msgspec.to_builtins(snapshot))
            for name in _names_of(snapshot):
                self._words.setdefault(name, "HOST" if len(snapshots) == 1 else f"HOST{number}")
        # All of them at once: one host's name may begin as another's.
        self._names = _any_of(self._words)
        self._people = _any_of(self._accounts)

    def __call__(self, text: str) -> str:
        text = _HOME.sub("~", text)
        text = _MAC.sub("MAC", text)
        text = _GPU_UUID.sub(r"\1-...", text)
        text = _IPV4.sub(_mask_public, text)
        text = _IPV6.sub(_mask_public_v6, text)
        text = _CUT.sub(self._whole, text)
        return self._people.sub("USER", self._names.sub(lambda found: self._words[found[0]], text))

    def _whole(self, cut: re.Match[str]) -> str:
        """The word for a name of which only the beginning is left."""
        words = (word for name, word in self._words.items() if name.startswith(cut[1]))
        people = ("USER" for name in self._accounts if name.startswith(cut[1]))
        return next(iter((*words, *people)), cut[0])


def _names_of(snapshot: Snapshot) -> set[str]:
    names = {snapshot.host}
    if not isinstance(snapshot.network, Unknown):
        names |= {snapshot.network.hostname, snapshot.network.fqdn}
    names |= set(_named_by_settings(snapshot))
    names |= {name.partition(".")[0] for name in names if not _is_address(name)}
    return names - {"", "localhost", "localhost.localdomain"}


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Each of them as a word of its own, the longest first."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in longest_first) or r"(?!)")


def _named_by_settings(snapshot: Snapshot) -> Iterator[str]:
    """Hosts that the settings name: the master, the rendezvous, Slurm's nodes (a list of them as a whole)."""
    if isinstance(snapshot.environment, Unknown):
        return
    for setting in snapshot.environment.settings:
        if _NAMES_HOSTS.fullmatch(setting.name):
            host = setting.value.rpartition("//")[2].partition("/")[0]
            name = re.sub(r":\d+$", "", host).strip()
            if not _is_address(name) and not name.isdecimal():
                yield name


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _mask_public(found: re.Match[str]) -> str:
    try:
        address = ipaddress.ip_address(found[0])
    except ValueError:
        return found[0]
    return "PUBLIC-IP" if address.is_global else found[0]


def _mask_public_v6(found: re.Match[str]) -> str:
    """A colon or a port behind it may look like a part of it."""
    head, colon, port = found[0].rpartition(":")
    for address, rest in ((found[0], ""), (head, colon + port)):
        try:
            return f"PUBLIC-IP{rest}" if ipaddress.ip_address(address).is_global else found[0]
        except ValueError:
            continue
    return found[0]
