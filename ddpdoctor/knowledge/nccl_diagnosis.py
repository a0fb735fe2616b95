"""NCCL's own diagnosis: since which release it is there, what switches it on, and when that is not ours to do. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.nccl import Nccl
from ddpdoctor.knowledge.interface_choice import version_of

FIRST_RELEASE: Final = (2, 31)
SETTINGS: Final[Mapping[str, str]] = {"NCCL_RUN_RAS_DIAGNOSTICS": "1", "NCCL_RUN_DIAGNOSTICS": "1"}
"""The first compares the ranks, the second moves data over every pair of GPUs as a communicator is made. Neither ends anything."""
MARK: Final = "NCCL DIAG "
"""In every line of its report, which rank 0 of the communicator prints."""


def why_not_switched_on(nccl: Maybe[Nccl], environment: Maybe[Environment]) -> str:
    """Say why it isn't to be switched on; "" where it may be: that NCCL has it, and the user has set nothing of it."""
    version = nccl if isinstance(nccl, Unknown) else nccl.version
    if isinstance(version, Unknown):
        return f"which NCCL the ranks would load isn't known ({version.reason})"
    if not version:
        return "which NCCL the ranks would load isn't known"
    if not version_of(version) or version_of(version)[:2] < FIRST_RELEASE:
        return f"NCCL {version} has none; 2.31 and later do"
    if isinstance(environment, Unknown):
        return f"what you have set of it isn't known ({environment.reason})"
    if chosen := [name for name in SETTINGS if name in environment]:
        return f"you have set {' and '.join(chosen)}"
    if environment.unreadable_files:
        return f"what {environment.unreadable_files[0].path} sets can't be read"
    return ""
