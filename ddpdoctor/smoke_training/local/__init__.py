"""The ranks of this host: started and ended (`rank_runner`, `reaper`), watched (`rank_listener`, `rank_monitor`, `rank_stacks`), what each
came to (`rank_outcome`), and what they left behind (`leftovers`)."""

__all__ = [
    "training",
]
