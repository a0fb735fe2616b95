"""How fast the same training is, and an all_reduce: for `--scaling`, at one number of ranks each time."""
# mypy: allow-untyped-defs, allow-untyped-calls

import math
import time

from ddpdoctor_smoke.rank import NotHere

WARM_UP = 3
TRIAL = 3
FEWEST, MOST = 5, 200
SECONDS = 1.0
"""So long a measurement should take."""
OF_THE_LIMIT = 0.8
"""What measuring may take of the seconds of a stage: how long a larger message will take is but reckoned."""

ON_GPU = {"width": 4096, "layers": 4, "batch": 512}
ON_CPU = {"width": 512, "layers": 4, "batch": 64}
"""batch: samples a rank and step."""

KIB, MIB = 1024, 1024 * 1024
SIZES_ON_GPU = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB, 1024 * MIB)
SIZES_ON_CPU = (4 * KIB, 64 * KIB, MIB, 16 * MIB)
"""Bytes of float32."""


def scaling(one):
    """DDP at this number of ranks: figures samples_per_second and memory, of all ranks together."""
    torch = one.torch
    shape = ON_GPU if one.device.type == "cuda" else ON_CPU
    model = torch.nn.parallel.DistributedDataParallel(model_of(torch, shape).to(one.device))
    speed, memory = speed_of(one, model, shape["batch"])
    samples = speed * one.world_size
    tell(one, samples_per_second=round(samples, 2), memory=memory, batch=shape["batch"])
    return "%.0f samples/s" % samples


def data_parallel(one):
    """nn.DataParallel over as many GPUs as the order names, in this one process."""
    torch = one.torch
    gpus = one.order.gpus
    if torch.cuda.device_count() < gpus:
        raise NotHere("torch sees %d GPUs and not %d" % (torch.cuda.device_count(), gpus))
    model = torch.nn.DataParallel(model_of(torch, ON_GPU).to(one.device), device_ids=list(range(gpus)))
    speed, _ = speed_of(one, model, ON_GPU["batch"] * gpus)
    memory = max(torch.cuda.max_memory_reserved(gpu) for gpu in range(gpus))
    tell(one, samples_per_second=round(speed, 2), memory=memory, batch=ON_GPU["batch"])
    return "%.0f samples/s" % speed


def bandwidth(one):
    """all_reduce by message size: figures size (bytes) and bus (bytes a second, as nccl-tests count it); and `larger`, why there
    are no larger ones, where the time of a stage or a GPU's memory doesn't suffice for them."""
    if one.world_size < 2:
        raise NotHere("needs 2 ranks")
    torch, n = one.torch, one.world_size
    on_gpu = one.device.type == "cuda"
    best, seconds, before = 0.0, 0.0, 0
    began = time.monotonic()
    for size in SIZES_ON_GPU if on_gpu else SIZES_ON_CPU:
        # All ranks go by the same figures, here as well.
        left = one.order.seconds * OF_THE_LIMIT - most(one, time.monotonic() - began)
        needed = measuring(seconds * size / before) if before else 0.0
        if needed > left:
            tell(
                one,
                larger="for want of time: %s would take some %d s, and %d of a stage's %g s are left; a longer --timeout "
                "gives them more" % (in_words(size), math.ceil(needed), max(left, 0), one.order.seconds),
            )
            break
        if on_gpu and least(one, torch.cuda.mem_get_info(one.device)[0]) < 2 * size:
            tell(one, larger="for want of free GPU memory: %s needs twice as much" % in_words(size))
            break
        tensor = torch.zeros(size // 4, device=one.device)
        one.step("all_reduce of %d bytes, again and again" % size)
        seconds, before = seconds_of(one, lambda tensor=tensor: one.dist.all_reduce(tensor)), size
        bus = size / seconds * 2 * (n - 1) / n
        best = max(best, bus)
        tell(one, size=size, bus=round(bus))
        del tensor
    return "%.2f GB/s at best" % (best / 1e9)


def in_words(size):
    for unit, name in ((1024 * MIB, "GiB"), (MIB, "MiB")):
        if size >= unit:
            return "%d %s" % (size // unit, name)
    return "%d KiB" % (size // KIB)


def model_of(torch, shape):
    torch.manual_seed(0)
    layers = []
    for _ in range(shape["layers"]):
        layers += [torch.nn.Linear(shape["width"], shape["width"]), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)


def speed_of(one, model, batch):
    """Samples a second in this process, and the bytes that its GPU held at most (0 on CPU); both the worst of all ranks."""
    torch = one.torch
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    width = next(model.parameters()).shape[1]
    x = torch.randn(batch, width, device=one.device)

    def train():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    if one.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(one.device)
    one.step("training steps, again and again")
    seconds = seconds_of(one, train)
    memory = torch.cuda.max_memory_reserved(one.device) if one.device.type == "cuda" else 0
    return batch / seconds, int(most(one, memory))


def seconds_of(one, work):
    """Seconds that it takes on the slowest rank, once warm."""
    for _ in range(WARM_UP):
        work()
    # All ranks go by the same figure, or they would not repeat it as often.
    return most(one, timed(one, work, repeated(most(one, timed(one, work, TRIAL)))))


def repeated(seconds):
    """How often something that takes so long is measured."""
    return int(min(max(SECONDS / seconds, FEWEST), MOST))


def measuring(seconds):
    """Seconds that `seconds_of` takes for something that takes so long."""
    return seconds * (WARM_UP + TRIAL + repeated(seconds))


def timed(one, work, count):
    if one.device.type == "cuda":
        one.dist.barrier(device_ids=[one.device.index])
    else:
        one.dist.barrier()
    synchronize(one)
    began = time.perf_counter()
    for _ in range(count):
        work()
    synchronize(one)
    return (time.perf_counter() - began) / count


def synchronize(one):
    if one.device.type == "cuda":
        # DataParallel works on all of them.
        for gpu in range(one.order.get("gpus", 0)) or [one.device]:
            one.torch.cuda.synchronize(gpu)


def most(one, number):
    return agreed(one, number, one.dist.ReduceOp.MAX)


def least(one, number):
    return agreed(one, number, one.dist.ReduceOp.MIN)


def agreed(one, number, how):
    tensor = one.torch.tensor(float(number), dtype=one.torch.float64, device=one.device)
    one.dist.all_reduce(tensor, how)
    return tensor.item()


def tell(one, **figures):
    if one.rank == 0:
        one.say(figures=figures)
