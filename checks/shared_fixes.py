"""Parts of fixes that several families prescribe: the container around a job, the distribution's packages, limits of logins. Pure."""

from __future__ import annotations

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.machine import Machine
from ddpdoctor.knowledge.privileges import by_root


def distribution_of(machine: Maybe[Machine]) -> str:
    """ID of the distribution ("ubuntu"); "" where it isn't known."""
    return "" if isinstance(machine, Unknown) or isinstance(machine.os_id, Unknown) else machine.os_id


def is_debian(machine: Maybe[Machine]) -> bool:
    """Whether the system's packages are Debian's."""
    return distribution_of(machine) in ("ubuntu", "debian")


def install_package(machine: Maybe[Machine], debian: str, fedora: str) -> str:
    """The command that installs a package of the system, by its name in Debian's family, or in Red Hat's."""
    return f"sudo apt-get install {debian}" if is_debian(machine) else f"sudo dnf install {fedora}"


def raised_for_new_logins(limit: str, soft: str, hard: str, file: str, on: str = "it") -> Fix:
    """Raises a limit of ulimit's for good.

    Args:
        limit: its name in limits.conf ("nofile").
        soft: what it is to be.
        hard: how far a user may raise it.
        file: the name, without its ending, of a new file in limits.d.
        on: what is raised, in words.
    """
    return by_root(
        f"Raise {on} for new logins, then log in again",
        (f"printf '* soft {limit} {soft}\\n* hard {limit} {hard}\\n' | sudo tee /etc/security/limits.d/{file}.conf",),
    )
