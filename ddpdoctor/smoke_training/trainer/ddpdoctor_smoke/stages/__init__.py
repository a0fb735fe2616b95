"""The stages by name. Each is a function of a `rank.Worker`. It returns words for the table, or raises
NotHere, WrongOutcome, or any other error."""

from ddpdoctor_smoke.stages import (
    burning_in,
    checkpointing,
    collectives,
    fused,
    gpus,
    precision,
    sampling,
    scaling,
    start_and_end,
    training,
)

STAGES = {
    "import": start_and_end.import_torch,
    "device": start_and_end.set_device,
    "rendezvous": start_and_end.rendezvous,
    "process group": start_and_end.process_group,
    "barrier": collectives.barrier,
    "all_reduce": collectives.all_reduce,
    "broadcast": collectives.broadcast,
    "all_gather": collectives.all_gather,
    "sampler": sampling.sampler,
    "training": training.train,
    "one process": training.one_process,
    "accumulation": training.accumulation,
    "parameters": training.parameters,
    "sync_batchnorm": precision.sync_batchnorm,
    "amp": precision.amp,
    "checkpoint": checkpointing.checkpoint,
    "model split": gpus.model_split,
    "p2p": gpus.p2p,
    "apex": fused.apex,
    "shutdown": start_and_end.shut_down,
}
"""In the order in which they are run."""

FOR_SCALING = {
    "scaling": scaling.scaling,
    "bandwidth": scaling.bandwidth,
    "data parallel": scaling.data_parallel,
}
"""No part of the usual run."""

FOR_DURATION = {"burn-in": burning_in.burn_in}
"""Before the shutdown, where it was asked for."""
