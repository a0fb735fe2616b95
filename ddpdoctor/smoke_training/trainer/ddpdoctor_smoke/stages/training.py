"""Training with DistributedDataParallel, and what must be true of it."""
# mypy: allow-untyped-defs, allow-untyped-calls

import os

from ddpdoctor_smoke.rank import NotHere, WrongOutcome
from ddpdoctor_smoke.stages.comparing import (
    beyond,
    checksum,
    deviation,
    how_known,
    named,
    not_all,
    odd_ones,
)
from ddpdoctor_smoke.stages.sampling import EPOCHS, sampler_of, shares

FEATURES, HIDDEN, TARGETS = 16, 32, 4
BATCH = 8
"""Samples a rank and step."""
STEPS_OF_EPOCH = 5
STEPS = EPOCHS * STEPS_OF_EPOCH
DRIFT_AFTER = 3
DRIFT = 0.01

CPU_TOLERANCE = 1e-9
"""float64: the order of sums differs, some 1e-16 each, and ten steps don't make much of that."""
GPU_TOLERANCE = 1e-4
"""float32: likewise with some 1e-7 each."""
TF32_TOLERANCE = 1e-2
"""float32 where a setting forces TF32 upon it, as in NVIDIA's images: 10 bits of mantissa."""


class Trained:
    """What training leaves to the stages that judge it. losses: this rank's, by step."""

    def __init__(self, model, optimizer, losses):
        self.model = model
        self.optimizer = optimizer
        self.losses = losses


# --- the problem ------------------------------------------------------------------------------------------------------


def number_type(one):
    """float32 on GPUs, as training has it; float64 on the CPU, where rounding hides nothing."""
    return one.torch.float32 if one.on_gpu else one.torch.float64


def tolerance(one):
    """How far results may be apart that are the same but for the order of sums; see `deviation`."""
    if not one.on_gpu:
        return CPU_TOLERANCE
    # TORCH_ALLOW_TF32_CUBLAS_OVERRIDE is torch's setting, and it shows here; the other one is cuBLAS's.
    forced = one.torch.backends.cuda.matmul.allow_tf32 or os.environ.get("NVIDIA_TF32_OVERRIDE") == "1"
    return TF32_TOLERANCE if forced else GPU_TOLERANCE


def within(one):
    """The tolerance, in words."""
    return "within %g (%s)" % (tolerance(one), str(number_type(one))[6:])


def model_of(one, dtype=None):
    """The same on every rank and in every process."""
    nn = one.torch.nn
    one.torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, TARGETS))
    # DDP sends rank 0's buffers to all before each step.
    model.register_buffer("steps", one.torch.zeros(()))
    return model.to(device=one.device, dtype=dtype or number_type(one))


def data_of(one, samples):
    """Something that can be learned: inputs, and what a linear teacher says of them. The same everywhere."""
    torch = one.torch
    dice = torch.Generator().manual_seed(1)
    x = torch.randn(samples, FEATURES, generator=dice, dtype=torch.float64)
    y = torch.tanh(x @ torch.randn(FEATURES, TARGETS, generator=dice, dtype=torch.float64) / 4)
    return x.to(number_type(one)), y.to(number_type(one))


def optimizer_of(one, model):
    return one.torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def parallel(one, model, words="DistributedDataParallel()"):
    """The model, on this rank's device or on several, in DDP."""
    if one.faults.wanted("shape"):
        model.add_module("more", one.torch.nn.Linear(TARGETS, TARGETS).to(next(model.parameters())))
    parameters = list(model.parameters())
    every = sum(parameter.numel() for parameter in parameters)
    kind = str(parameters[0].dtype)[6:]
    one.step(words, "DistributedDataParallel %s[%d]" % (kind, every))
    devices = {parameter.device for parameter in parameters}
    alone = [one.device] if one.on_gpu and len(devices) == 1 else None
    return one.torch.nn.parallel.DistributedDataParallel(model, device_ids=alone)


# --- training ---------------------------------------------------------------------------------------------------------


def trained(one):
    """Trains, unless that has been done. Kept until the end."""
    if "trained" not in one.kept:
        one.kept["trained"] = training_of(one)
    return one.kept["trained"]


def training_of(one):
    torch = one.torch
    data = torch.utils.data.TensorDataset(*data_of(one, STEPS_OF_EPOCH * BATCH * one.world_size))
    sampler = sampler_of(one, data)
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH, sampler=sampler)
    model = parallel(one, model_of(one))
    optimizer = optimizer_of(one, model)
    losses: list[float] = []
    for epoch in range(EPOCHS):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        for _, (x, y) in zip(range(STEPS_OF_EPOCH), loader):
            one.step("training step %d of %d" % (len(losses) + 1, STEPS))
            losses.append(float(step(one, model, optimizer, x.to(one.device), y.to(one.device))))
            if len(losses) == DRIFT_AFTER:
                drift(one, model)
    return Trained(model, optimizer, losses)


def step(one, model, optimizer, x, y):
    """One step; gives the loss before it."""
    optimizer.zero_grad()
    loss = one.torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    getattr(model, "module", model).steps.add_(1)
    return loss.detach()


def drift(one, model):
    """The fault of that name."""
    if one.faults.wanted("drift"):
        with one.torch.no_grad():
            next(model.parameters()).add_(DRIFT)


def train(one):
    """The mean loss of all ranks falls from the first epoch to the last, which have the same samples."""
    row = one.torch.tensor(trained(one).losses, dtype=one.torch.float64)
    rows = one.gather("every rank's losses", row)
    infinite = [rank for rank, losses in enumerate(rows) if not bool(one.torch.isfinite(losses).all())]
    if infinite:
        raise WrongOutcome("the loss of %s isn't a finite number" % named(infinite), not_all(infinite, one.world_size))
    first, last = float(rows[:, :STEPS_OF_EPOCH].mean()), float(rows[:, -STEPS_OF_EPOCH:].mean())
    if not last < first:
        raise WrongOutcome("the loss doesn't fall: %.4f in the first epoch, %.4f in the last" % (first, last))
    return "%d steps, loss %.3f to %.3f" % (STEPS, first, last)


# --- what must be true of it ------------------------------------------------------------------------------------------


def one_process(one):
    """The same training in one process alone, on the batches of all ranks together, gives the same losses and parameters:
    within 1e-9 of the largest number on CPU (float64), 1e-4 on GPUs (float32; 1e-2 where TF32 is forced upon it). Every rank
    does it for itself.

    The ranks are to blame whose own loss is the first to be another one: what they do wrong reaches the others a step later,
    by the gradients. GPU: not run on one yet.
    """
    run = trained(one)
    one.step("the same training in one process")
    losses, parameters = alone(one)
    mine = one.torch.tensor(
        [*run.losses, deviation(list(run.model.module.parameters()), parameters)], dtype=one.torch.float64
    )
    rows = one.gather("every rank's losses and parameters", mine)
    judge(one, rows, losses)
    return "same losses and parameters " + within(one)


def alone(one):
    """Losses [step, rank] and the parameters at the end."""
    torch = one.torch
    samples = STEPS_OF_EPOCH * BATCH * one.world_size
    x, y = (tensor.to(one.device) for tensor in data_of(one, samples))
    model = model_of(one)
    optimizer = optimizer_of(one, model)
    losses = []
    for epoch in shares(one.world_size, range(samples)):
        for number in range(STEPS_OF_EPOCH):
            batch = [index for share in epoch for index in share[number * BATCH : (number + 1) * BATCH]]
            places = torch.tensor(batch, device=one.device)
            optimizer.zero_grad()
            each = (model(x[places]) - y[places]).pow(2).mean(dim=1)
            each.mean().backward()
            optimizer.step()
            losses.append(each.detach().view(one.world_size, BATCH).mean(dim=1))
    return torch.stack(losses).to(device="cpu", dtype=torch.float64), list(model.parameters())


def judge(one, rows, losses):
    """rows: each rank's losses, and how far its parameters are from those of one process. Raises Wrong."""
    most = tolerance(one)
    for number in range(STEPS):
        expected = losses[number]
        scale = max(float(expected.abs().max()), 1e-12)
        apart = ((rows[:, number] - expected).abs() / scale).tolist()
        culprits = beyond(apart, most)
        if culprits:
            culprits = not_all(culprits, one.world_size)
            rank = (culprits or [0])[0]
            raise WrongOutcome(
                "the loss of %s is not that of the same training in one process: at step %d of %d %.6g instead of %.6g "
                "on rank %d"
                % (named(culprits), number + 1, STEPS, float(rows[rank, number]), float(expected[rank]), rank),
                culprits,
            )
    apart = rows[:, STEPS].tolist()
    culprits = beyond(apart, most)
    if culprits:
        culprits = not_all(culprits, one.world_size)
        raise WrongOutcome(
            "the parameters of %s are not those of the same training in one process: they differ by %.2g of the largest, "
            "%.2g are allowed" % (named(culprits), max(apart), most),
            culprits,
        )


def accumulation(one):
    """Two halves of a batch, the first in no_sync, give the gradients of the whole batch; and after the first half each rank has
    its own ones, since else they were exchanged all the same, which doesn't change the end. Tolerance as for one process."""
    model = trained(one).model
    x, y = data_of(one, 2 * BATCH * one.world_size)
    mine = slice(one.rank * 2 * BATCH, (one.rank + 1) * 2 * BATCH)
    x, y = x[mine].to(one.device), y[mine].to(one.device)
    loss_of = one.torch.nn.functional.mse_loss
    model.zero_grad()
    one.step("the whole batch")
    loss_of(model(x), y).backward()
    whole = gradients(model)
    model.zero_grad()
    one.step("its first half, without synchronising")
    with model.no_sync():
        (loss_of(model(x[:BATCH]), y[:BATCH]) / 2).backward()
    # Past DDP, which has its hooks on what `backward` does.
    own = one.torch.autograd.grad(loss_of(model.module(x[:BATCH]), y[:BATCH]) / 2, list(model.parameters()))
    exchanged = deviation([parameter.grad for parameter in model.parameters()], own)
    one.step("its second half")
    (loss_of(model(x[BATCH:]), y[BATCH:]) / 2).backward()
    row = one.torch.tensor([deviation(gradients(model), whole), exchanged], dtype=one.torch.float64)
    apart = one.gather("every rank's gradients", row)
    model.zero_grad()
    culprits = beyond(apart[:, 1].tolist(), tolerance(one))
    if culprits:
        culprits = not_all(culprits, one.world_size)
        raise WrongOutcome(
            "gradients of a first half in no_sync are not the rank's own: they differ from those without DDP by %.2g of the "
            "largest on %s; %.2g are allowed" % (float(apart[:, 1].max()), named(culprits), tolerance(one)),
            culprits,
        )
    culprits = beyond(apart[:, 0].tolist(), tolerance(one))
    if culprits:
        culprits = not_all(culprits, one.world_size)
        raise WrongOutcome(
            "gradients of two halves of a batch, the first in no_sync, differ from those of the whole batch by %.2g of the "
            "largest on %s; %.2g are allowed" % (float(apart[:, 0].max()), named(culprits), tolerance(one)),
            culprits,
        )
    local = ", and each rank's first half is its own" if one.world_size > 1 else ""
    return "no_sync equals the whole batch %s%s" % (within(one), local)


def gradients(model):
    return [parameter.grad.detach().clone() for parameter in model.parameters()]


def parameters(one):
    """After one more step all ranks' parameters and buffers are the same, bit by bit, by their checksums. Those of most ranks
    count; with two ranks, rank 0's."""
    if one.world_size < 2:
        raise NotHere("needs two ranks: with one there is nothing to compare")
    run = trained(one)
    x, y = data_of(one, BATCH * one.world_size)
    mine = slice(one.rank * BATCH, (one.rank + 1) * BATCH)
    one.step("one more step")
    step(one, run.model, run.optimizer, x[mine].to(one.device), y[mine].to(one.device))
    drift(one, run.model)
    all_the_same(one, run.model.module, "the parameters")
    return "equal on %d ranks, bit by bit" % one.world_size


def all_the_same(one, module, what):
    """Compares the ranks' checksums of every tensor. Raises Wrong."""
    tensors = module.state_dict()
    row = one.torch.tensor([checksum(one.torch, tensor) for tensor in tensors.values()], dtype=one.torch.int64)
    rows = [tuple(found) for found in one.gather("checksums of every rank's parameters", row).tolist()]
    culprits = odd_ones(rows)
    if culprits:
        reference = next(found for rank, found in enumerate(rows) if rank not in culprits)
        names = [name for name, a, b in zip(tensors, rows[culprits[0]], reference) if a != b]
        raise WrongOutcome(
            "%s of %s differ from the other ranks': %s (%s)"
            % (what, named(culprits), ", ".join(names[:4]), how_known(one.world_size)),
            culprits,
        )
