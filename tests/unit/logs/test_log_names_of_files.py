"""How a place in a run's output, and in the files into which torchrun lets the ranks write, is called."""

from __future__ import annotations

import pytest

from ddpdoctor.facts.log import LogFile
from ddpdoctor.logs.analyze.sightings import common_folder
from ddpdoctor.logs.render.document import name_files as named

RANKS = ("/tmp/torchelastic_x/r/attempt_0/0/stderr.log", "/tmp/torchelastic_x/r/attempt_0/1/stderr.log")


@pytest.mark.parametrize(
    ("names", "folder", "told"),
    [
        (
            ("output", *RANKS),
            "/tmp/torchelastic_x/r/attempt_0/",
            "output and 2 files in /tmp/torchelastic_x/r/attempt_0/",
        ),
        (("/home/ada/out", *RANKS), "/tmp/torchelastic_x/r/attempt_0/", "/home/ada/out and 2 files in /tmp"),
        (("/tmp/out", *RANKS), "/tmp/", "3 files in /tmp/"),
        (RANKS, "/tmp/torchelastic_x/r/attempt_0/", "2 files in /tmp"),
        (("/a/one", "/b/two"), "", "/a/one and /b/two"),
        (("/a/one",), "", "/a/one"),
    ],
)
def test_of_several_files_those_of_the_ranks_are_told_by_their_folder(
    names: tuple[str, ...], folder: str, told: str
) -> None:
    files = tuple(LogFile(name=one, bytes=2, lines=1) for one in names)
    assert common_folder(files) == folder
    assert named(files).startswith(told)
