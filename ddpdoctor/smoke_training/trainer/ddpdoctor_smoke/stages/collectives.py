"""Collectives with known answers."""

from ddpdoctor_smoke.rank import WrongOutcome

SIZES = ((1, "4 B"), (1024, "4 KiB"), (1024 * 1024, "4 MiB"))
"""Elements of float32, and their size in words: small ones and large ones take other ways."""

MAX_SOURCES = 8
"""Ranks that broadcast in turn, from the first."""

ALONE = "with one rank nothing is exchanged"


def barrier(worker):
    worker.collective("barrier", "barrier")
    return how_many(worker)


def all_reduce(worker):
    for elements, size in SIZES:
        tensor = worker.torch.full((elements,), float(worker.rank + 1), device=worker.device)
        tensor = worker.collective("all_reduce of %s" % size, "all_reduce", tensor)
        must_be(tensor, worker.world_size * (worker.world_size + 1) // 2, "the sum over %d ranks" % worker.world_size)
    return how_many(worker)


def broadcast(worker):
    for source in range(min(worker.world_size, MAX_SOURCES)):
        tensor = worker.torch.full((1024,), float(worker.rank), device=worker.device)
        tensor = worker.collective("broadcast from rank %d" % source, "broadcast", tensor, source)
        must_be(tensor, source, "what rank %d sent" % source, [source])
    return how_many(worker)


def all_gather(worker):
    tensor = worker.torch.full((1024,), float(worker.rank), device=worker.device)
    for other, part in enumerate(worker.gather("all_gather of 4 KiB", tensor)):
        must_be(part, other, "what rank %d sent" % other, [other])
    return how_many(worker)


def how_many(worker):
    return "" if worker.world_size > 1 else ALONE


def must_be(tensor, number, what, culprits=()):
    least, most = tensor.min().item(), tensor.max().item()
    if least != number or most != number:
        got = "%g" % least if least == most else "%g to %g" % (least, most)
        raise WrongOutcome("%s should be %d and is %s" % (what, number, got), culprits)
