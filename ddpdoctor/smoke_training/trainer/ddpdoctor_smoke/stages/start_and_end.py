"""From the import of torch to the process group, and the clean end."""

import gc
import os
from datetime import timedelta

from ddpdoctor_smoke.engine import FOR_RANKS, import_all

TORCH_EXTRA_SECONDS = 60.0
"""By which torch's own limits lie behind ddpdoctor's."""

STORE = "store"
"""The file's name."""


def import_torch(worker):
    if worker.order.get("hidden"):
        raise ImportError(worker.order.hidden)
    gc.disable()  # Until all is imported: see import_all.
    import torch
    import torch.distributed

    worker.torch, worker.dist = torch, torch.distributed
    worker.say(torch=torch.__version__)
    if not torch.distributed.is_available():
        raise RuntimeError("this torch is built without torch.distributed")
    # They are there already in a rank that was forked; else the time would be training's.
    import_all(FOR_RANKS)
    return torch.__version__


def set_device(worker):
    """This rank's GPU, with something on it; the CPU with gloo. GPU: not run on one yet.

    Raises:
        RuntimeError: torch can't be used like this.
    """
    torch = worker.torch
    # As a user has it who compares results; what forces TF32 upon torch stays, see `training.tolerance`.
    torch.backends.cuda.matmul.allow_tf32 = False
    if worker.backend != "nccl":
        worker.device = torch.device("cpu")
        return "cpu"
    if getattr(torch.cuda, "_is_in_bad_fork", bool)():
        raise RuntimeError(
            "CUDA was initialised before the ranks were forked, by a sitecustomize, a .pth file or a plugin of torch, and can't be"
            " used in a fork; start the ranks with torchrun: torchrun --nproc-per-node %d --no-python ddpdoctor smoke"
            % worker.order.get("nproc", 1)
        )
    number = worker.local_rank
    if worker.order.get("launched") is not None:
        # A launcher may let each rank see nothing but its own GPUs.
        number %= torch.cuda.device_count() or number + 1
    torch.cuda.set_device(number)
    worker.device = torch.device("cuda", number)
    torch.zeros(1, device=worker.device)
    torch.cuda.synchronize()
    name = "%s, %s" % (worker.device, torch.cuda.get_device_name(worker.device))
    worker.say(device=name)
    return name


def limit(worker, seconds):
    """The time that torch itself may wait: longer than ddpdoctor, which waits for so many seconds."""
    return timedelta(seconds=seconds + TORCH_EXTRA_SECONDS)


def rendezvous(worker):
    """The job's store: each rank writes its name there and reads the others'. Whoever comes first waits while they import
    torch and set their device; only then the stage's own time begins."""
    most = limit(worker, 2 * (worker.order.import_seconds + worker.order.seconds))
    worker.kept["store"] = store = store_of(worker, most)
    store.set("ddpdoctor/%d" % worker.rank, str(os.getpid()))
    for other in range(worker.world_size):
        worker.step("waiting at the store for rank %d" % other)
        store.get("ddpdoctor/%d" % other)


def store_of(worker, most):
    """That of the launcher or of the first host, on the network; on one host a file in our folder. Who can write to it could
    take a rank's place."""
    if not worker.order.alone:
        return next(
            iter(worker.dist.rendezvous("env://", rank=worker.rank, world_size=worker.world_size, timeout=most))
        )[0]
    store = worker.dist.FileStore(os.path.join(worker.folder, STORE), worker.world_size)
    store.set_timeout(most)
    return store


def process_group(worker):
    worker.step("init_process_group")
    store = worker.kept.pop("store")
    worker.dist.init_process_group(
        worker.backend,
        store=store,
        rank=worker.rank,
        world_size=worker.world_size,
        timeout=limit(worker, worker.order.seconds),
    )


def shut_down(worker):
    """A DDP object that dies after destroy_process_group hangs (torch 2.13 with gloo), so that all go before: also those in
    cycles, as DDP makes them."""
    worker.kept.clear()
    gc.collect()
    worker.collective("barrier before the end", "barrier")
    if worker.on_gpu:
        worker.torch.cuda.synchronize()
    worker.step("destroy_process_group")
    worker.dist.destroy_process_group()
