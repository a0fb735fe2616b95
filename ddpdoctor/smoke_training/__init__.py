"""A reference DDP job in the target Python: planned, started, watched, ended, and judged by the checks of the family smoke.

- `plan`, `stages`, `training_order`: what is to be run
- `local/`: the ranks of this host
- `multinode/`: the ranks of several hosts
- `trainer/`: the ranks' own side, which runs in the target Python
- `analysis/`: what its facts mean; pure
- `render*`, `burn_in_picture`, `progress`: what the user sees of it
"""

__all__ = [
    "analysis",
    "burn_in_picture",
    "local",
    "multinode",
    "plan",
    "progress",
    "render",
    "render_words",
    "stages",
    "training_order",
]
