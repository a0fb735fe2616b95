"""Containers that are never started: their image isn't there, can't be fetched, or can't be mounted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from ddpdoctor.base.findings import FAIL, Finding, Fix, Owner
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.engine.log_traits import LogTraits
from ddpdoctor.facts.log import Log, LogLine, SignMatch


class StartTrouble(NamedTuple):
    """pattern: of what is said of it, in small letters. plain: the same as people say it."""

    pattern: str
    plain: str
    fix: Fix


REASONS: Final = (
    StartTrouble(
        r"\b401\b|\b403\b|unauthorized|access denied|access forbidden|authentication required|pull access denied",
        "its registry doesn't let you fetch the image, or has none of that name",
        Fix(
            "Check the image's name, and log in to its registry as the user who runs the job: docker login REGISTRY, apptainer registry login, "
            "in Kubernetes an imagePullSecret; for enroot and pyxis a line in this file",
            ("echo 'machine nvcr.io login $oauthtoken password YOUR_KEY' >> ~/.config/enroot/.credentials",),
        ),
    ),
    StartTrouble(
        r"toomanyrequests|rate limit|\b429\b",
        "its registry lets nobody fetch so much without a login",
        Fix("Log in to the registry, or fetch the image once and start the job from that file"),
    ),
    StartTrouble(
        r"no loop devices? available|loop device",
        "the node has no loop device left by which to mount the image",
        Fix(
            "See which are taken, and have the unused ones given back; or unpack the image once, which needs none",
            ("losetup -a", "apptainer build --sandbox image_dir image.sif"),
        ),
    ),
    StartTrouble(
        r"no space left|disk quota",
        "the disk is full to which the image is unpacked",
        Fix("Let it unpack elsewhere", ("export APPTAINER_TMPDIR=/scratch/$USER ENROOT_TEMP_PATH=/scratch/$USER",)),
    ),
    StartTrouble(
        r"not found|no such file|no such image|manifest unknown|\b404\b|failed to retrieve path",
        "there is no image of that name",
        Fix("Check the image's name, its tag or path, and whether the node sees that file", ("ls -l IMAGE",)),
    ),
)
SEE: Final = Fix(
    "Start the image by hand on that node, with the shortest command",
    (
        "srun --container-image=IMAGE true",
        "apptainer exec IMAGE true",
        "docker run --rm IMAGE true",
        "kubectl describe pod POD",
    ),
)


def _has_trained_since(one: SignMatch, log: Log) -> bool:
    """Whether it was another container's, or was started in another way: a training took its steps behind it."""
    return any(step is not None and step.order > one.line.order for step in (log.trains, log.steps, log.recurs))


@log_check("container-not-started", severity=FAIL, owner=Owner.USER, log=LogTraits(refuted=_has_trained_since))
def container_not_started(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """The container of the job isn't started: its image isn't there, can't be fetched, or can't be mounted.

    ## What breaks
    Nothing of the training runs. Apptainer ends with FATAL, Slurm's pyxis with "couldn't start container", docker with "Error response from
    daemon", and a pod stays in ErrImagePull or ImagePullBackOff.

    ## Why
    The image's name, tag or path is wrong, its registry wants a login that the job doesn't have, the node doesn't see that file system or has
    no way to the registry, or the node can't mount the image: no loop device, no user namespaces, a full disk.

    ## Fix
    Start the image alone on that node, as the user of the job: `apptainer exec IMAGE true`, `srun --container-image=IMAGE true`,
    `docker run --rm IMAGE true`, `kubectl describe pod POD`. Fetch it once before the job, and start the job from that file.
    """
    told = {line.order: line for match in seen for line in (*match.before, match.line, *match.after)}
    said = " ".join(line.text for line in told.values() if _is_of_it(line, seen)).lower()
    reason = next((reason for reason in REASONS if re.search(reason.pattern, said)), None)
    image = next((match.words["image"] for match in seen if match.words.get("image")), "")
    what = f"The container of {image} isn't started" if image else "The job's container isn't started"
    return Finding.of(f"{what}: {reason.plain}" if reason else what, reason.fix if reason else None, SEE)


def _is_of_it(line: LogLine, seen: Sequence[SignMatch]) -> bool:
    """Whether it is of the message: a line of a sign, or one of pyxis' that shows enroot's log."""
    return any(match.line == line for match in seen) or "pyxis: " in line.text
