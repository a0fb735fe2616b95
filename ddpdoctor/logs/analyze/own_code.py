"""Which calls of a log's tracebacks and stacks are the script's own: in nobody's library. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from sys import stdlib_module_names
from typing import Final

from ddpdoctor.facts.log import LogFrame
from ddpdoctor.knowledge.stack_places import PYTHONS_FOLDERS, WITHOUT_FOLDER
from ddpdoctor.logs.analyze.exceptions import with_slashes

_LIBRARIES: Final = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib(?:64)?/python\d[\d.]*)/|^<|/bin/[^/.]+$")
_OF_WINDOWS: Final = re.compile(
    r"(?:^|/)(?:lib/(?P<module>\w+)|scripts/[^/]+(?:\.exe(?:/.*)?|-script\.py)$)", re.IGNORECASE
)
"""Python's own modules lie in Lib itself there, where a script's may lie, too."""
_PY_SPYS: Final = (
    *PYTHONS_FOLDERS,
    *("torch/", "lightning/", "pytorch_lightning/", "lightning_fabric/", "accelerate/", "transformers/", "deepspeed/"),
)
"""py-spy leaves out the folders in which Python looks for modules."""


def own_frame(frames: Sequence[LogFrame]) -> LogFrame | None:
    """The innermost one that is in nobody's library."""
    return next((frame for frame in reversed(frames) if not is_of_library(frame.path)), None)


def is_of_library(path: str) -> bool:
    """Whether a file is of somebody's package, or Python's own."""
    if "\\" not in path:
        return bool(_LIBRARIES.search(path)) or path in WITHOUT_FOLDER or path.startswith(_PY_SPYS)
    path = with_slashes(path)
    if _LIBRARIES.search(path):
        return True
    found = _OF_WINDOWS.search(path)
    return bool(found and (not found["module"] or found["module"] in stdlib_module_names))
