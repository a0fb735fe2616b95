"""The clean end."""
# mypy: allow-untyped-defs, allow-untyped-calls


def shut_down(one):
    """A DDP object that dies after destroy_process_group hangs (torch 2.13 with gloo), so that all go before."""
    import gc

    one.kept.clear()
    gc.collect()
    one.step("barrier before the end")
    one.dist.barrier()
    one.step("destroy_process_group")
    one.dist.destroy_process_group()
