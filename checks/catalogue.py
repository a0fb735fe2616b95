"""All checks, as the index lists them, and those that somebody chooses among them. A module is imported when its checks are needed."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache

import msgspec

import ddpdoctor.checks as package
from ddpdoctor.base.log_signs import LogSign
from ddpdoctor.base.tables import read_table
from ddpdoctor.engine.registry import (
    PRESCRIPTIONS,
    REGISTERED,
    Catalogue,
    Check,
    CheckListing,
    UnknownSelection,
    as_written,
    nearest_names,
)


@cache
def packaged_signs() -> dict[str, tuple[LogSign, ...]]:
    """The log signs of all checks, by slug: what the files `*.signs.toml` say, as `python -m tests.regenerate` writes it."""
    return read_table(package.__name__, "log_signs.json", dict[str, tuple[LogSign, ...]])


@cache
def _import_all() -> None:
    """Import every module, whatever the index lists."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    REGISTERED.drop_missing()


@cache
def _list_checks() -> None:
    """List the checks of the index, which `python -m tests.regenerate` writes: a command needs the modules of few."""
    REGISTERED.read_signs, REGISTERED.import_all = packaged_signs, _import_all
    try:
        index = read_table(package.__name__, "index.json", dict[str, tuple[CheckListing, ...]])
    except (OSError, msgspec.DecodeError):
        # It only saves time.
        _import_all()
        return
    for module, listings in index.items():
        REGISTERED.announce(f"{package.__name__}.{module}", listings)


def all_prescriptions() -> tuple[Check, ...]:
    """Every topic for which there is a prescription."""
    catalogue().import_all()
    return tuple(PRESCRIPTIONS.values())


def all_checks() -> tuple[Check, ...]:
    """Every check, by family, file, and place in the file, whatever was imported first."""
    return catalogue().checks


def catalogue() -> Catalogue:
    """All checks, to be handed to whatever asks for them."""
    _list_checks()
    return REGISTERED


def select(chosen: Iterable[str] = (), ignored: Iterable[str] = ()) -> tuple[Check, ...]:
    """The checks that are chosen (all, if nothing is) and not ignored, by slug or family.

    Raises:
        UnknownSelection: a name is neither.
    """
    checks = all_checks()
    names = {check.slug for check in checks} | {check.family for check in checks}
    chosen, ignored = tuple(chosen), tuple(ignored)
    for name in sorted({*chosen, *ignored}):
        if as_written(name) not in names:
            raise UnknownSelection(name, nearest_names(name, names))
    chosen, ignored = set(map(as_written, chosen)), set(map(as_written, ignored))
    return tuple(
        check
        for check in checks
        if (not chosen or {check.slug, check.family} & chosen) and not {check.slug, check.family} & ignored
    )
