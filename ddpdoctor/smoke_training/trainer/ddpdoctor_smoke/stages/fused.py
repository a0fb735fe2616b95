"""Apex's fused kernels against torch's own."""
# mypy: allow-untyped-defs, allow-untyped-calls

import importlib

from ddpdoctor_smoke.rank import NotHere, WrongOutcome
from ddpdoctor_smoke.stages.comparing import beyond, deviation, named, not_all, tell_all

TOLERANCE = 1e-4
"""float32, with other orders of sums."""
ADAM_STEPS = 3
ROWS, WIDTH = 64, 256


def apex(one):
    """FusedLayerNorm with its gradients, three steps of FusedAdam, and multi_tensor_l2norm: equal to LayerNorm, AdamW and the
    norm of torch within 1e-4 of the largest number (float32). Kernels that Apex was built without aren't tested. GPU only, and
    not run on one yet."""
    if not one.on_gpu:
        raise NotHere("Apex's fused kernels need GPUs; these ranks run on the CPU")
    here = {name: why_not(modules) for name, (modules, _) in KERNELS.items()}
    told = tell_all(one, "what every rank has of Apex", "\n".join("%s=%s" % item for item in sorted(here.items())))
    missing = [dict(line.partition("=")[::2] for line in text.splitlines()) for text in told]
    names = [name for name in KERNELS if not any(rank.get(name, "it isn't known") for rank in missing)]
    if not names:
        rank, why = next((rank, why) for rank, found in enumerate(missing) for why in found.values() if why)
        raise NotHere("no fused kernels of Apex on rank %d: %s" % (rank, why))
    found = []
    for name in names:
        one.step("%s of Apex and of torch" % name)
        found.append(KERNELS[name][1](one))
    rows = one.gather("every rank's differences", one.torch.tensor(found, dtype=one.torch.float64))
    for number, name in enumerate(names):
        apart = rows[:, number].tolist()
        culprits = beyond(apart, TOLERANCE)
        if culprits:
            culprits = not_all(culprits, one.world_size)
            raise WrongOutcome(
                "%s of Apex differs from torch's on %s by %.2g of the largest number; %g are allowed"
                % (name, named(culprits), max(apart), TOLERANCE),
                culprits,
            )
    left = [name for name in KERNELS if name not in names]
    return "%s equal torch's within %g%s" % (
        ", ".join(names),
        TOLERANCE,
        "; not built: " + ", ".join(left) if left else "",
    )


def why_not(modules):
    """ "" where all can be imported, else the error."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            if getattr(error, "name", None) == "apex":
                return "Apex is not installed"
            return (str(error).splitlines() or [type(error).__name__])[0][:100]
    return ""


def layer_norm(one):
    from apex.normalization import FusedLayerNorm

    torch = one.torch
    x = numbers(one, ROWS, WIDTH)
    found = []
    for make in (FusedLayerNorm, torch.nn.LayerNorm):
        layer = make(WIDTH).to(one.device)
        given = x.clone().requires_grad_()
        result = layer(given)
        (result * x.cos()).sum().backward()
        found.append([result, given.grad, layer.weight.grad, layer.bias.grad])
    return deviation(*found)


def adam(one):
    from apex.optimizers import FusedAdam

    torch = one.torch
    found = []
    for make in (FusedAdam, torch.optim.AdamW):
        weights = [torch.nn.Parameter(numbers(one, ROWS, WIDTH)), torch.nn.Parameter(numbers(one, WIDTH))]
        optimizer = make(weights, lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
        for _ in range(ADAM_STEPS):
            optimizer.zero_grad()
            sum(weight.sin().sum() for weight in weights).backward()
            optimizer.step()
        found.append([weight.detach() for weight in weights])
    return deviation(*found)


def l2norm(one):
    import amp_C
    from apex.multi_tensor_apply import multi_tensor_applier

    torch = one.torch
    tensors = [numbers(one, ROWS, WIDTH), numbers(one, 3 * WIDTH + 1)]
    overflow = torch.zeros(1, dtype=torch.int32, device=one.device)
    norm = multi_tensor_applier(amp_C.multi_tensor_l2norm, overflow, [tensors], False)[0]
    return deviation([norm.reshape(1)], [torch.cat([tensor.reshape(-1) for tensor in tensors]).norm().reshape(1)])


def numbers(one, *shape):
    dice = one.torch.Generator().manual_seed(3)
    return one.torch.randn(*shape, generator=dice).to(one.device)


KERNELS = {
    "FusedLayerNorm": (("apex.normalization", "fused_layer_norm_cuda"), layer_norm),
    "FusedAdam": (("apex.optimizers", "amp_C"), adam),
    "multi_tensor_l2norm": (("apex.multi_tensor_apply", "amp_C"), l2norm),
}
"""Name to the modules that it needs, and to what gives its deviation."""
