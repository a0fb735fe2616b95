"""Collectives with known answers."""
# mypy: allow-untyped-defs, allow-untyped-calls

from ddpdoctor_smoke.rank import Wrong

SIZES = ((1, "4 B"), (1024, "4 KiB"), (1024 * 1024, "4 MiB"))
"""Elements of float32, and their size in words: small ones and large ones take other ways."""


def run(one, op, tensor, **more):
    """The collective that was announced; a fault makes it another one."""
    return getattr(one.dist, op)(tensor, **more)


def barrier(one):
    one.step("barrier")
    one.dist.barrier()


def all_reduce(one):
    for elements, size in SIZES:
        tensor = one.torch.full((elements,), float(one.rank + 1), device=one.device)
        tensor = one.step("all_reduce of %s" % size, tensor, "all_reduce")
        one.dist.all_reduce(tensor)
        must_be(tensor, one.world_size * (one.world_size + 1) / 2, "the sum over %d ranks" % one.world_size)


def broadcast(one):
    for source in range(one.world_size):
        tensor = one.torch.full((1024,), float(one.rank), device=one.device)
        tensor = one.step("broadcast from rank %d" % source, tensor, "broadcast")
        one.dist.broadcast(tensor, source)
        must_be(tensor, source, "what rank %d sent" % source)


def all_gather(one):
    tensor = one.torch.full((1024,), float(one.rank), device=one.device)
    tensor = one.step("all_gather of 4 KiB", tensor, "all_gather")
    found = [one.torch.empty_like(tensor) for _ in range(one.world_size)]
    one.dist.all_gather(found, tensor)
    for other, part in enumerate(found):
        must_be(part, other, "what rank %d sent" % other)


def must_be(tensor, number, what):
    least, most = tensor.min().item(), tensor.max().item()
    if least != number or most != number:
        got = "%g" % least if least == most else "%g to %g" % (least, most)
        raise Wrong("%s should be %g and is %s" % (what, number, got))
