"""One rank, from its first word to its last: the stages in their order, each announced, each ended with a word."""

import os
import sys
import time
from contextlib import suppress
from typing import Any

from ddpdoctor_smoke.faults import Faults
from ddpdoctor_smoke.report_channel import ReportChannel, die_with_the_parent


class NotHere(Exception):
    """Raised by a stage: it can't be run here, and why. All ranks must come to the same."""


def requires(given, why):
    """Leave the stage untested unless something is given.

    Raises:
        NotHere: it isn't; why.
    """
    if not given:
        raise NotHere(why)


class WrongOutcome(Exception):
    """Raised by a stage: it ended with a wrong result. culprits: the ranks that caused it; all ranks should agree on them."""

    def __init__(self, text, culprits=()):
        super().__init__(text)
        self.culprits = list(culprits)


class Worker:
    """A rank as the stages work with it: its numbers, the modules torch and dist, its device (set by the stage "device"), its order."""

    def __init__(self, order, channel):
        self.order = order
        self.channel = channel
        launched = order.get("launched")
        self.rank = int(os.environ["RANK"]) if launched is None else launched["rank"]
        self.local_rank = int(os.environ["LOCAL_RANK"]) if launched is None else launched["local_rank"]
        self.world_size = int(os.environ["WORLD_SIZE"]) if launched is None else order.world_size
        self.backend = order.backend
        self.folder = order.folder
        self.faults = Faults(order.get("fault"), self)
        self.torch: Any = None
        self.dist: Any = None
        self.device: Any = None
        self.stage = ""
        self.kept = {}
        """Things that one stage leaves to a later one: name to object. Emptied before the process group is destroyed."""

    @property
    def on_gpu(self):
        """Since the stage "device"."""
        return self.device.type == "cuda"

    def step(self, words, calls=""):
        """Says what comes next within the stage. calls: a collective with type and shape, as `call_of` writes it, so that ranks
        which differ are found."""
        if self.dist is not None and self.dist.is_initialized() and self.faults.one_too_many():
            self.collective(words, "all_reduce", self.torch.ones(1, device=self.device))
        self.channel.say(step=words, calls=calls)
        self.faults.called()

    def collective(self, words, op, tensor=None, *more):
        """Announces and calls dist.`op`(tensor, *more), or dist.`op`() without a tensor. Gives the tensor."""
        wanted, (op, tensor) = op, self.faults.instead(op, tensor)
        if op != wanted:
            more = (0,) if op == "broadcast" else ()
        self.step(words, call_of(op, tensor))
        if tensor is not None:
            getattr(self.dist, op)(tensor, *more)
        elif self.on_gpu:
            getattr(self.dist, op)(device_ids=[self.device.index])
        else:
            getattr(self.dist, op)()
        return tensor

    def gather(self, words, tensor):
        """Announces and calls an all_gather. Gives every rank's tensor, stacked in the order of the ranks, on the CPU."""
        tensor = tensor.to(self.device).contiguous()
        op, tensor = self.faults.instead("all_gather", tensor)
        self.step(words, call_of(op, tensor))
        found = [self.torch.empty_like(tensor) for _ in range(self.world_size)]
        if op == "all_gather":
            self.dist.all_gather(found, tensor)
        else:
            getattr(self.dist, op)(tensor)
        return self.torch.stack(found).cpu()

    def say(self, **facts):
        """Report facts beside the stages'."""
        self.channel.say(**facts)


def run_rank(order):
    """Run one rank to its end. It must return, or raise: the engine waits for ever for a process that simply ends.

    Raises:
        SystemExit: it has failed.
    """
    die_with_the_parent()
    rank = order.launched["rank"] if order.get("launched") else int(os.environ["RANK"])
    channel = ReportChannel(order.channel, rank)
    channel.end_when_unwatched()
    channel.take_output()
    prepare()
    worker = Worker(order, channel)
    from ddpdoctor_smoke.stages import FOR_DURATION, FOR_SCALING, STAGES

    stages = {**STAGES, **FOR_DURATION, **FOR_SCALING}

    for name in order.stages:
        try:
            run_stage(worker, name, stages[name])
        except BaseException as error:
            channel.say(
                stage=name,
                state="failed",
                error=words_of(error),
                wrong=isinstance(error, WrongOutcome),
                culprits=getattr(error, "culprits", []),
                stack=stack_of(error),
                memory=most_memory(),
            )
            # Not the exception itself: its traceback holds the stage's tensors, and DDP objects that die late may hang.
            raise SystemExit(1) from None
    channel.say(finished=True, memory=most_memory())


def run_stage(worker, name, stage):
    worker.stage = name
    began = time.monotonic()
    worker.channel.say(stage=name, state="begun")
    worker.faults.begin()
    try:
        words, state = stage(worker) or "", "passed"
    except NotHere as reason:
        words, state = str(reason), "not tested"
    worker.channel.say(stage=name, state=state, seconds=round(time.monotonic() - began, 4), words=words)


def call_of(op, tensor):
    """ "all_reduce float32[1048576]"."""
    return op if tensor is None else "%s %s%s" % (op, str(tensor.dtype)[6:], list(tensor.shape))


def prepare():
    """Give the rank what a training script started here would find: its path, and torch's own number of threads."""
    if not getattr(sys.flags, "safe_path", False):
        with suppress(OSError):
            cwd = os.getcwd()
            if cwd not in sys.path[:1]:
                sys.path.insert(0, cwd)
    sys.argv[:] = [""]
    # torchrun sets it, too; one thread is enough, and resolving C++ addresses for a message may take torch minutes.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCH_DISABLE_ADDR2LINE", "1")
    # Bytecode of another user's files would be left behind under our name.
    sys.dont_write_bytecode = sys.dont_write_bytecode or os.stat(sys.prefix).st_uid != os.geteuid()


def words_of(error):
    """The type and message of an error, without the stack of C++ that torch puts behind it."""
    message = str(error).split("\nException raised from ", 1)[0]
    text = " ".join(line.strip() for line in message.splitlines() if line.strip())[:1000]
    return text if isinstance(error, (WrongOutcome, NotHere)) else "%s: %s" % (type(error).__name__, text)


def stack_of(error):
    """The places of the calls in which an error was raised, the innermost first: "all_reduce (torch/distributed/distributed_c10d.py:2810)"."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)[-12:]
    return ["%s (%s:%d)" % (frame.name, short(frame.filename), frame.lineno or 0) for frame in reversed(frames)]


def short(path):
    """The path from its package on."""
    for folder in ("site-packages/", "dist-packages/"):
        if folder in path:
            return path.rpartition(folder)[2]
    return "/".join(path.rsplit("/", 2)[-2:])


def most_memory():
    """Bytes that this process held at most; 0 where the kernel doesn't say."""
    with suppress(OSError, ValueError, IndexError), open("/proc/self/status") as status:
        return int(status.read().partition("VmHWM:")[2].split()[0]) * 1024
    return 0
