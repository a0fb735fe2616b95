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


def number_type(worker):
    """float32 on GPUs, as training has it; float64 on the CPU, where rounding hides nothing."""
    return worker.torch.float32 if worker.on_gpu else worker.torch.float64


def tolerance(worker):
    """How far results may be apart that are the same but for the order of sums; see `deviation`."""
    if not worker.on_gpu:
        return CPU_TOLERANCE
    # TORCH_ALLOW_TF32_CUBLAS_OVERRIDE is torch's setting, and it shows here; the other one is cuBLAS's.
    forced = worker.torch.backends.cuda.matmul.allow_tf32 or os.environ.get("NVIDIA_TF32_OVERRIDE") == "1"
    return TF32_TOLERANCE if forced else GPU_TOLERANCE


def within(worker):
    """The tolerance, in words."""
    return "within %g (%s)" % (tolerance(worker), str(number_type(worker))[6:])


def model_of(worker, dtype=None):
    """The same on every rank and in every process."""
    nn = worker.torch.nn
    worker.torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, TARGETS))
    # DDP sends rank 0's buffers to all before each step.
    model.register_buffer("steps", worker.torch.zeros(()))
    return model.to(device=worker.device, dtype=dtype or number_type(worker))


def data_of(worker, samples):
    """Something that can be learned: inputs, and what a linear teacher says of them. The same everywhere."""
    torch = worker.torch
    dice = torch.Generator().manual_seed(1)
    x = torch.randn(samples, FEATURES, generator=dice, dtype=torch.float64)
    y = torch.tanh(x @ torch.randn(FEATURES, TARGETS, generator=dice, dtype=torch.float64) / 4)
    return x.to(number_type(worker)), y.to(number_type(worker))


def optimizer_of(worker, model):
    return worker.torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def parallel(worker, model, words="DistributedDataParallel()"):
    """The model, on this rank's device or on several, in DDP."""
    if worker.faults.wanted("shape"):
        model.add_module("more", worker.torch.nn.Linear(TARGETS, TARGETS).to(next(model.parameters())))
    parameters = list(model.parameters())
    every = sum(parameter.numel() for parameter in parameters)
    kind = str(parameters[0].dtype)[6:]
    worker.step(words, "DistributedDataParallel %s[%d]" % (kind, every))
    devices = {parameter.device for parameter in parameters}
    alone = [worker.device] if worker.on_gpu and len(devices) == 1 else None
    return worker.torch.nn.parallel.DistributedDataParallel(model, device_ids=alone)


# --- training ---------------------------------------------------------------------------------------------------------


def trained(worker):
    """Trains, unless that has been done. Kept until the end."""
    if "trained" not in worker.kept:
        worker.kept["trained"] = training_of(worker)
    return worker.kept["trained"]


def training_of(worker):
    torch = worker.torch
    data = torch.utils.data.TensorDataset(*data_of(worker, STEPS_OF_EPOCH * BATCH * worker.world_size))
    sampler = sampler_of(worker, data)
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH, sampler=sampler)
    model = parallel(worker, model_of(worker))
    optimizer = optimizer_of(worker, model)
    losses: list[float] = []
    for epoch in range(EPOCHS):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        for _, (x, y) in zip(range(STEPS_OF_EPOCH), loader):
            worker.step("training step %d of %d" % (len(losses) + 1, STEPS))
            losses.append(float(step(worker, model, optimizer, x.to(worker.device), y.to(worker.device))))
            if len(losses) == DRIFT_AFTER:
                drift(worker, model)
    return Trained(model, optimizer, losses)


def step(worker, model, optimizer, x, y):
    """One step; gives the loss before it."""
    optimizer.zero_grad()
    loss = worker.torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    getattr(model, "module", model).steps.add_(1)
    return loss.detach()


def drift(worker, model):
    """The fault of that name."""
    if worker.faults.wanted("drift"):
        with worker.torch.no_grad():
            next(model.parameters()).add_(DRIFT)


def train(worker):
    """The mean loss of all ranks falls from the first epoch to the last, which have the same samples.

    Raises:
        WrongOutcome: a rank has a wrong result.
    """
    row = worker.torch.tensor(trained(worker).losses, dtype=worker.torch.float64)
    rows = worker.gather("every rank's losses", row)
    infinite = [rank for rank, losses in enumerate(rows) if not bool(worker.torch.isfinite(losses).all())]
    if infinite:
        raise WrongOutcome(
            "the loss of %s isn't a finite number" % named(infinite), not_all(infinite, worker.world_size)
        )
    first, last = float(rows[:, :STEPS_OF_EPOCH].mean()), float(rows[:, -STEPS_OF_EPOCH:].mean())
    if not last < first:
        raise WrongOutcome("the loss doesn't fall: %.4f in the first epoch, %.4f in the last" % (first, last))
    return "%d steps, loss %.3f to %.3f" % (STEPS, first, last)


# --- what must be true of it ------------------------------------------------------------------------------------------


def one_process(worker):
    """The same training in one process alone, on the batches of all ranks together, gives the same losses and parameters:
    within 1e-9 of the largest number on CPU (float64), 1e-4 on GPUs (float32; 1e-2 where TF32 is forced upon it). Every rank
    does it for itself.

    The ranks are to blame whose own loss is the first to be another one: what they do wrong reaches the others a step later,
    by the gradients. GPU: not run on one yet.
    """
    run = trained(worker)
    worker.step("the same training in one process")
    losses, parameters = alone(worker)
    mine = worker.torch.tensor(
        [*run.losses, deviation(list(run.model.module.parameters()), parameters)], dtype=worker.torch.float64
    )
    rows = worker.gather("every rank's losses and parameters", mine)
    judge(worker, rows, losses)
    return "same losses and parameters " + within(worker)


def alone(worker):
    """Losses [step, rank] and the parameters at the end."""
    torch = worker.torch
    samples = STEPS_OF_EPOCH * BATCH * worker.world_size
    x, y = (tensor.to(worker.device) for tensor in data_of(worker, samples))
    model = model_of(worker)
    optimizer = optimizer_of(worker, model)
    losses = []
    for epoch in shares(worker.world_size, range(samples)):
        for number in range(STEPS_OF_EPOCH):
            batch = [index for share in epoch for index in share[number * BATCH : (number + 1) * BATCH]]
            places = torch.tensor(batch, device=worker.device)
            optimizer.zero_grad()
            each = (model(x[places]) - y[places]).pow(2).mean(dim=1)
            each.mean().backward()
            optimizer.step()
            losses.append(each.detach().view(worker.world_size, BATCH).mean(dim=1))
    return torch.stack(losses).to(device="cpu", dtype=torch.float64), list(model.parameters())


def judge(worker, rows, losses):
    """rows: each rank's losses, and how far its parameters are from those of one process.

    Raises:
        WrongOutcome: a rank has a wrong result.
    """
    most = tolerance(worker)
    for number in range(STEPS):
        expected = losses[number]
        scale = max(float(expected.abs().max()), 1e-12)
        apart = ((rows[:, number] - expected).abs() / scale).tolist()
        culprits = beyond(apart, most)
        if culprits:
            culprits = not_all(culprits, worker.world_size)
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
        culprits = not_all(culprits, worker.world_size)
        raise WrongOutcome(
            "the parameters of %s are not those of the same training in one process: they differ by %.2g of the largest, "
            "%.2g are allowed" % (named(culprits), max(apart), most),
            culprits,
        )


def accumulation(worker):
    """Two halves of a batch, the first in no_sync, give the gradients of the whole batch; and after the first half each rank has
    its own ones, since else they were exchanged all the same, which doesn't change the end. Tolerance as for one process.

    Raises:
        WrongOutcome: a rank has a wrong result.
    """
    model = trained(worker).model
    x, y = data_of(worker, 2 * BATCH * worker.world_size)
    mine = slice(worker.rank * 2 * BATCH, (worker.rank + 1) * 2 * BATCH)
    x, y = x[mine].to(worker.device), y[mine].to(worker.device)
    loss_of = worker.torch.nn.functional.mse_loss
    model.zero_grad()
    worker.step("the whole batch")
    loss_of(model(x), y).backward()
    whole = gradients(model)
    model.zero_grad()
    worker.step("its first half, without synchronising")
    with model.no_sync():
        (loss_of(model(x[:BATCH]), y[:BATCH]) / 2).backward()
    # Past DDP, which has its hooks on what `backward` does.
    own = worker.torch.autograd.grad(loss_of(model.module(x[:BATCH]), y[:BATCH]) / 2, list(model.parameters()))
    exchanged = deviation([parameter.grad for parameter in model.parameters()], own)
    worker.step("its second half")
    (loss_of(model(x[BATCH:]), y[BATCH:]) / 2).backward()
    row = worker.torch.tensor([deviation(gradients(model), whole), exchanged], dtype=worker.torch.float64)
    apart = worker.gather("every rank's gradients", row)
    model.zero_grad()
    culprits = beyond(apart[:, 1].tolist(), tolerance(worker))
    if culprits:
        culprits = not_all(culprits, worker.world_size)
        raise WrongOutcome(
            "gradients of a first half in no_sync are not the rank's own: they differ from those without DDP by %.2g of the "
            "largest on %s; %.2g are allowed" % (float(apart[:, 1].max()), named(culprits), tolerance(worker)),
            culprits,
        )
    culprits = beyond(apart[:, 0].tolist(), tolerance(worker))
    if culprits:
        culprits = not_all(culprits, worker.world_size)
        raise WrongOutcome(
            "gradients of two halves of a batch, the first in no_sync, differ from those of the whole batch by %.2g of the "
            "largest on %s; %.2g are allowed" % (float(apart[:, 0].max()), named(culprits), tolerance(worker)),
            culprits,
        )
    local = ", and each rank's first half is its own" if worker.world_size > 1 else ""
    return "no_sync equals the whole batch %s%s" % (within(worker), local)


def gradients(model):
    return [parameter.grad.detach().clone() for parameter in model.parameters()]


def parameters(worker):
    """After one more step all ranks' parameters and buffers are the same, bit by bit, by their checksums. Those of most ranks
    count; with two ranks, rank 0's.

    Raises:
        NotHere: it can't be tested here.
    """
    if worker.world_size < 2:
        raise NotHere("needs two ranks: with one there is nothing to compare")
    run = trained(worker)
    x, y = data_of(worker, BATCH * worker.world_size)
    mine = slice(worker.rank * BATCH, (worker.rank + 1) * BATCH)
    worker.step("one more step")
    step(worker, run.model, run.optimizer, x[mine].to(worker.device), y[mine].to(worker.device))
    drift(worker, run.model)
    all_the_same(worker, run.model.module, "the parameters")
    return "equal on %d ranks, bit by bit" % worker.world_size


def all_the_same(worker, module, what):
    """Compares the ranks' checksums of every tensor.

    Raises:
        WrongOutcome: a rank has a wrong result.
    """
    tensors = module.state_dict()
    row = worker.torch.tensor([checksum(worker.torch, tensor) for tensor in tensors.values()], dtype=worker.torch.int64)
    rows = [tuple(found) for found in worker.gather("checksums of every rank's parameters", row).tolist()]
    culprits = odd_ones(rows)
    if culprits:
        reference = next(found for rank, found in enumerate(rows) if rank not in culprits)
        names = [name for name, a, b in zip(tensors, rows[culprits[0]], reference) if a != b]
        raise WrongOutcome(
            "%s of %s differ from the other ranks': %s (%s)"
            % (what, named(culprits), ", ".join(names[:4]), how_known(worker.world_size)),
            culprits,
        )
