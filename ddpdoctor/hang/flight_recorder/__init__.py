"""Torch's flight recorders: the files they dumped, read as plain data, and who waits for whom by what stands in them."""

__all__ = [
    "collect_dumps",
    "dump_files",
    "plain_pickles",
    "wait_graph",
]
