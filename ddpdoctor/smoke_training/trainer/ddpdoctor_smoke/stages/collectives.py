"""Collectives with known answers."""
# mypy: allow-untyped-defs, allow-untyped-calls

from ddpdoctor_smoke.rank import WrongOutcome

SIZES = ((1, "4 B"), (1024, "4 KiB"), (1024 * 1024, "4 MiB"))
"""Elements of float32, and their size in words: small ones and large ones take other ways."""

MOST_SOURCES = 8
"""Ranks that broadcast in turn, from the first."""

ALONE = "with one rank nothing is exchanged"


def barrier(one):
    one.collective("barrier", "barrier")
    return how_many(one)


def all_reduce(one):
    for elements, size in SIZES:
        tensor = one.torch.full((elements,), float(one.rank + 1), device=one.device)
        tensor = one.collective("all_reduce of %s" % size, "all_reduce", tensor)
        must_be(tensor, one.world_size * (one.world_size + 1) // 2, "the sum over %d ranks" % one.world_size)
    return how_many(one)


def broadcast(one):
    for source in range(min(one.world_size, MOST_SOURCES)):
        tensor = one.torch.full((1024,), float(one.rank), device=one.device)
        tensor = one.collective("broadcast from rank %d" % source, "broadcast", tensor, source)
        must_be(tensor, source, "what rank %d sent" % source, [source])
    return how_many(one)


def all_gather(one):
    tensor = one.torch.full((1024,), float(one.rank), device=one.device)
    for other, part in enumerate(one.gather("all_gather of 4 KiB", tensor)):
        must_be(part, other, "what rank %d sent" % other, [other])
    return how_many(one)


def how_many(one):
    return "" if one.world_size > 1 else ALONE


def must_be(tensor, number, what, culprits=()):
    least, most = tensor.min().item(), tensor.max().item()
    if least != number or most != number:
        got = "%g" % least if least == most else "%g to %g" % (least, most)
        raise WrongOutcome("%s should be %d and is %s" % (what, number, got), culprits)
