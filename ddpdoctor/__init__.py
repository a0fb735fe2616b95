"""ddpdoctor, the doctor for PyTorch multi-GPU and multi-node training.

What its commands do, a program can call: `ddpdoctor.check()`, `netcheck()`, `smoke()`, `jobs()`, `watch()`, `zombies()`,
`diagnose_log()`, `fix_checkpoint()`, `fleet()`, `gate()`, `lint()` and `snapshot()`. A training program calls `preflight()`. Nothing is loaded
before it is asked for, and torch by `preflight()` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddpdoctor.base.version import __version__ as __version__

if TYPE_CHECKING:
    from ddpdoctor.api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    # Not `from ddpdoctor import api`, which would ask here for it.
    import ddpdoctor.api as api

    if name not in api.MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(api, name)


def __dir__() -> list[str]:
    from ddpdoctor import api

    return sorted({*globals(), *api.MODULES})
