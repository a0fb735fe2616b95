"""Training for as long as the user asked for, and what every window of that time was like on this rank: for `--duration`."""

import os
import time
from contextlib import suppress

from ddpdoctor_smoke.rank import requires
from ddpdoctor_smoke.stages.scaling import ON_CPU, largest, model_of, synchronize

ON_GPU = {"width": 4096, "layers": 4, "batch": 8192}
"""More than where speed is measured: it is to make heat."""

WARM_UP = 3
"""Steps before any is timed."""
ROUND_SECONDS = 0.2
"""So long the ranks train between two agreements whether to go on."""
MIN_WINDOW_SECONDS, MAX_WINDOW_SECONDS = 0.25, 1.0
"""A rank tells of each window as it ends; ddpdoctor makes fewer of them."""
WINDOWS = 60
"""In a short burn-in."""

GO_ON, CLOSE_WINDOW, END = 0, 1, 2
"""What a rank is for; all do what the greatest of them says."""

PAGE = os.sysconf("SC_PAGE_SIZE")


class Window:
    """What a rank notes between two moments. own: seconds of each step that it needs for itself and waits for nobody in."""

    def __init__(self, began):
        self.began = began
        self.waited_before = core_wait()
        self.own = []

    def figures(self, now, first):
        """first: the moment when it all began."""
        ordered = sorted(self.own)
        waited = core_wait()
        share = -1.0
        if waited is not None and self.waited_before is not None:
            share = min(1.0, max(0.0, (waited - self.waited_before) / max(now - self.began, 1e-9)))
        return {
            "at": round(now - first, 2),
            "steps": round(len(ordered) / max(now - self.began, 1e-9), 3),
            "own": round(ordered[len(ordered) // 2], 6) if ordered else 0.0,
            "waited": round(share, 3),
            "memory": resident(),
        }


def burn_in(worker):
    """A step is two halves of a batch. In the first, in no_sync, a rank meets nobody: what it takes is the rank's own. All of it, with what
    DDP exchanges in the second one, is the job's throughput."""
    duration = worker.order.get("duration", 0.0)
    requires(duration > 0, "--duration was not asked for")
    train = trainer_of(worker)
    for _ in range(WARM_UP):
        train()
    began = time.monotonic()
    train()
    # All ranks go by the same figure, or they would not train as many steps.
    steps = max(1, int(ROUND_SECONDS / max(largest(worker, time.monotonic() - began), 1e-6)))
    length = min(max(MIN_WINDOW_SECONDS, duration / WINDOWS), MAX_WINDOW_SECONDS)
    first = time.monotonic()
    window, windows, done = Window(first), 0, 0
    while True:
        worker.step("training steps %d to %d" % (done + 1, done + steps))
        for _ in range(steps):
            own, waited = train(share=(time.monotonic() - first) / duration)
            # What others kept it from is no fault of its own.
            window.own.append(max(own - waited, 0.0))
        done += steps
        now = time.monotonic()
        wish = GO_ON if now - window.began < length else CLOSE_WINDOW
        if now - first >= duration or worker.channel.is_end_wanted:
            wish = END
        # What only rank 0's clock says, so that all windows are of the same steps; but each may be asked to end.
        wish = int(largest(worker, wish if worker.rank == 0 or worker.channel.is_end_wanted else GO_ON))
        now = time.monotonic()
        # The last one may be too short to tell anything, but all ranks tell of as many.
        if wish == CLOSE_WINDOW or (wish == END and not windows):
            worker.say(window=window.figures(now, first))
            window, windows = Window(now), windows + 1
        if wish == END:
            return "%d steps in %.0f s" % (done, now - first)


def trainer_of(worker):
    """Makes a function that takes one step; it gives the seconds of the rank's own half, and those of them in which it waited for a core."""
    torch = worker.torch
    shape = ON_GPU if worker.on_gpu else ON_CPU
    kind = torch.bfloat16 if worker.on_gpu and torch.cuda.is_bf16_supported() else torch.float32
    model = torch.nn.parallel.DistributedDataParallel(model_of(torch, shape).to(worker.device, kind))
    # So small that the numbers stay as they are: a GPU that works with zeros stays cool.
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    halves = torch.randn(2, shape["batch"] // 2, shape["width"], device=worker.device, dtype=kind)
    worker.say(figures={"burn_in_batch": shape["batch"]})

    def train(share=0.0):
        optimizer.zero_grad()
        if worker.on_gpu:
            synchronize(worker)
        waited, began = core_wait(), time.perf_counter()
        with model.no_sync():
            model(halves[0]).square().mean().backward()
        if worker.on_gpu:
            synchronize(worker)
        worker.faults.burden(share, time.perf_counter() - began)
        own = time.perf_counter() - began
        waited = 0.0 if waited is None else (core_wait() or waited) - waited
        model(halves[1]).square().mean().backward()
        optimizer.step()
        return own, waited

    return train


def core_wait():
    """Seconds for which this thread was ready to run and had no core so far; None where the kernel doesn't say."""
    with suppress(OSError, ValueError, IndexError), open("/proc/thread-self/schedstat") as file:
        return int(file.read().split()[1]) / 1e9
    return None


def resident():
    """Bytes of memory that this process holds now; 0 where the kernel doesn't say."""
    with suppress(OSError, ValueError, IndexError), open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE
    return 0
