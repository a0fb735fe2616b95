"""Who is exempt from the limit on locked memory, by /proc of made-up processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.limits import Limits
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.limits import probe

ALL, DOCKER, NONE = "000001ffffffffff", "00000000a80425fb", "0000000000000000"
INITIAL, ROOTLESS = (
    "         0          0 4294967295\n",
    "         0       1000          1\n         1     100000      65536\n",
)


def limits(root: Path, capabilities: str, users: str | None) -> Limits:
    folder = root / "proc" / "self"
    folder.mkdir(parents=True)
    (folder / "status").write_text(f"Name:\tpython\nCapPrm:\t{ALL}\nCapEff:\t{capabilities}\n")
    if users is not None:
        (folder / "uid_map").write_text(users)
    found = probe(Context("python", root=root))
    assert isinstance(found, Limits)
    return found


@pytest.mark.parametrize(
    ("capabilities", "users", "exempt"),
    [
        (ALL, INITIAL, True),
        (ALL, ROOTLESS, False),
        (ALL, "         0       1000          1\n", False),
        (DOCKER, INITIAL, False),
        (NONE, INITIAL, False),
        (NONE, ROOTLESS, False),
        (NONE, None, False),
    ],
)
def test_who_may_lock_memory(tmp_path: Path, capabilities: str, users: str | None, exempt: bool) -> None:
    assert limits(tmp_path, capabilities, users).may_lock_memory is exempt


def test_capabilities_of_which_namespace_nobody_says(tmp_path: Path) -> None:
    assert isinstance(limits(tmp_path, ALL, None).may_lock_memory, Unknown)
