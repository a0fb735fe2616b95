"""The clean end."""
# mypy: allow-untyped-defs, allow-untyped-calls

import gc


def shut_down(worker):
    """A DDP object that dies after destroy_process_group hangs (torch 2.13 with gloo), so that all go before: also those in
    cycles, as DDP makes them."""
    worker.kept.clear()
    gc.collect()
    worker.collective("barrier before the end", "barrier")
    if worker.on_gpu:
        worker.torch.cuda.synchronize()
    worker.step("destroy_process_group")
    worker.dist.destroy_process_group()
