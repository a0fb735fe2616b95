"""ddpdoctor, the doctor for PyTorch multi-GPU and multi-node training.

What its commands do, a program can call: `ddpdoctor.check()`, `jobs()`, `diagnose_log()`, `fix_checkpoint()`. Nothing is loaded
before it is asked for, and torch never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddpdoctor.base.version import __version__ as __version__

if TYPE_CHECKING:
    from ddpdoctor.api import CommandResult as CommandResult
    from ddpdoctor.api import NoVerdictError as NoVerdictError
    from ddpdoctor.api import UsageError as UsageError
    from ddpdoctor.api import check as check
    from ddpdoctor.api import diagnose_log as diagnose_log
    from ddpdoctor.api import fix_checkpoint as fix_checkpoint
    from ddpdoctor.api import jobs as jobs

_OF_THE_API = ("CommandResult", "NoVerdictError", "UsageError", "check", "diagnose_log", "fix_checkpoint", "jobs")


def __getattr__(name: str) -> Any:
    if name not in _OF_THE_API:
        raise AttributeError(f"module 'ddpdoctor' has no attribute {name!r}")
    from ddpdoctor import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_THE_API})
