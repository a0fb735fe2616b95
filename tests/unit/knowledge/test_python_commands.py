"""Which Python ran, by a log, and what is typed to see what it has."""

from __future__ import annotations

import pytest

from ddpdoctor.knowledge.python_commands import python_of, versions_installed
from tests.support.logs_by_hand import read


def raised_in(*folders: str) -> str:
    frames = "".join(
        f'  File "{folder}/lib/python3.10/site-packages/engine/a.py", line 7, in f\n    g()\n' for folder in folders
    )
    return f"Traceback (most recent call last):\n{frames}KeyError: 'lr'\n"


@pytest.mark.parametrize(
    ("folders", "python"),
    [
        (["/opt/env"], "/opt/env/bin/python"),
        (["/home/ada/.local"], "python"),
        (["/home/ada/.local", "/opt/env"], "/opt/env/bin/python"),
        (["/home/ada/.local/share/env"], "/home/ada/.local/share/env/bin/python"),
    ],
)
def test_python_lies_beside_its_packages_but_not_beside_a_users_own(folders: list[str], python: str) -> None:
    assert python_of(read(raised_in(*folders))) == python


def test_releases_are_asked_for_by_pips_names() -> None:
    assert versions_installed("python", "cv2", "flash_attn", "numpy", "PIL") == (
        "python -m pip list | grep -iE 'opencv.python|flash.attn|numpy|pillow'"
    )
