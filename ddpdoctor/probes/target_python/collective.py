"""Runs in the target Python as one rank: the job's real store, a process group, an all_reduce of 4 B and one of 4 MiB.

    python collective.py ORDER

ORDER is a JSON object: word, backend, master, port, rank, world_size, seconds. What happens goes to the standard output
as JSON objects, each between two `word`s: {"stage": ...} when a stage begins, so that whoever kills this knows where it
hung, and {"ok": true}, {"absent": ...} or {"error": ...} at the end. `seconds` is when it will be killed: torch's own limits
end a little before that, so that torch can say what it waited for. Standard library and the target Python's torch (2.0 or later)
only, Python >= 3.8.

With NCCL the rank takes the first visible GPU. That part has been run on no GPU yet; with gloo all of it has.
"""
# mypy: allow-untyped-defs, allow-untyped-calls

import sys

# A training script doesn't see this file's folder, and nothing in there may stand in for a module of the library.
if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]

import json
import os
import signal
import time
from contextlib import suppress
from datetime import timedelta

# torch may put something else in place of sys.stdout, or print into it.
ANSWERS = os.dup(1)
BEGAN = time.monotonic()
ORDER = json.loads(sys.argv[1])

MARGIN = 2.0
"""Seconds before the end at which torch's own limits run out."""

# If the caller was killed, nobody else ends what hangs here. Unlike a thread's, this clock needs no GIL.
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.alarm(int(ORDER["seconds"]) + 5)


class WrongResult(Exception):
    """A collective that ended and gave a wrong result."""


class NotAvailable(Exception):
    """Something that would be tested isn't there."""


def tell(**facts):
    """Write one object, in one write, so that nothing gets between."""
    os.write(ANSWERS, (ORDER["word"] + json.dumps(facts) + ORDER["word"] + "\n").encode("ascii"))


def begin(stage):
    tell(stage=stage, at=round(time.monotonic() - BEGAN, 3))


def left():
    """Time that torch may wait."""
    return timedelta(seconds=max(1.0, ORDER["seconds"] - MARGIN - (time.monotonic() - BEGAN)))


def prepare():
    """The settings of one rank of a job over these nodes, and the path that a script started here would have."""
    os.environ.update(
        MASTER_ADDR=ORDER["master"],
        MASTER_PORT=str(ORDER["port"]),
        RANK=str(ORDER["rank"]),
        WORLD_SIZE=str(ORDER["world_size"]),
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="1",
    )
    # torchrun's agent serves its own ranks, and this isn't one of them.
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    sys.argv[:] = [""]
    # Bytecode of another user's files would be left behind under our name.
    sys.dont_write_bytecode = sys.dont_write_bytecode or os.stat(sys.prefix).st_uid != os.geteuid()
    if not getattr(sys.flags, "safe_path", False):
        # A working folder that is gone is none.
        with suppress(OSError):
            sys.path.insert(0, os.getcwd())


def import_torch():
    begin("import")
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise NotAvailable("torch is not installed") from error
        raise
    import torch.distributed

    if not torch.distributed.is_available():
        raise NotAvailable("this torch is built without torch.distributed")
    if not getattr(torch.distributed, "is_%s_available" % ORDER["backend"], lambda: True)():
        raise NotAvailable("this torch is built without %s" % ORDER["backend"])
    return torch


def run():
    prepare()
    torch = import_torch()
    dist = torch.distributed
    if ORDER["backend"] == "nccl":
        if not torch.cuda.is_available():
            raise NotAvailable("torch finds no usable GPU")
        torch.cuda.set_device(0)

    begin("store")
    store, rank, world_size = next(iter(dist.rendezvous("env://", timeout=left())))

    begin("group")
    # With NCCL the connections are made by the first collective.
    dist.init_process_group(ORDER["backend"], store=store, rank=rank, world_size=world_size, timeout=left())

    for stage, elements in (("all_reduce of 4 B", 1), ("all_reduce of 4 MiB", 1024 * 1024)):
        begin(stage)
        reduce(torch, elements, world_size)

    begin("end")
    # Without it the first to leave may cut off the others.
    dist.barrier()
    tell(ok=True)


def reduce(torch, elements, world_size):
    """All-reduce ones, as float32: every element must come to the number of ranks.

    Raises:
        WrongResult: it doesn't.
    """
    numbers = torch.ones(elements, device="cuda" if ORDER["backend"] == "nccl" else "cpu")
    torch.distributed.all_reduce(numbers)
    least, most = numbers.min().item(), numbers.max().item()
    if least != world_size or most != world_size:
        found = "%g" % least if least == most else "%g to %g" % (least, most)
        raise WrongResult("wrong sum: %s instead of %d" % (found, world_size))


def words(error):
    """Type and message; not the stack of C++ that torch puts behind it."""
    message = str(error).split("\nException raised from ", 1)[0]
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    text = " ".join(lines)[:1000]
    return text if isinstance(error, (WrongResult, NotAvailable)) else "%s: %s" % (type(error).__name__, text)


def main():
    try:
        run()
    except NotAvailable as error:
        tell(absent=words(error))
    except BaseException as error:
        tell(error=words(error))
    # torch may hang or crash while it takes down what it has built up.
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


main()
