"""SyncBatchNorm, and training in mixed precision."""

from ddpdoctor_smoke.rank import WrongOutcome, requires
from ddpdoctor_smoke.stages.comparing import beyond, deviation, gather_numbers, must_be_within, not_all
from ddpdoctor_smoke.stages.training import (
    BATCH,
    FEATURES,
    HIDDEN,
    TARGETS,
    all_the_same,
    data_of,
    gradients,
    model_of,
    optimizer_of,
    own_batch,
    parallel,
    tolerance,
)

BATCHNORM_FACTOR = 10
"""Times the tolerance of training is SyncBatchNorm's: gradients of statistics cancel each other out for the most part."""

AMP_STEPS = 4
AMP_TOLERANCE = 0.05
"""A part of the loss in full precision: 8 bits of mantissa (bfloat16), a few layers."""


def sync_batchnorm(worker):
    """Statistics and gradients of one step are those of BatchNorm over all ranks' batches in one process, within 1e-3 of the
    largest number (float32; 0.1 where TF32 is forced upon it). GPU only, and not run on one yet."""
    requires(worker.on_gpu, "torch has SyncBatchNorm for GPUs only")
    requires(worker.world_size > 1, "needs two ranks: with one it is BatchNorm")
    torch = worker.torch
    most = BATCHNORM_FACTOR * tolerance(worker)
    x, y = (
        tensor.to(device=worker.device, dtype=torch.float32) for tensor in data_of(worker, BATCH * worker.world_size)
    )
    whole = normalised(worker)
    torch.nn.functional.mse_loss(whole(x), y).backward()
    model = parallel(worker, torch.nn.SyncBatchNorm.convert_sync_batchnorm(normalised(worker)))
    worker.step("a step with SyncBatchNorm")
    x, y = own_batch(worker, dtype=torch.float32)
    torch.nn.functional.mse_loss(model(x), y).backward()
    found = [*gradients(model), model.module[1].running_mean, model.module[1].running_var]
    expected = [*gradients(whole), whole[1].running_mean, whole[1].running_var]
    rows = gather_numbers(worker, "every rank's statistics and gradients", [deviation(found, expected)])
    must_be_within(most, rows[:, 0].tolist(), worker, "SyncBatchNorm on %s differs from BatchNorm over all batches")
    return "equals BatchNorm over all ranks' batches within %g" % most


def normalised(worker):
    nn = worker.torch.nn
    worker.torch.manual_seed(0)
    # No bias before a BatchNorm: its gradient is nothing but rounding.
    layers = [nn.Linear(FEATURES, HIDDEN, bias=False), nn.BatchNorm1d(HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, TARGETS)]
    return nn.Sequential(*layers).to(worker.device)


def amp(worker):
    """Training in torch.autocast: bfloat16 on CPU; on GPUs float16 with a GradScaler, not run on one yet. It really computes in
    that type, its first loss is that of full precision within 5 %, the loss falls, all ranks' parameters are equal at the end.

    Raises:
        WrongOutcome: a rank has a wrong result.
    """
    torch = worker.torch
    kind = torch.float16 if worker.on_gpu else torch.bfloat16
    scaler = scaler_of(torch) if worker.on_gpu else None
    x, y = own_batch(worker, dtype=torch.float32)
    plain = model_of(worker, torch.float32)
    with torch.no_grad():
        expected = float(torch.nn.functional.mse_loss(plain(x), y))
    model = parallel(worker, plain)
    optimizer = optimizer_of(worker, model)
    losses = []
    for number in range(AMP_STEPS):
        worker.step("step %d of %d in %s" % (number + 1, AMP_STEPS, str(kind)[6:]))
        with torch.autocast(worker.device.type, dtype=kind):
            found = model(x)
            loss = torch.nn.functional.mse_loss(found.float(), y)
        if found.dtype != kind:
            raise WrongOutcome(
                "torch.autocast computed in %s and not in %s" % (str(found.dtype)[6:], str(kind)[6:]), [worker.rank]
            )
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    judge_amp(worker, gather_numbers(worker, "every rank's losses", [*losses, expected]), str(kind)[6:])
    all_the_same(worker, model.module, "the parameters, trained in mixed precision,")
    return "%s%s" % (str(kind)[6:], "" if scaler is None else " with GradScaler")


def scaler_of(torch):
    """torch.amp.GradScaler, where it is (2.3); the other one complains there."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cuda", init_scale=1024.0)
    return torch.cuda.amp.GradScaler(init_scale=1024.0)


def judge_amp(worker, rows, kind):
    """rows: each rank's losses, and its first in full precision.

    Raises:
        WrongOutcome: a rank has a wrong result.
    """
    full = rows[:, -1]
    culprits = beyond(((rows[:, 0] - full).abs() / full).tolist(), AMP_TOLERANCE)
    if culprits:
        rank = culprits[0]
        culprits = not_all(culprits, worker.world_size)
        raise WrongOutcome(
            "in %s the loss is %.4g on rank %d, in full precision %.4g" % (kind, rows[rank, 0], rank, full[rank]),
            culprits,
        )
    first, last = float(rows[:, 0].mean()), float(rows[:, -2].mean())
    if not last < first:
        raise WrongOutcome("the loss doesn't fall in %s: %.4g, then %.4g" % (kind, first, last))
