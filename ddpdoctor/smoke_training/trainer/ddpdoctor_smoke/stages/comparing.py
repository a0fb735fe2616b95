"""Comparison of the ranks' values, and agreement on who is wrong: each sees all ranks' values and comes to the same."""

from collections import Counter

from ddpdoctor_smoke.rank import WrongOutcome

MAX_NAMED_RANKS = 8
TEXT_BYTES = 400


def odd_ones(values):
    """The ranks whose value isn't the most frequent one. Where there are as many of two kinds, as with two ranks that differ,
    the kind of the lowest rank is the reference, rank 0's among them.

    values: one a rank, hashable.
    """
    counts = Counter(values)
    most = max(counts.values())
    reference = next(value for value in values if counts[value] == most)
    return [rank for rank, value in enumerate(values) if value != reference]


def not_all(culprits, world_size):
    """Nobody is to blame for what all have in common."""
    return culprits if len(culprits) < world_size else []


def name_ranks(ranks):
    """ "rank 3", "ranks 1 and 3", "all ranks"."""
    if not ranks:
        return "all ranks"
    words = [str(rank) for rank in ranks[:MAX_NAMED_RANKS]]
    if len(ranks) > MAX_NAMED_RANKS:
        return "ranks %s and %d more" % (", ".join(words), len(ranks) - MAX_NAMED_RANKS)
    if len(words) == 1:
        return "rank " + words[0]
    return "ranks %s and %s" % (", ".join(words[:-1]), words[-1])


def how_known(world_size):
    """Why those and not the others."""
    return "rank 0 counts as right where two differ" if world_size == 2 else "most ranks agree with each other"


def deviation(found, expected):
    """The largest difference between two lists of tensors, in parts of the largest number that was expected in that tensor;
    tensors of nearly nothing are measured by a thousandth of the largest number of all. Infinite where one isn't finite."""
    sizes = [float(tensor.detach().abs().max()) if tensor.numel() else 0.0 for tensor in expected]
    least = max(sizes) / 1000
    worst = 0.0
    for tensor, other, size in zip(found, expected, sizes):
        if not tensor.numel():
            continue
        difference = float((tensor.detach() - other.detach()).abs().max())
        scale = max(size, least)
        part = difference / scale if scale else (0.0 if difference == 0.0 else float("inf"))
        worst = max(worst, part) if part == part else float("inf")
    return worst


def beyond(values, tolerance):
    """Ranks whose deviation is more than that, or isn't a number."""
    return [rank for rank, value in enumerate(values) if not value <= tolerance]


def blame(culprits, worker, words):
    """Fail where there are culprits. words: with %s for their names.

    Raises:
        WrongOutcome: there are.
    """
    if culprits:
        culprits = not_all(culprits, worker.world_size)
        raise WrongOutcome(words % name_ranks(culprits), culprits)


def must_be_within(tolerance, apart, worker, words):
    """Blame the ranks whose deviation is larger. apart: by rank; words: as for `blame`."""
    blame(
        beyond(apart, tolerance), worker, "%s by %.2g of the largest; %g are allowed" % (words, max(apart), tolerance)
    )


def gather_numbers(worker, words, numbers):
    """Every rank's numbers, as float64: [rank, number]."""
    return worker.gather(words, worker.torch.tensor(numbers, dtype=worker.torch.float64))


def checksum(torch, tensor):
    """A number of its bits and their places: two tensors that differ anywhere give different ones, all but surely. Without
    overflow for up to 65536 elements; beyond, it wraps around."""
    same_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bits = tensor.detach().reshape(-1).contiguous().view(same_size).to(torch.int64)
    places = torch.arange(1, bits.numel() + 1, device=bits.device, dtype=torch.int64)
    return int((bits % 2147483647 * (places * 7919 % 65537 + 1)).sum())


def tell_all(worker, words, text):
    """Every rank's text, by rank, cut to TEXT_BYTES."""
    torch = worker.torch
    data = text.encode("utf-8", "replace")[:TEXT_BYTES]
    row = torch.zeros(TEXT_BYTES, dtype=torch.uint8)
    if data:
        row[: len(data)] = torch.tensor(list(data), dtype=torch.uint8)
    rows = worker.gather(words, row)
    return [bytes(found.tolist()).rstrip(b"\0").decode("utf-8", "ignore") for found in rows]
