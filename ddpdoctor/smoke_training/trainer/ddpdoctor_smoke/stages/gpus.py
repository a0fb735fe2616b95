"""Several GPUs in one process: a model over two of them, and copies between all pairs. Not run on GPUs yet."""

import socket
import zlib

from ddpdoctor_smoke.rank import NotHere, WrongOutcome, requires
from ddpdoctor_smoke.stages.comparing import deviation, gather_numbers, must_be_within, tell_all
from ddpdoctor_smoke.stages.training import (
    BATCH,
    data_of,
    gradients,
    model_of,
    number_type,
    own_batch,
    parallel,
    tolerance,
    within,
)

COPIED = 1024 * 1024
"""Numbers of four bytes."""


def model_split(worker):
    """A model whose layers are on two GPUs, in DDP: one step gives the gradients of one process with all batches; tolerance as
    there. Rank i takes its own GPU and the one as many places on as there are ranks that see the same GPUs. Not run on GPUs yet.

    Raises:
        NotHere: it can't be tested here.
    """
    requires(worker.on_gpu, "a model over two GPUs needs two GPUs a rank; these ranks run on the CPU")
    places = gpus_by_rank(worker)
    for rank, (view, gpus) in enumerate(places):
        ranks = sum(other == view for other, _ in places)
        if gpus < 2 * ranks:
            others = ", as do %d others of its host" % (ranks - 1) if ranks > 1 else ""
            fewer = "; to test it: ddpdoctor smoke --nproc %d" % (gpus // 2) if gpus > 1 else ""
            raise NotHere("needs two GPUs a rank: rank %d sees %d%s%s" % (rank, gpus, others, fewer))
    view, gpus = places[worker.rank]
    ranks = sum(other == view for other, _ in places)
    # Of a launcher a rank may have its own two or more, and be on any of them.
    other = worker.torch.device("cuda", (worker.device.index + ranks) % gpus)
    all_can_use(worker, [other])
    return split_over(worker, [worker.device, other])


def split_over(worker, devices):
    """The step, over these two devices."""
    torch = worker.torch
    x, y = (tensor.to(device=worker.device) for tensor in data_of(worker, BATCH * worker.world_size))
    whole = model_of(worker)
    torch.nn.functional.mse_loss(whole(x), y).backward()
    model = parallel(worker, split(worker, devices), "DistributedDataParallel() over %s and %s" % tuple(devices))
    worker.step("a step on both")
    x, y = own_batch(worker)
    found = model(x)
    torch.nn.functional.mse_loss(found, y.to(found.device)).backward()
    expected = [gradient.to(found.device) for gradient in gradients(whole)]
    got = [gradient.to(found.device) for gradient in gradients(model)]
    apart = gather_numbers(worker, "every rank's gradients", [deviation(got, expected)])[:, 0].tolist()
    words = "gradients of a model over two GPUs differ on %s from those of one process"
    must_be_within(tolerance(worker), apart, worker, words)
    return "%s and %s on rank %d, gradients of one process %s" % (*devices, worker.rank, within(worker))


def split(worker, devices):
    """The same model as elsewhere, its layers on two devices."""
    torch = worker.torch
    layers = model_of(worker)

    class Split(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self):
            super().__init__()
            self.first = layers[:2].to(devices[0])
            self.second = layers[2:].to(devices[1])

        def forward(self, x):
            return self.second(self.first(x.to(devices[0])).to(devices[1]))

    return Split().to(dtype=number_type(worker))


def p2p(worker):
    """Random numbers from each GPU to each other one, compared bit by bit. Of the ranks that see the same GPUs one does it for
    all of them, the others wait: it gets contexts on all of them, which is why this comes after the checkpoint. Not run on GPUs yet.

    Raises:
        WrongOutcome: a copy differs.
    """
    requires(worker.on_gpu, "copies between GPUs need two GPUs; these ranks run on the CPU")
    places = gpus_by_rank(worker)
    requires(max(gpus for _, gpus in places) > 1, "copies between GPUs need two GPUs that one rank sees")
    views = [view for view, _ in places]
    first = views.index(views[worker.rank]) == worker.rank and places[worker.rank][1] > 1
    devices = [worker.torch.device("cuda", number) for number in range(places[worker.rank][1])] if first else []
    all_can_use(worker, devices)
    told = copies(worker, devices) if first else ""
    results = tell_all(worker, "all copies between GPUs", told)
    wrong = [(rank, text[1:]) for rank, text in enumerate(results) if text.startswith("!")]
    if wrong:
        # No rank is to blame for what GPUs, or the way between them, do wrong.
        raise WrongOutcome("GPUs that rank %d sees: %s" % wrong[0])
    said = ["%s (rank %d)" % (text, rank) for rank, text in enumerate(results) if text]
    return said[0] + ("; %d more for other GPUs" % (len(said) - 1) if len(said) > 1 else "")


def copies(worker, devices):
    """Between all pairs, both ways. Words for the table; beginning with "!" where a copy differs."""
    torch = worker.torch
    dice = torch.Generator().manual_seed(2)
    pattern = torch.randint(-(2**31), 2**31 - 1, (COPIED,), generator=dice, dtype=torch.int32)
    wrong, direct, pairs = [], 0, 0
    for number, source in enumerate(devices):
        there = pattern.to(source)
        for target in devices[:number] + devices[number + 1 :]:
            worker.step("from %s to %s" % (source, target))
            here = torch.zeros(COPIED, dtype=torch.int32, device=target)
            here.copy_(there)
            pairs += 1
            direct += source.type == "cuda" and torch.cuda.can_device_access_peer(source, target)
            differing = int((here.cpu() != pattern).sum())
            if differing:
                wrong.append("%s to %s: %d of %d numbers differ" % (source, target, differing, COPIED))
    if wrong:
        return "!%s%s" % ("; ".join(wrong[:3]), "; and %d more pairs" % (len(wrong) - 3) if len(wrong) > 3 else "")
    return "%d copies of %d MiB, %d pair%s can use P2P" % (pairs, COPIED // 2**18, direct, "" if direct == 1 else "s")


def all_can_use(worker, devices):
    """Leave the stage untested where a rank can't use GPUs beside its own: in compute mode "exclusive process", or full of
    another job, they are no fault of training."""
    why = ""
    for device in devices:
        try:
            worker.torch.zeros(1, device=device)
        except RuntimeError as error:
            said = (str(error).splitlines() or [""])[0][:200]
            why = "%s can't be used by rank %d, too: %s" % (device, worker.rank, said)
            break
    reasons = [text for text in tell_all(worker, "which GPUs every rank can use", why) if text]
    requires(not reasons, "".join(reasons[:1]))


def gpus_by_rank(worker):
    """For each rank: a number that those have in common which see the same GPUs, and how many it sees. Where that can't be
    told, the stage is left untested."""
    count = worker.torch.cuda.device_count()
    name = " ".join([boot(), socket.gethostname(), *uuids(worker, count)])
    row = [zlib.crc32(name.encode("utf-8", "replace")), count, int(all(uuids(worker, count)))]
    rows = worker.gather("which GPUs every rank sees", worker.torch.tensor(row)).tolist()
    # The engine's ranks see the same ones.
    the_same = worker.order.get("launched") is None or worker.world_size == 1
    requires(
        the_same or all(known for _, _, known in rows),
        "this torch doesn't tell the GPUs' UUIDs, so that it can't be told which ranks share GPUs",
    )
    return [(view, gpus) for view, gpus, _ in rows]


def uuids(worker, count):
    """The UUIDs of the GPUs that this rank sees; "" for each where torch is too old."""
    return [str(getattr(worker.torch.cuda.get_device_properties(number), "uuid", "")) for number in range(count)]


def boot():
    """This start of this machine's kernel: containers of one machine share it, two machines of one name don't."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
