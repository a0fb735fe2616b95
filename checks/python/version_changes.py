"""What releases of packages have taken away, or brought, as `package_versions.changes.toml` says it. Pure."""

from __future__ import annotations

from functools import cache

import msgspec

from ddpdoctor.base.tables import read_table


class VersionChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What one release of a package hasn't, and another one has.

    package: as it is imported, or "Python". names: "numpy.int" of a module, "Cache.get" of a class, "Trainer(gpus)" an argument. removed, added:
    the first release without them, or with them. instead: what to write in their place; the name's last part stands in braces.
    """

    package: str
    names: tuple[str, ...] = ()
    removed: str = ""
    added: str = ""
    instead: str = ""
    source: str


@cache
def packaged_changes() -> dict[str, VersionChange]:
    """All changes by their names: what the file says, as `python -m tests.regenerate` writes it."""
    rows = read_table(__name__, "version_changes.json", dict[str, tuple[VersionChange, ...]])["change"]
    return {
        name: msgspec.structs.replace(row, instead=row.instead.replace("{name}", name.rpartition(".")[2]))
        for row in rows
        for name in row.names
    }


def change_of(name: str) -> VersionChange | None:
    """Return what is known of a name that isn't there."""
    return packaged_changes().get(name)
