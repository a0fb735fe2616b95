"""The checks that `--select` and `--ignore` leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddpdoctor.api.errors import UsageError

if TYPE_CHECKING:
    from ddpdoctor.engine.registry import Check


def selected_checks(chosen: Sequence[str], ignored: Sequence[str]) -> tuple[Check, ...]:
    """The checks that `--select` and `--ignore` leave.

    Raises:
        UsageError: a name is no check's and no family's, or none is left.
    """
    from ddpdoctor.checks.catalogue import select
    from ddpdoctor.engine.registry import UnknownSelection

    try:
        checks = select(_names(chosen), _names(ignored))
    except UnknownSelection as error:
        raise UsageError(str(error)) from error
    if not checks:
        raise UsageError("--select and --ignore leave no check")
    return checks


def _names(values: Sequence[str]) -> list[str]:
    names = [name.strip() for value in values for name in value.split(",") if name.strip()]
    if values and not names:
        raise UsageError("--select or --ignore is empty; is the variable in it set?")
    return names
