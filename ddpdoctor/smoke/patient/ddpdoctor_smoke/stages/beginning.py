"""From the import of torch to the process group."""
# mypy: allow-untyped-defs, allow-untyped-calls

import os
from datetime import timedelta

from ddpdoctor_smoke.orders import TORCH_WAITS


def import_torch(one):
    if one.order.get("hidden"):
        raise ImportError(one.order.hidden)
    import torch
    import torch.distributed

    one.torch, one.dist = torch, torch.distributed
    one.say(torch=torch.__version__)
    if not torch.distributed.is_available():
        raise RuntimeError("this torch is built without torch.distributed")
    return torch.__version__


def set_device(one):
    """This rank's GPU, with something on it; the CPU with gloo. GPU: not run on one yet."""
    torch = one.torch
    if one.backend != "nccl":
        one.device = torch.device("cpu")
        return "cpu"
    number = one.local_rank
    if one.order.get("launched") is not None and torch.cuda.device_count() == 1:
        # A launcher may let each rank see nothing but its own GPU.
        number = 0
    torch.cuda.set_device(number)
    one.device = torch.device("cuda", number)
    torch.zeros(1, device=one.device)
    torch.cuda.synchronize()
    name = "%s, %s" % (one.device, torch.cuda.get_device_name(one.device))
    one.say(device=name)
    return name


def limit(one):
    """What torch itself may wait: longer than the doctor."""
    return timedelta(seconds=one.order.seconds + TORCH_WAITS)


def rendezvous(one):
    """The job's store: each rank writes its name there and reads the others'."""
    store, _, _ = next(
        iter(one.dist.rendezvous("env://", rank=one.rank, world_size=one.world_size, timeout=limit(one)))
    )
    one.kept["store"] = store
    store.set("ddpdoctor/%d" % one.rank, str(os.getpid()))
    for other in range(one.world_size):
        one.step("waiting at the store for rank %d" % other)
        store.get("ddpdoctor/%d" % other)


def process_group(one):
    one.step("init_process_group")
    store = one.kept.pop("store")
    one.dist.init_process_group(one.backend, store=store, rank=one.rank, world_size=one.world_size, timeout=limit(one))
