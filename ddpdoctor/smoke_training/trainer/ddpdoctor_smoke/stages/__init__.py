"""The stages by name. Each is a function of a `rank.Worker`. It returns words for the table, or raises
NotHere, WrongOutcome, or any other error."""

from ddpdoctor_smoke.stages import (
    beginning,
    checkpointing,
    collectives,
    ending,
    fused,
    gpus,
    precision,
    sampling,
    scaling,
    training,
)

STAGES = {
    "import": beginning.import_torch,
    "device": beginning.set_device,
    "rendezvous": beginning.rendezvous,
    "process group": beginning.process_group,
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
    "shutdown": ending.shut_down,
}
"""In the order in which they are run."""

FOR_SCALING = {
    "scaling": scaling.scaling,
    "bandwidth": scaling.bandwidth,
    "data parallel": scaling.data_parallel,
}
"""No part of the usual run."""
