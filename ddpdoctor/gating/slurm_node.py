"""Drains this node of Slurm and takes that back, by scontrol: under our own prefix, and never over what somebody else has noted."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.text import one_line
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.gating.outcome import GateOutcome
from ddpdoctor.probes.programs import DEFAULT_PATH, find_program
from ddpdoctor.probes.subprocesses import run

PREFIX: Final = "ddpdoctor: "
FOLDERS: Final = f"{DEFAULT_PATH}:/usr/sbin:/opt/slurm/bin"
"""Where scontrol lies; Slurm's own programs are started without a PATH."""
SCONTROL_SECONDS: Final = 10.0
MAX_REASON_BYTES: Final = 256
SUMMARY_BYTES: Final = 24
"""Of a reason: kept for what it is; the rest is for the names of checks."""
NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""One node: scontrol also takes `ALL`, and lists in brackets."""
UNTOUCHED_STATES: Final = ("REBOOT", "POWER", "FUTURE")
"""In which Slurm itself does something with the node."""
SKIPPING_WORD: Final = "skip_checks"
"""In the comment of a job that wants no checks before it, as soperator has it."""

_STATE: Final = re.compile(r"^[ \t]*State=(\S+)", re.MULTILINE)
_REASON: Final = re.compile(r"^[ \t]*Reason=(.*?)(?: \[[^\[\]]*@[^\[\]]*\])?$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^[ \t]*Comment=(.*)$", re.MULTILINE)
_OUR_REASON: Final = re.compile(
    re.escape(PREFIX) + r"[a-z]+(?:, [a-z]+)*: (?P<slugs>[a-z0-9-]+(?:, [a-z0-9-]+)*)(?P<more> and \d+ more)?: "
)


class NodeState(msgspec.Struct, frozen=True):
    """What Slurm says of a node. words: "IDLE", "DRAIN"; reason: "" where there is none."""

    words: tuple[str, ...]
    reason: str

    @property
    def is_drained(self) -> bool:
        return "DRAIN" in self.words

    @property
    def is_in_slurms_hands(self) -> bool:
        """Whether Slurm itself does something with it."""
        return any(word.startswith(UNTOUCHED_STATES) for word in self.words)

    @property
    def drained_for(self) -> tuple[str, ...]:
        """The checks for which we have drained it; none where the reason isn't ours, to the letter."""
        found = _OUR_REASON.match(self.reason)
        return tuple(found["slugs"].split(", ")) if found and self.is_drained else ()

    @property
    def hides_checks(self) -> bool:
        """Whether our reason had no room for the names of all checks."""
        found = _OUR_REASON.match(self.reason)
        return bool(found and found["more"])


class ScontrolAnswer(msgspec.Struct, frozen=True):
    """What scontrol printed; why_failed: "" where it did as it was told."""

    text: str = ""
    why_failed: str = ""


def read_node_state(text: str) -> NodeState | None:
    """Read what `scontrol show node` prints of one node."""
    state, reason = _STATE.search(text), _REASON.search(text)
    if state is None:
        return None
    words = re.split(r"[+*~#!%$@^-]+", state[1])
    return NodeState(tuple(word for word in words if word), reason[1].strip() if reason else "")


def reason_for(outcome: GateOutcome, kept: Sequence[str] = ()) -> str:
    """The reason with which a node is drained. kept: checks for which it was drained before, and which still hold it."""
    # Here and not above: the table has no need of Slurm.
    from ddpdoctor.gating.dialects import cut

    slugs = (*outcome.slugs, *kept)
    owners = ", ".join(dict.fromkeys(concern.owner.value for concern in outcome.failures))
    for count in range(len(slugs), 0, -1):
        more = f" and {len(slugs) - count} more" if count < len(slugs) else ""
        names = f"{PREFIX}{owners}: {', '.join(slugs[:count])}{more}: "
        if len(names) <= MAX_REASON_BYTES - SUMMARY_BYTES:
            break
    return cut(names + one_line(outcome.failures[0].summary), MAX_REASON_BYTES)


def mark_node(
    outcome: GateOutcome, environ: Mapping[str, str], *, not_judged: Collection[str], until: float
) -> tuple[str, ...]:
    """Drain this node where the gate is closed, and take that back where it is open again.

    Args:
        outcome: what the gate came to; without a verdict nothing is done.
        environ: names the node (SLURMD_NODENAME).
        not_judged: checks of which this pass says nothing: what they have drained stays so.
        until: by the monotonic clock.
    Returns:
        What was done, or left undone and why, in words; nothing where there was nothing to do.
    """
    if outcome.verdict == "unknown":
        return ()
    name = environ.get("SLURMD_NODENAME", "")
    if not NODE_NAME.fullmatch(name) or name.upper() == "ALL":
        return ("nothing was drained or undrained: SLURMD_NODENAME doesn't name this node",)
    node = _ask(name, environ, until)
    if isinstance(node, Unknown):
        return (f"nothing was drained or undrained: {node.reason}",)
    if outcome.verdict == "fail":
        return _drain(name, node, outcome, not_judged, environ, until)
    return _undrain(name, node, outcome, not_judged, environ, until)


def _drain(
    name: str,
    node: NodeState,
    outcome: GateOutcome,
    not_judged: Collection[str],
    environ: Mapping[str, str],
    until: float,
) -> tuple[str, ...]:
    if node.reason and not _OUR_REASON.match(node.reason):
        return (f"{name} was not drained: its reason is somebody else's: {node.reason}",)
    if node.is_in_slurms_hands or (node.is_drained and not node.reason):
        return (f"{name} was not drained: it is {'+'.join(node.words)} already",)
    kept = [slug for slug in _holding(node, outcome, not_judged) if slug not in outcome.slugs]
    # What isn't named there would be forgotten with a new reason.
    if node.is_drained and (node.hides_checks or set(node.drained_for) == {*outcome.slugs, *kept}):
        return (f"{name} is drained already",)
    reason = reason_for(outcome, kept)
    told = _scontrol(("update", f"NodeName={name}", "State=DRAIN", f"Reason={reason}"), environ, until)
    return (f"{name} could not be drained: {told.why_failed}" if told.why_failed else f"{name} was drained",)


def _undrain(
    name: str,
    node: NodeState,
    outcome: GateOutcome,
    not_judged: Collection[str],
    environ: Mapping[str, str],
    until: float,
) -> tuple[str, ...]:
    if reason := _why_not_undrained(name, node, outcome, not_judged):
        return (f"{name} stays drained: {reason}",) if node.is_drained else ()
    # Not RESUME, which would also bring back a node that is down.
    told = _scontrol(("update", f"NodeName={name}", "State=UNDRAIN"), environ, until)
    return (f"{name} could not be undrained: {told.why_failed}" if told.why_failed else f"{name} was undrained",)


def _why_not_undrained(name: str, node: NodeState, outcome: GateOutcome, not_judged: Collection[str]) -> str:
    if not node.drained_for:
        return node.reason or "no reason is given"
    if node.is_in_slurms_hands:
        return f"it is {'+'.join(node.words)}"
    if node.hides_checks:
        return f"its reason doesn't name all checks; undrain it yourself: scontrol update NodeName={name} State=UNDRAIN"
    holding = _holding(node, outcome, not_judged)
    found = [slug for slug in holding if slug in outcome.told_slugs]
    unseen = [slug for slug in holding if slug not in found]
    return "; ".join(
        f"this pass {words} {', '.join(slugs)}"
        for words, slugs in (("still finds", found), ("says nothing of", unseen))
        if slugs
    )


def _holding(node: NodeState, outcome: GateOutcome, not_judged: Collection[str]) -> tuple[str, ...]:
    """The checks for which we have drained it that haven't healed: they find something still, as a warning or another owner's, too,
    or say nothing."""
    return tuple(slug for slug in node.drained_for if slug in not_judged or slug in outcome.told_slugs)


def job_skips_checks(environ: Mapping[str, str], until: float) -> bool:
    """Whether the comment of the job, if Slurm names one, asks for no checks. It is asked for by scontrol where the environment
    lacks it; no answer is no."""
    job = environ.get("SLURM_JOB_ID", "")
    comment = environ.get("SLURM_JOB_COMMENT")
    if comment is None and job.isdecimal():
        told = _scontrol(("show", "job", job), environ, until)
        found = None if told.why_failed else _COMMENT.search(told.text)
        comment = found[1] if found else ""
    return SKIPPING_WORD in re.split(r"[\s,;]+", comment or "")


def _ask(name: str, environ: Mapping[str, str], until: float) -> Maybe[NodeState]:
    told = _scontrol(("show", "node", name), environ, until)
    node = None if told.why_failed else read_node_state(told.text)
    return node or Unknown(f"scontrol doesn't tell the state of {name}: {told.why_failed or one_line(told.text)}")


def _scontrol(arguments: tuple[str, ...], environ: Mapping[str, str], until: float) -> ScontrolAnswer:
    program = find_program("scontrol", f"{environ.get('PATH', '')}:{FOLDERS}")
    if program is None:
        return ScontrolAnswer(why_failed="there is no scontrol")
    seconds = min(SCONTROL_SECONDS, max(0.1, until - time.monotonic()))
    ended = run((program, *arguments), seconds, environ=environ)
    if ended.ok:
        return ScontrolAnswer(ended.text)
    said = one_line(ended.stderr.decode("utf-8", "replace") or ended.text)
    return ScontrolAnswer(why_failed=ended.why_no_answer(seconds) or said or f"exit code {ended.returncode}")
