"""A checkpoint: saved by one rank, loaded by all, each tensor where it belongs."""

import ctypes
import inspect
import os
from contextlib import suppress

from ddpdoctor_smoke.rank import WrongOutcome
from ddpdoctor_smoke.stages.comparing import blame, checksum, name_ranks, tell_all
from ddpdoctor_smoke.stages.training import train_once

NAME = "checkpoint.pt"


def checkpoint(worker):
    """Rank 0 saves model and optimizer into its folder; after a barrier all load the file with map_location, and only tensors
    (weights_only). Each tensor is on the rank's own device and equals rank 0's bit by bit.

    Where rank 0's folder isn't a rank's own, as on another host, the first of those who share one is sent rank 0's tensors and
    saves them there; the words say so. No rank loads a file that another user, or the network, could have made: a file can
    hold code, and tensors can't. On GPUs no rank may have got a context on a GPU that isn't its own by loading; the doctor is
    told on which ones each rank has one. GPU: not run on one yet.

    Raises:
        WrongOutcome: a rank has a wrong result.
    """
    torch = worker.torch
    run = train_once(worker)
    before = contexts(torch) if worker.on_gpu else None
    content = {"model": run.model.module.state_dict(), "optimizer": run.optimizer.state_dict()}
    sums = [checksum(torch, tensor) for tensor in tensors_of(content)]
    path, copied = save_checkpoint(worker, content)
    more = {"weights_only": True} if knows_weights_only(torch) else {}
    worker.step("torch.load")
    loaded = torch.load(path, map_location=worker.device, **more)
    elsewhere = misplaced(loaded, worker.device)
    run.model.module.load_state_dict(loaded["model"])
    run.optimizer.load_state_dict(loaded["optimizer"])
    elsewhere += misplaced(run.optimizer.state_dict(), worker.device)
    row = torch.tensor([sums, [checksum(torch, tensor) for tensor in tensors_of(loaded)]])
    judge(worker, worker.gather("checksums of what every rank loaded", row).tolist())
    told = "; ".join([*elsewhere[:3], *extra_contexts(worker, before)])
    places = enumerate(tell_all(worker, "where every rank's tensors are", told))
    wrong = [(rank, text) for rank, text in places if text]
    if wrong:
        raise WrongOutcome("rank %d: %s" % wrong[0], [rank for rank, _ in wrong])
    return "%d tensors on %s%s%s%s" % (
        len(sums),
        "%d ranks" % worker.world_size if worker.world_size > 1 else "one rank",
        ", weights_only" if more else "",
        "; %s loaded a copy, since rank 0's folder is not theirs" % name_ranks(copied) if copied else "",
        "; contexts could not be asked" if worker.on_gpu and before is None else "",
    )


def save_checkpoint(worker, content):
    """The file in this rank's folder; and the ranks for whom it isn't the one that rank 0 saved."""
    torch = worker.torch
    path = os.path.join(worker.folder, NAME)
    by_launcher = worker.order.get("launched") is not None
    own = worker.rank != 0 if by_launcher else worker.order.node_rank != 0
    copied = [
        rank
        for rank, (copy,) in enumerate(worker.gather("whose folder is rank 0's", torch.tensor([int(own)])).tolist())
        if copy
    ]
    if copied:
        tensors = [tensor.detach().clone().contiguous() for tensor in tensors_of(content)]
        tensors = [worker.collective("rank 0's tensors", "broadcast", tensor, 0) for tensor in tensors]
        content = with_tensors(content, iter(tensors))
    if by_launcher or worker.local_rank == 0:
        worker.step("torch.save")
        torch.save(content, path)
    worker.collective("barrier after saving", "barrier")
    return path, copied


def knows_weights_only(torch):
    """1.13 has it, and can't load a float with it."""
    return "weights_only" in inspect.signature(torch.load).parameters and not torch.__version__.startswith("1.")


def tensors_of(content):
    """All tensors in dicts and lists, in their order."""
    if hasattr(content, "data_ptr"):
        return [content]
    if isinstance(content, dict):
        content = content.values()
    elif not isinstance(content, (list, tuple)):
        return []
    return [tensor for part in content for tensor in tensors_of(part)]


def with_tensors(content, tensors):
    """The same with those in place of its own, in the order of `tensors_of`."""
    if hasattr(content, "data_ptr"):
        return next(tensors)
    if isinstance(content, dict):
        return {name: with_tensors(part, tensors) for name, part in content.items()}
    if isinstance(content, (list, tuple)):
        return [with_tensors(part, tensors) for part in content]
    return content


def misplaced(content, device):
    """The devices, in words, of tensors that aren't where they belong. The number of steps may stay on the CPU: torch's own
    optimizers keep it there."""
    found = {str(tensor.device) for tensor in tensors_of(content) if tensor.device != device and tensor.dim()}
    return ["loaded tensors are on %s and not on %s" % (where, device) for where in sorted(found)]


def judge(worker, rows):
    """rows: each rank's checksums by tensor, of what it has and of what it loaded."""
    written = rows[0][0]
    culprits = [rank for rank, (_, loaded) in enumerate(rows) if loaded != written]
    blame(culprits, worker, "what %s loaded isn't what rank 0 saved, bit by bit")


# --- GPUs: who holds a context where ----------------------------------------------------------------------------------


def extra_contexts(worker, before):
    """Tells the doctor; gives the contexts that this rank has got since then on GPUs that aren't its own, in words, if there
    are any. before: None where that can't be asked."""
    if before is None:
        return []
    held = contexts(worker.torch)
    worker.say(contexts=held)
    more = [gpu for gpu in held or () if gpu not in before and gpu != worker.device.index]
    return (
        ["loading made a context on GPU %d, which isn't its own: several hundred MiB there" % more[0]] if more else []
    )


def contexts(torch):
    """The GPUs, by torch's number, on which this process has a context: cuDevicePrimaryCtxGetState(3) of the driver. Asking
    makes none. None where libcuda can't be asked, as on ROCm."""
    with suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        found = []
        for number in range(torch.cuda.device_count()):
            device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
            if driver.cuDeviceGet(ctypes.byref(device), number):
                continue
            failed = driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
            if not failed and active.value:
                found.append(number)
        # This rank has one on its own GPU; a driver that knows of none speaks of others, as WSL's or a stub.
        return found or None
    return None
