"""Apex's fused kernels against torch's own."""

import importlib

from ddpdoctor_smoke.rank import NotHere, requires
from ddpdoctor_smoke.stages.comparing import deviation, gather_numbers, must_be_within, tell_all

TOLERANCE = 1e-4
"""float32, with other orders of sums."""
ADAM_STEPS = 3
ROWS, WIDTH = 64, 256


def apex(worker):
    """FusedLayerNorm with its gradients, three steps of FusedAdam, and multi_tensor_l2norm: equal to LayerNorm, AdamW and the
    norm of torch within 1e-4 of the largest number (float32). Kernels that Apex was built without aren't tested. GPU only, and
    not run on one yet.

    Raises:
        NotHere: it can't be tested here.
    """
    requires(worker.on_gpu, "Apex's fused kernels need GPUs; these ranks run on the CPU")
    here = {name: why_not(modules) for name, (modules, _) in KERNELS.items()}
    told = tell_all(worker, "what every rank has of Apex", "\n".join("%s=%s" % item for item in sorted(here.items())))
    lacks = [dict(line.partition("=")[::2] for line in text.splitlines()) for text in told]
    names = [name for name in KERNELS if not any(rank.get(name, "it isn't known") for rank in lacks)]
    if not names:
        rank, why = next((rank, why) for rank, found in enumerate(lacks) for why in found.values() if why)
        raise NotHere("no fused kernels of Apex on rank %d: %s" % (rank, why))
    found = []
    for name in names:
        worker.step("%s of Apex and of torch" % name)
        found.append(KERNELS[name][1](worker))
    rows = gather_numbers(worker, "every rank's differences", found)
    for apart, name in zip(rows.t().tolist(), names):
        must_be_within(TOLERANCE, apart, worker, "%s of Apex differs from torch's on %%s" % name)
    left = [name for name in KERNELS if name not in names]
    missing = "; not built: " + ", ".join(left) if left else ""
    return "%s equal torch's within %g%s" % (", ".join(names), TOLERANCE, missing)


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


def layer_norm(worker):
    from apex.normalization import FusedLayerNorm

    torch = worker.torch
    x = numbers(worker, ROWS, WIDTH)
    found = []
    for make in (FusedLayerNorm, torch.nn.LayerNorm):
        layer = make(WIDTH).to(worker.device)
        given = x.clone().requires_grad_()
        result = layer(given)
        (result * x.cos()).sum().backward()
        found.append([result, given.grad, layer.weight.grad, layer.bias.grad])
    return deviation(*found)


def adam(worker):
    from apex.optimizers import FusedAdam

    torch = worker.torch
    found = []
    for make in (FusedAdam, torch.optim.AdamW):
        weights = [torch.nn.Parameter(numbers(worker, ROWS, WIDTH)), torch.nn.Parameter(numbers(worker, WIDTH))]
        optimizer = make(weights, lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
        for _ in range(ADAM_STEPS):
            optimizer.zero_grad()
            sum(weight.sin().sum() for weight in weights).backward()
            optimizer.step()
        found.append([weight.detach() for weight in weights])
    return deviation(*found)


def l2norm(worker):
    import amp_C
    from apex.multi_tensor_apply import multi_tensor_applier

    torch = worker.torch
    tensors = [numbers(worker, ROWS, WIDTH), numbers(worker, 3 * WIDTH + 1)]
    overflow = torch.zeros(1, dtype=torch.int32, device=worker.device)
    norm = multi_tensor_applier(amp_C.multi_tensor_l2norm, overflow, [tensors], False)[0]
    return deviation([norm.reshape(1)], [torch.cat([tensor.reshape(-1) for tensor in tensors]).norm().reshape(1)])


def numbers(worker, *shape):
    dice = worker.torch.Generator().manual_seed(3)
    return worker.torch.randn(*shape, generator=dice).to(worker.device)


KERNELS = {
    "FusedLayerNorm": (("apex.normalization", "fused_layer_norm_cuda"), layer_norm),
    "FusedAdam": (("apex.optimizers", "amp_C"), adam),
    "multi_tensor_l2norm": (("apex.multi_tensor_apply", "amp_C"), l2norm),
}
"""Name to the modules that it needs, and to what gives its deviation."""
