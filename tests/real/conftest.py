"""Fixtures for tests that start real things."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nvml import FakeNvidia


@pytest.fixture
def short_path() -> Iterator[Path]:
    """As tmp_path, for what puts sockets there: their paths have 107 characters at most."""
    with tempfile.TemporaryDirectory(prefix="dd-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def fake_nvidia(tmp_path_factory: pytest.TempPathFactory) -> FakeNvidia:
    """Stand-ins for NVML and libcuda, compiled once a session."""
    return FakeNvidia(tmp_path_factory.mktemp("nvidia"))
