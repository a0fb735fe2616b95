"""The speed of the same training, and of an all_reduce: for `--scaling`, at one number of ranks each time."""

import math
import time

from ddpdoctor_smoke.rank import requires

WARM_UP = 3
TRIAL = 3
MIN_REPETITIONS, MAX_REPETITIONS = 5, 200
SECONDS = 1.0
"""So long a measurement should take."""
SHARE_OF_LIMIT = 0.8
"""The part of a stage's seconds that measuring may take: how long a larger message will take is but reckoned."""

ON_GPU = {"width": 4096, "layers": 4, "batch": 512}
ON_CPU = {"width": 512, "layers": 4, "batch": 64}
"""batch: samples a rank and step."""

KIB, MIB = 1024, 1024 * 1024
SIZES_ON_GPU = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB, 1024 * MIB)
SIZES_ON_CPU = (4 * KIB, 64 * KIB, MIB, 16 * MIB)
"""Bytes of float32."""


def scaling(worker):
    """DDP at this number of ranks: figures samples_per_second and memory, of all ranks together."""
    torch = worker.torch
    shape = ON_GPU if worker.device.type == "cuda" else ON_CPU
    model = torch.nn.parallel.DistributedDataParallel(model_of(torch, shape).to(worker.device))
    speed, memory = speed_of(worker, model, shape["batch"])
    samples = speed * worker.world_size
    tell(worker, samples_per_second=round(samples, 2), memory=memory, batch=shape["batch"])
    return "%.0f samples/s" % samples


def data_parallel(worker):
    """nn.DataParallel over as many GPUs as the order names, in this one process."""
    torch = worker.torch
    gpus = worker.order.gpus
    requires(torch.cuda.device_count() >= gpus, "torch sees %d GPUs and not %d" % (torch.cuda.device_count(), gpus))
    model = torch.nn.DataParallel(model_of(torch, ON_GPU).to(worker.device), device_ids=list(range(gpus)))
    speed, _ = speed_of(worker, model, ON_GPU["batch"] * gpus)
    memory = max(torch.cuda.max_memory_reserved(gpu) for gpu in range(gpus))
    tell(worker, samples_per_second=round(speed, 2), memory=memory, batch=ON_GPU["batch"])
    return "%.0f samples/s" % speed


def bandwidth(worker):
    """all_reduce by message size: figures size (bytes) and bus (bytes a second, as nccl-tests count it); and `larger`, why there
    are no larger ones, where the time of a stage or a GPU's memory doesn't suffice for them."""
    requires(worker.world_size > 1, "needs 2 ranks")
    torch, n = worker.torch, worker.world_size
    on_gpu = worker.device.type == "cuda"
    best, seconds, before = 0.0, 0.0, 0
    began = time.monotonic()
    for size in SIZES_ON_GPU if on_gpu else SIZES_ON_CPU:
        # All ranks go by the same figures, here as well.
        left = worker.order.seconds * SHARE_OF_LIMIT - largest(worker, time.monotonic() - began)
        needed = seconds_to_measure(seconds * size / before) if before else 0.0
        if needed > left:
            tell(
                worker,
                larger="for want of time: %s would take some %d s, and %d of a stage's %g s are left; a longer --timeout "
                "gives them more" % (in_words(size), math.ceil(needed), max(left, 0), worker.order.seconds),
            )
            break
        if on_gpu and smallest(worker, torch.cuda.mem_get_info(worker.device)[0]) < 2 * size:
            tell(worker, larger="for want of free GPU memory: %s needs twice as much" % in_words(size))
            break
        tensor = torch.zeros(size // 4, device=worker.device)
        worker.step("all_reduce of %d bytes, again and again" % size)
        seconds, before = seconds_of(worker, lambda tensor=tensor: worker.dist.all_reduce(tensor)), size
        bus = size / seconds * 2 * (n - 1) / n
        best = max(best, bus)
        tell(worker, size=size, bus=round(bus))
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


def speed_of(worker, model, batch):
    """Samples a second in this process, and the bytes that its GPU held at most (0 on CPU); both the worst of all ranks."""
    torch = worker.torch
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    width = next(model.parameters()).shape[1]
    x = torch.randn(batch, width, device=worker.device)

    def train():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    if worker.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(worker.device)
    worker.step("training steps, again and again")
    seconds = seconds_of(worker, train)
    memory = torch.cuda.max_memory_reserved(worker.device) if worker.device.type == "cuda" else 0
    return batch / seconds, int(largest(worker, memory))


def seconds_of(worker, work):
    """Seconds that it takes on the slowest rank, once warm."""
    for _ in range(WARM_UP):
        work()
    # All ranks go by the same figure, or they would not repeat it as often.
    return largest(
        worker, seconds_a_time(worker, work, repetitions(largest(worker, seconds_a_time(worker, work, TRIAL))))
    )


def repetitions(seconds):
    """The number of times that something that takes so long is measured."""
    return int(min(max(SECONDS / seconds, MIN_REPETITIONS), MAX_REPETITIONS))


def seconds_to_measure(seconds):
    """Seconds that `seconds_of` takes for something that takes so long."""
    return seconds * (WARM_UP + TRIAL + repetitions(seconds))


def seconds_a_time(worker, work, count):
    if worker.device.type == "cuda":
        worker.dist.barrier(device_ids=[worker.device.index])
    else:
        worker.dist.barrier()
    synchronize(worker)
    began = time.perf_counter()
    for _ in range(count):
        work()
    synchronize(worker)
    return (time.perf_counter() - began) / count


def synchronize(worker):
    if worker.device.type == "cuda":
        # DataParallel works on all of them.
        for gpu in range(worker.order.get("gpus", 0)) or [worker.device]:
            worker.torch.cuda.synchronize(gpu)


def largest(worker, number):
    return reduce_number(worker, number, worker.dist.ReduceOp.MAX)


def smallest(worker, number):
    return reduce_number(worker, number, worker.dist.ReduceOp.MIN)


def reduce_number(worker, number, how):
    tensor = worker.torch.tensor(float(number), dtype=worker.torch.float64, device=worker.device)
    worker.dist.all_reduce(tensor, how)
    return tensor.item()


def tell(worker, **figures):
    if worker.rank == 0:
        worker.say(figures=figures)
