"""Modules of the test extra that a person may lack; in CI they have to be there."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import pytest


def imported(name: str) -> Any:
    """The module. Where it isn't installed, CI fails; elsewhere the tests are skipped."""
    return import_module(name) if os.environ.get("CI") else pytest.importorskip(name)
