"""From the import of torch to the process group."""
# mypy: allow-untyped-defs, allow-untyped-calls

import os
from datetime import timedelta

from ddpdoctor_smoke.engine import FOR_RANKS, import_all
from ddpdoctor_smoke.orders import TORCH_WAITS

STORE = "store"
"""The file's name."""


def import_torch(one):
    if one.order.get("hidden"):
        raise ImportError(one.order.hidden)
    import torch
    import torch.distributed

    one.torch, one.dist = torch, torch.distributed
    one.say(torch=torch.__version__)
    if not torch.distributed.is_available():
        raise RuntimeError("this torch is built without torch.distributed")
    # They are there already in a rank that was forked; else the time would be training's.
    import_all(FOR_RANKS)
    return torch.__version__


def set_device(one):
    """This rank's GPU, with something on it; the CPU with gloo. GPU: not run on one yet."""
    torch = one.torch
    # As a user has it who compares results; what forces TF32 upon torch stays, see `training.tolerance`.
    torch.backends.cuda.matmul.allow_tf32 = False
    if one.backend != "nccl":
        one.device = torch.device("cpu")
        return "cpu"
    if forked_after_cuda(torch):
        raise RuntimeError(
            "CUDA was initialised before the ranks were forked, by a sitecustomize, a .pth file or a plugin of torch, and can't be"
            " used in a fork; start the ranks with torchrun: torchrun --nproc-per-node %d --no-python ddpdoctor smoke"
            % one.order.get("nproc", 1)
        )
    number = one.local_rank
    if one.order.get("launched") is not None:
        # A launcher may let each rank see nothing but its own GPUs.
        number %= torch.cuda.device_count() or number + 1
    torch.cuda.set_device(number)
    one.device = torch.device("cuda", number)
    torch.zeros(1, device=one.device)
    torch.cuda.synchronize()
    name = "%s, %s" % (one.device, torch.cuda.get_device_name(one.device))
    one.say(device=name)
    return name


def forked_after_cuda(torch):
    """Whether torch will refuse to use CUDA for that."""
    return getattr(torch.cuda, "_is_in_bad_fork", bool)()


def limit(one, seconds):
    """What torch itself may wait: longer than the doctor, who waits for so long."""
    return timedelta(seconds=seconds + TORCH_WAITS)


def rendezvous(one):
    """The job's store: each rank writes its name there and reads the others'. Whoever comes first waits while they import
    torch and set their device; only then the stage's own time begins."""
    most = limit(one, 2 * (one.order.import_seconds + one.order.seconds))
    one.kept["store"] = store = store_of(one, most)
    store.set("ddpdoctor/%d" % one.rank, str(os.getpid()))
    for other in range(one.world_size):
        one.step("waiting at the store for rank %d" % other)
        store.get("ddpdoctor/%d" % other)


def store_of(one, most):
    """That of the launcher or of the first host, on the network; on one host a file in our folder. Who can write to it could
    take a rank's place."""
    if not one.order.alone:
        return next(iter(one.dist.rendezvous("env://", rank=one.rank, world_size=one.world_size, timeout=most)))[0]
    store = one.dist.FileStore(os.path.join(one.folder, STORE), one.world_size)
    store.set_timeout(most)
    return store


def process_group(one):
    one.step("init_process_group")
    store = one.kept.pop("store")
    one.dist.init_process_group(
        one.backend, store=store, rank=one.rank, world_size=one.world_size, timeout=limit(one, one.order.seconds)
    )
