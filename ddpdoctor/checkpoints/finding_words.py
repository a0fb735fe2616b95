"""Words that the findings on checkpoints have in common: how files, pins and loading are named, and which files are judged. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence

from ddpdoctor.base.findings import Evidence
from ddpdoctor.base.text import clip_middle, human, listed, plural
from ddpdoctor.engine.registry import requires
from ddpdoctor.facts.checkpoints import PICKLE, CheckpointFile, Checkpoints

NONE_NAMED = "no checkpoint was named (--checkpoint FILE)"

_MAX_EVIDENCE_FILES = 5
"""That are named one by one."""
_MAX_COMMAND_FILES = 20
"""That a command names one by one: in a folder there may be others, that nobody asked to have changed."""


def readable(checkpoints: Checkpoints) -> tuple[CheckpointFile, ...]:
    """The named files that could be read; call `all_read` when these are judged. NotApplicable is raised if none was named."""
    requires(checkpoints.files, NONE_NAMED)
    return tuple(file for file in checkpoints.files if not file.problem)


def is_dangerous(file: CheckpointFile) -> bool:
    """Whether it names something that is known to run commands or code: nobody is to be told to load it."""
    return any(name.dangerous for name in file.globals)


RANDOM_NUMBERS = ("rng_state", "random_states_")
"""How the files with random numbers of transformers' Trainer and of accelerate begin."""
_NOT_MAPPED = (*RANDOM_NUMBERS, "scheduler", "sampler", "scaler")
"""What these two load without map_location; there are no tensors of a device in it, as a rule."""
_ALLOWED = ("numpy.", "_codecs.encode")
"""What these two allow when they load random numbers."""


def is_mapped(file: CheckpointFile) -> bool:
    """Whether who loads it at a resume says where to: a device that isn't there stops nobody but a torch.load of one's own."""
    if file.loader in ("Lightning", "nobody"):
        return True
    return bool(file.loader) and not short(file.path).startswith(_NOT_MAPPED)


def is_let_pass(file: CheckpointFile) -> bool:
    """Whether who loads it at a resume allows what is in it, or nobody loads it."""
    if file.loader == "nobody":
        return True
    random = file.loader not in ("", "Lightning") and short(file.path).startswith(RANDOM_NUMBERS)
    return random and all(name.startswith(_ALLOWED) for name in file.weights_only_blockers)


def short(path: str, most: int = 40) -> str:
    """A file's name for a summary: without its folder, on one line, without its middle if it is long."""
    name = " ".join(path.rstrip("/").rpartition("/")[2].split()) or path
    return clip_middle(name, most)


def subject(files: Sequence[CheckpointFile]) -> str:
    """ "model.pt" or "12 files": the beginning of a summary."""
    return short(files[0].path) if len(files) == 1 else f"{len(files)} files"


def verb(files: Sequence[CheckpointFile], one: str, several: str) -> str:
    return one if len(files) == 1 else several


def paths(files: Sequence[CheckpointFile]) -> str:
    """The files for a shell. Of very many their folders, as fix-checkpoint takes these, too."""
    every = [file.path for file in files]
    folders = {path.rpartition("/")[0] for path in every}
    if len(every) > _MAX_COMMAND_FILES and "" not in folders:
        every = sorted(folders)
    return " ".join(shlex.quote(f"./{path}" if path.startswith("-") else path) for path in every)


def loading(file: CheckpointFile, arguments: str) -> str:
    """The Python call that loads it: torch.load("model.pt", map_location="cpu")."""
    function = "torch.jit.load" if file.kind == "torchscript" else "torch.load"
    return f"{function}({json.dumps(file.path, ensure_ascii=False)}, {arguments})"


def seen(files: Sequence[CheckpointFile], texts: Iterable[str], source: str = PICKLE) -> tuple[Evidence, ...]:
    """A line a file, of the first few, and how many more there are."""
    lines = [Evidence(f"{file.path}: {text}", source) for file, text in zip(files, texts, strict=True)]
    if len(lines) > _MAX_EVIDENCE_FILES:
        rest = len(lines) - _MAX_EVIDENCE_FILES + 1
        lines[_MAX_EVIDENCE_FILES - 1 :] = [Evidence(f"and {plural(rest, 'more file')} of the kind", source)]
    return tuple(lines)


def pins_of(file: CheckpointFile) -> str:
    """ "cuda:7 in 390 tensors (4.4 MiB), cpu in 127 tensors (12 KiB)"."""
    return listed((f"{pin.device} in {plural(pin.tensors, 'tensor')} ({human(pin.bytes)})" for pin in file.pins), 8)
