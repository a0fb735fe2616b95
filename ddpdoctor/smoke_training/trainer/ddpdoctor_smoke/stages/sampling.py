"""The samples on which each rank trains."""

from ddpdoctor_smoke.rank import WrongOutcome, requires
from ddpdoctor_smoke.stages.comparing import how_known, name_ranks, odd_ones

SEED = 0
WRONG_SEED = 1
EPOCHS = 2
SAMPLES_PER_RANK = 8
"""Samples a rank and epoch, in the stage "sampler"."""


def sampler_of(worker, samples):
    """This rank's sampler, as training uses it. samples: anything with a length."""
    from torch.utils.data import DistributedSampler, SequentialSampler

    if worker.faults.wanted("sampler"):
        return SequentialSampler(samples)
    seed = WRONG_SEED if worker.faults.wanted("seed") else SEED
    return DistributedSampler(samples, num_replicas=worker.world_size, rank=worker.rank, seed=seed)


def shares(world_size, samples, seed=SEED):
    """The indices of each rank in each epoch, as DistributedSampler gives them: [epoch][rank]."""
    from torch.utils.data import DistributedSampler

    samplers: list[DistributedSampler] = [
        DistributedSampler(samples, num_replicas=world_size, rank=rank, seed=seed) for rank in range(world_size)
    ]
    found: list[list[list[int]]] = []
    for epoch in range(EPOCHS):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        found.append([list(sampler) for sampler in samplers])
    return found


def sampler(worker):
    """DistributedSampler gives each sample to one rank, and another order in another epoch.

    All ranks see all ranks' indices. The seed of most ranks counts (rank 0's where two differ); a rank whose indices aren't
    those of that seed and its own place is to blame.
    """
    requires(worker.world_size > 1, "needs two ranks: with one there is nothing to divide")
    row = worker.torch.tensor(samples_of(worker), dtype=worker.torch.int64)
    judge(worker.gather("every rank's samples", row).tolist(), worker.world_size)
    return "%d ranks, %d samples" % (worker.world_size, SAMPLES_PER_RANK * worker.world_size)


def samples_of(worker):
    """This rank's seed, then for each epoch how many indices it has, and the first SAMPLES_PER_RANK of them."""
    mine = sampler_of(worker, range(SAMPLES_PER_RANK * worker.world_size))
    row = [getattr(mine, "seed", SEED)]
    for epoch in range(EPOCHS):
        if hasattr(mine, "set_epoch"):
            mine.set_epoch(epoch)
        indices = list(mine)
        row += [len(indices), *indices[:SAMPLES_PER_RANK]]
    return row


def judge(rows, world_size):
    """rows: of each rank, as `samples_of` has them.

    Raises:
        WrongOutcome: a rank has a wrong result.
    """
    seeds = [row[0] for row in rows]
    odd = odd_ones(seeds)
    seed = next(seeds[rank] for rank in range(world_size) if rank not in odd)
    samples = range(SAMPLES_PER_RANK * world_size)
    right = shares(world_size, samples, seed)
    culprits = [
        rank
        for rank, row in enumerate(rows)
        if row[1:] != [number for epoch in right for number in (len(epoch[rank]), *epoch[rank])]
    ]
    if culprits:
        raise WrongOutcome(what_is_wrong(culprits, rows, seed, world_size), culprits)
    for number, epoch in enumerate(right):
        once = [index for share in epoch for index in share]
        if sorted(once) != list(samples):
            raise WrongOutcome(
                "DistributedSampler gave %d of %d samples in epoch %d, some of them more than once"
                % (len(set(once)), len(samples), number)
            )
    if right[0] == right[1]:
        raise WrongOutcome("DistributedSampler gave the same order again after set_epoch")


def what_is_wrong(culprits, rows, seed, world_size):
    """Say what is wrong with the first of them."""
    first = culprits[0]
    count = rows[first][1]
    if rows[first][0] != seed:
        why = "its sampler has the seed %d, the others' %d (%s)" % (rows[first][0], seed, how_known(world_size))
    elif count != SAMPLES_PER_RANK:
        why = "it takes %d samples an epoch rather than its share of %d, as without a DistributedSampler"
        why %= (count, SAMPLES_PER_RANK)
    else:
        why = "they aren't the share of its rank"
    return "%s would train on samples of other ranks: %s" % (name_ranks(culprits), why)
