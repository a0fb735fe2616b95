"""What every test shares: the markers for what a machine may lack."""

from __future__ import annotations

import os
import shutil

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What a person's machine can't do is skipped there, by name; in CI it runs, and fails."""
    if os.environ.get("CI"):
        return
    for item in items:
        if item.get_closest_marker("root") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root (namespaces, mounts)"))
        for marker in item.iter_markers("tool"):
            for name in marker.args:
                if shutil.which(name) is None:
                    item.add_marker(pytest.mark.skip(reason=f"needs {name}"))
