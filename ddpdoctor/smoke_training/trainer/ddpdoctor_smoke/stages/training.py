"""Training with DistributedDataParallel, and what must be true of it."""

import os
from collections import namedtuple

from ddpdoctor_smoke.rank import WrongOutcome, requires
from ddpdoctor_smoke.stages.comparing import (
    beyond,
    blame,
    checksum,
    deviation,
    gather_numbers,
    how_known,
    must_be_within,
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


Trained = namedtuple("Trained", ("model", "optimizer", "losses"))
"""The results of training, for the stages that judge it. losses: this rank's, by step."""


# --- the problem ------------------------------------------------------------------------------------------------------


def number_type(worker):
    """float32 on GPUs, as training has it; float64 on the CPU, where rounding hides nothing."""
    return worker.torch.float32 if worker.on_gpu else worker.torch.float64


def tolerance(worker):
    """The deviation that results may have that are the same but for the order of sums; see `deviation`."""
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


def own_batch(worker, samples=BATCH, dtype=None):
    """This rank's own samples of such data, on its device."""
    mine = slice(worker.rank * samples, (worker.rank + 1) * samples)
    whole = data_of(worker, samples * worker.world_size)
    return [tensor[mine].to(device=worker.device, dtype=dtype) for tensor in whole]


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


def train_once(worker):
    """Trains, unless that has been done. Kept until the end."""
    if "trained" not in worker.kept:
        worker.kept["trained"] = run_training(worker)
    return worker.kept["trained"]


def run_training(worker):
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
    rows = gather_numbers(worker, "every rank's losses", train_once(worker).losses)
    infinite = [rank for rank, losses in enumerate(rows) if not bool(worker.torch.isfinite(losses).all())]
    blame(infinite, worker, "the loss of %s isn't a finite number")
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
    run = train_once(worker)
    worker.step("the same training in one process")
    losses, parameters = alone(worker)
    apart = deviation(list(run.model.module.parameters()), parameters)
    judge(worker, gather_numbers(worker, "every rank's losses and parameters", [*run.losses, apart]), losses)
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
    """rows: each rank's losses, and how far its parameters are from those of one process."""
    most = tolerance(worker)
    for number, expected in enumerate(losses):
        scale = max(float(expected.abs().max()), 1e-12)
        culprits = beyond(((rows[:, number] - expected).abs() / scale).tolist(), most)
        if culprits:
            rank = culprits[0]
            words = "the loss of %%s is not that of the same training in one process: at step %d of %d %.6g instead of %.6g on rank %d"
            blame(culprits, worker, words % (number + 1, STEPS, rows[rank, number], expected[rank], rank))
    words = "the parameters of %s are not those of the same training in one process: they differ"
    must_be_within(most, rows[:, STEPS].tolist(), worker, words)


def accumulation(worker):
    """Two halves of a batch, the first in no_sync, give the gradients of the whole batch; and after the first half each rank has
    its own ones, since else they were exchanged all the same, which doesn't change the end. Tolerance as for one process."""
    model = train_once(worker).model
    x, y = own_batch(worker, 2 * BATCH)
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
    apart = gather_numbers(worker, "every rank's gradients", [exchanged, deviation(gradients(model), whole)])
    model.zero_grad()
    words = (
        "gradients of a first half in no_sync are not the rank's own: they differ from those without DDP on %s",
        "gradients of two halves of a batch, the first in no_sync, differ from those of the whole batch on %s",
    )
    for number in range(2):
        must_be_within(tolerance(worker), apart[:, number].tolist(), worker, words[number])
    local = ", and each rank's first half is its own" if worker.world_size > 1 else ""
    return "no_sync equals the whole batch %s%s" % (within(worker), local)


def gradients(model):
    return [parameter.grad.detach().clone() for parameter in model.parameters()]


def parameters(worker):
    """After one more step all ranks' parameters and buffers are the same, bit by bit, by their checksums. Those of most ranks
    count; with two ranks, rank 0's."""
    requires(worker.world_size > 1, "needs two ranks: with one there is nothing to compare")
    run = train_once(worker)
    worker.step("one more step")
    step(worker, run.model, run.optimizer, *own_batch(worker))
    drift(worker, run.model)
    all_the_same(worker, run.model.module, "the parameters")
    return "equal on %d ranks, bit by bit" % worker.world_size


def all_the_same(worker, module, what):
    """Compare the ranks' checksums of every tensor."""
    tensors = module.state_dict()
    row = worker.torch.tensor([checksum(worker.torch, tensor) for tensor in tensors.values()], dtype=worker.torch.int64)
    rows = [tuple(found) for found in worker.gather("checksums of every rank's parameters", row).tolist()]
    culprits = odd_ones(rows)
    if culprits:
        reference = next(found for rank, found in enumerate(rows) if rank not in culprits)
        names = [name for name, a, b in zip(tensors, rows[culprits[0]], reference) if a != b]
        words = "%s of %%s differ from the other ranks': %s (%s)"
        blame(culprits, worker, words % (what, ", ".join(names[:4]), how_known(worker.world_size)))
