"""Fixtures for tests that start real things."""

from __future__ import annotations

import pytest

from tests.real.nvml import FakeNvidia


@pytest.fixture(scope="session")
def fake_nvidia(tmp_path_factory: pytest.TempPathFactory) -> FakeNvidia:
    """Stand-ins for NVML and libcuda, compiled once a session."""
    return FakeNvidia(tmp_path_factory.mktemp("nvidia"))
