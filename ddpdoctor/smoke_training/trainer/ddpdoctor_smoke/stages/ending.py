"""The clean end."""
# mypy: allow-untyped-defs, allow-untyped-calls

import gc


def shut_down(one):
    """A DDP object that dies after destroy_process_group hangs (torch 2.13 with gloo), so that all go before: also those in
    cycles, as DDP makes them."""
    one.kept.clear()
    gc.collect()
    one.collective("barrier before the end", "barrier")
    if one.on_gpu:
        one.torch.cuda.synchronize()
    one.step("destroy_process_group")
    one.dist.destroy_process_group()
