"""What a script does outside of the training: files that it fetches, runs that it tells of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.base.findings import INFO, WARN, Finding, Fix, Owner, Severity
from ddpdoctor.checks.script.fix_code import FixCode, fix_with, statement_of
from ddpdoctor.checks.script.script_facts import (
    at,
    deepspeed_engines,
    is_one_rank_first,
    knows_rank,
    lets_through,
    may_be_on_some_ranks,
    reached,
    require_distributed,
    require_seen,
    require_several_processes,
    starts_ranks,
)
from ddpdoctor.engine.registry import check
from ddpdoctor.facts.script import LibraryCall, Ranks, Role, Script

_WAITING: Final = (Ranks.NOT_ZERO, Ranks.NOT_LOCAL_ZERO)
_FIRST: Final = (Ranks.ZERO, Ranks.LOCAL_ZERO)
_WRITERS: Final = ("torch.utils.tensorboard.SummaryWriter", "tensorboardX.SummaryWriter")
_ENDS: Final = ("return", "yield", "raise")
"""How statements begin behind which the next one doesn't come at once."""
_SWITCHED_BY: Final = ("group", "mode", "disabled")
"""Arguments of wandb.init and its like by which a script knows of several ranks."""


@check(
    "download-by-every-rank",
    severity=WARN,
    owner=Owner.USER,
    explains=("user-code-error",),
)
def download_by_every_rank(script: Script) -> Iterator[Finding]:
    """All ranks of a host fetch the same file to the same path at once.

    ## What breaks
    On a host that has the files all is well. On a new one, a rank unpacks the archive that another is still writing: "File not found or
    corrupted", a broken image in the middle of the epoch, or every rank fetches it again.

    ## Why
    The data sets of torchvision, `urlretrieve` and the like look whether the file is there, and write it in place; nothing keeps
    two processes apart.

    ## Fix
    The first rank of each host goes ahead, the others wait for it and find the files.
    """
    require_several_processes(script)
    require_seen(script, "fetches files", Role.DOWNLOAD, Role.DATA_SET)
    for call in reached(script, Role.DOWNLOAD, Role.DATA_SET):
        if _downloads(call) and not may_be_on_some_ranks(call) and not _is_in_turn(script, call):
            yield _fetched_at_once(
                script, call, WARN if Role.DATA_SET in call.roles and _share_a_host(script) else INFO
            )


def _downloads(call: LibraryCall) -> bool:
    wish = call.argument("download")
    is_told = Role.DOWNLOAD in call.roles or (wish is not None and wish.is_constant("True"))
    return is_told and not any(knows_rank(argument.value) for argument in call.arguments)


def _share_a_host(script: Script) -> bool:
    """Whether it is certain that several ranks run on one host."""
    if "LOCAL_RANK" in script.read_settings or starts_ranks(script) or any(script.with_role(Role.SET_DEVICE)):
        return True
    return any(wrap.argument("device_ids", 1) for wrap in script.with_role(Role.WRAP)) or any(deepspeed_engines(script))


def _is_in_turn(script: Script, call: LibraryCall) -> bool:
    """Whether one rank goes first: by a context manager, a barrier for the others before it, or a call of its own."""
    if is_one_rank_first(call):
        return True
    for earlier in script.calls[: call.number]:
        if Role.COLLECTIVE in earlier.roles and lets_through(earlier.conditions, *_WAITING):
            return True
        if earlier.name == call.name and lets_through(earlier.conditions, *_FIRST):
            return True
    return False


def _fetched_at_once(script: Script, call: LibraryCall, severity: Severity) -> Finding:
    return Finding.of(
        f"All ranks of a host may fetch and unpack the same files at once: {call.method}",
        at(call.place, "fetched by every rank"),
        _in_turn(script, call),
        severity=severity,
        place=call.place,
    )


def _in_turn(script: Script, call: LibraryCall) -> Fix:
    text = "Let the first rank of each host fetch it, while the others wait; they find the files then"
    code, statement = FixCode(script, call.place), statement_of(call)
    barrier = f"{code.name('torch.distributed.barrier')}()"
    if not statement or statement[0].startswith(_ENDS):
        return Fix(f"{text}. Before {call.place} all but them call {barrier}, behind it they do")
    rank = code.local_rank
    return Fix(text, code.lines(f"if {rank} != 0:", f"    {barrier}", *statement, f"if {rank} == 0:", f"    {barrier}"))


@check("logger-on-every-rank", severity=WARN, owner=Owner.USER)
def logger_on_every_rank(script: Script) -> Iterator[Finding]:
    """Every rank starts a run of its own in wandb, MLflow or the like.

    ## What breaks
    One training of eight GPUs shows up as eight runs, of which seven are the same or empty; each sends its metrics over the network.
    Of TensorBoard, which has a file for each process in one folder, the curves of all ranks are drawn as one, going back and forth.

    ## Why
    `wandb.init` knows nothing of ranks: each process that calls it opens a run.

    ## Fix
    Start the run, and log, on rank 0 alone; or give all ranks the same `group=`.
    """
    require_distributed(script)
    require_seen(script, "opens a run of a logger", Role.LOGGER)
    for call in reached(script, Role.LOGGER):
        if may_be_on_some_ranks(call) or call.unpacks or _is_told_of_ranks(script, call):
            continue
        is_writer = call.name in _WRITERS
        what = "writes TensorBoard files to the same folder" if is_writer else f"opens a run of its own by {call.name}"
        yield Finding.of(
            f"Every rank {what}",
            at(call.place, "called by every rank"),
            fix_with("Call it on rank 0 alone, and whatever logs to it", _on_rank_0(script, call), call.place),
            severity=INFO if is_writer else WARN,
            place=call.place,
        )


def _on_rank_0(script: Script, call: LibraryCall) -> tuple[str, ...]:
    code = FixCode(script, call.place)
    return code.block(f"if {code.rank} == 0:", statement_of(call))


def _is_told_of_ranks(script: Script, call: LibraryCall) -> bool:
    if any(argument.name in _SWITCHED_BY or knows_rank(argument.value) for argument in call.arguments):
        return True
    return any(setting.name.startswith("WANDB_") for setting in script.settings)
