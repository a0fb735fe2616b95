"""With which tool of torch a script uses several GPUs, and how they talk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.base.findings import INFO, WARN, Finding, Fix, Owner
from ddpdoctor.checks.script.fix_code import FixCode, fix_with, statement_of
from ddpdoctor.checks.script.script_facts import FORMS_GROUP, at, reached, require_distributed, set_argument
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.script import LibraryCall, OriginKind, Role, Script

_NEW_GROUP: Final = "torch.distributed.new_group"
_APEX: Final = "apex.parallel.DistributedDataParallel"


@check("data-parallel", severity=INFO, owner=Owner.USER)
def data_parallel(script: Script) -> Iterator[Finding]:
    """nn.DataParallel is used where DistributedDataParallel is faster.

    ## What breaks
    Nothing. It is slower, GPU 0 is fuller than the others, and there is no way to a second host.

    ## Why
    One process drives all GPUs: Python runs for one of them at a time, and in each iteration the model is copied to the others and the
    outputs are brought back to GPU 0.

    ## Fix
    One process a GPU, by torchrun and DistributedDataParallel.
    """
    requires(script.path, "no training script was named")
    requires(not any(script.with_role(*FORMS_GROUP, Role.ENGINE, Role.SPAWN)), "the script has a distributed mode, too")
    for call in reached(script, Role.DATA_PARALLEL):
        if not _is_one_device(call):
            yield Finding.of(
                "nn.DataParallel drives all GPUs from one process: DistributedDataParallel is faster",
                at(call.place, "wrapped"),
                _one_process_a_gpu(script, call),
                place=call.place,
            )
            return


def _one_process_a_gpu(script: Script, call: LibraryCall) -> Fix:
    text = "Start one process a GPU (torchrun --nproc-per-node=8 train.py), and wrap the model so in each"
    model, code = call.argument("module", 0), FixCode(script, call.place)
    if model is None or not model.text.replace(".", "").isidentifier():
        return Fix(text.replace("so in each", "in each by DistributedDataParallel"))
    wrap = code.name("torch.nn.parallel.DistributedDataParallel")
    return Fix(
        text,
        code.lines(
            f"local_rank = {code.local_rank}",
            f"{model.text} = {wrap}({model.text}.to(local_rank), device_ids=[local_rank])",
        ),
    )


def _is_one_device(call: LibraryCall) -> bool:
    devices = call.argument("device_ids", 1)
    return devices is not None and any(origin.text == "[]" and len(origin.parts) == 1 for origin in devices.origins)


@check("backend-for-device", severity=WARN, owner=Owner.USER)
def backend_for_device(script: Script) -> Iterator[Finding]:
    """The process group is gloo's, and the model is on GPUs.

    ## What breaks
    Nothing. The gradients take the way over the host's memory and its network stack, many times slower than NCCL's over NVLink or
    InfiniBand.

    ## Why
    gloo is made for tensors on the CPU: those of GPUs it copies to the host first.

    ## Fix
    `init_process_group("nccl")`; with "cuda:nccl,cpu:gloo" tensors on the CPU go through gloo, as before.
    """
    require_distributed(script)
    groups = list(script.with_role(Role.PROCESS_GROUP))
    backends = [group.argument("backend", 0) for group in groups]
    if not groups or not all(backend and backend.is_constant("'gloo'") for backend in backends):
        return
    requires(not any(call.name == _NEW_GROUP for call in script.calls), "the script forms groups of its own")
    wraps = list(reached(script, Role.WRAP))
    if wraps and all(_is_on_gpu(wrap) for wrap in wraps):
        yield Finding.of(
            "The gradients of a model on GPUs go through gloo, by the host's memory",
            at(groups[0].place, "the process group"),
            at(wraps[0].place, "the model is on a GPU"),
            fix_with(
                "Let NCCL do it",
                statement_of(groups[0], set_argument(groups[0], "backend", '"cuda:nccl,cpu:gloo"', 0)),
                groups[0].place,
            ),
            place=groups[0].place,
        )


def _is_on_gpu(wrap: LibraryCall) -> bool:
    """Whether the wrapped model is on a GPU whatever the options say; Apex wraps no other."""
    devices = wrap.argument("device_ids", 1)
    return wrap.name == _APEX or (
        devices is not None
        and bool(devices.origins)
        and all(origin.kind is OriginKind.MADE_OF and origin.text == "[]" for origin in devices.origins)
    )
