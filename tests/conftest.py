"""What every test shares: the root marker, and a terminal that is the same everywhere."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without root, what needs it is skipped on a person's machine; in CI it runs, and fails."""
    if os.geteuid() == 0 or os.environ.get("CI"):
        return
    for item in items:
        if item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason="needs root (namespaces, mounts)"))
