"""`preflight()` as a callback of Lightning's Trainer, of `lightning` and of `pytorch_lightning`."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ddpdoctor.api.errors import UsageError
from ddpdoctor.api.preflight_callback import PreflightCallback

MODULES: Final = ("lightning.pytorch", "pytorch_lightning")
"""Two packages of the same code; each has a class of its own for callbacks."""


def _callback_classes() -> tuple[type, ...]:
    """Find the classes of those packages that the program has imported; where it has imported none, of the first that is installed.

    Raises:
        UsageError: neither is.
    """
    imported = [name for name in MODULES if name in sys.modules]
    for name in imported or MODULES:
        with suppress(ImportError):
            import_module(name)
            if not imported:
                imported = [name]
                break
    if not imported:
        raise UsageError("neither lightning nor pytorch_lightning is installed in this Python: pip install lightning")
    return tuple(dict.fromkeys(sys.modules[name].Callback for name in imported))


if TYPE_CHECKING:

    class _Callback:
        """What stands for Lightning's class where types are checked."""

else:
    _Callback = type("_Callback", _callback_classes(), {})


class LightningPreflight(PreflightCallback, _Callback):
    """Runs `preflight()` on every rank, once the process group is there and before the model is set up.

    Args:
        timeout: as for `preflight`.
        on_illness: as for `preflight`.
    """

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Run it, the first time that the trainer sets anything up."""
        self.run_once(trainer.strategy.root_device)
