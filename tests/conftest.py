"""What every test shares: the markers for what a machine may lack."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import hypothesis
import pytest

from tests.support.other_users import NAMES, User, shared_folder, user

# How long one example takes is the machine's load to say; tests of speed measure it themselves.
hypothesis.settings.register_profile("ddpdoctor", deadline=None)
hypothesis.settings.load_profile("ddpdoctor")


def pytest_configure(config: pytest.Config) -> None:
    # Side by side (-n), files begin in the order below, not those of most tests first.
    config.option.loadscopereorder = False
    # By nohup, or in a script's background, these are ignored, and what is started here would ignore them, too.
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays until the end: to look for garbage among it would take a third of the time of collecting, and go on in the
    tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files begin first, so that none runs alone in the end. What a person's machine can't do is skipped there, by name; in CI it
    runs, and fails."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    if os.environ.get("CI"):
        return
    for item in items:
        if item.get_closest_marker("root") and (lacking := lacking_rights()):
            item.add_marker(pytest.mark.skip(reason=lacking))
        missing = [name for marker in item.iter_markers("tool") for name in marker.args if shutil.which(name) is None]
        if missing:
            item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(missing)}"))


@cache
def lacking_rights() -> str:
    """Why this user can't make namespaces, "" where they can; root in a container often can't."""
    if os.geteuid() != 0:
        return "needs root (namespaces, mounts)"
    tried = ["unshare", "--mount", "--net", "true"]
    if shutil.which(tried[0]) and subprocess.run(tried, capture_output=True).returncode:
        return "needs a root that may make namespaces (in Docker: --privileged)"
    return ""


@pytest.fixture
def ada() -> User:
    """Another user of this host, who has done nothing wrong. The test must be marked `root`."""
    return user(NAMES[0])


@pytest.fixture
def eve() -> User:
    """Another user of this host, who tries what she can. The test must be marked `root`."""
    return user(NAMES[1])


@pytest.fixture
def shared() -> Iterator[Path]:
    """A sticky folder that everybody may write to, as /tmp."""
    with shared_folder() as folder:
        yield folder
