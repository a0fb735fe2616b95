"""`preflight()` as a callback of transformers' Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddpdoctor.api.errors import UsageError
from ddpdoctor.api.preflight_callback import PreflightCallback

if TYPE_CHECKING:

    class _TrainerCallback:
        """What stands for transformers' class where types are checked."""

else:
    try:
        from transformers import TrainerCallback as _TrainerCallback
    except ImportError as error:
        raise UsageError(
            f"transformers can't be imported in this Python ({error}): pip install transformers"
        ) from error


class TransformersPreflight(PreflightCallback, _TrainerCallback):
    """Runs `preflight()` on every rank as the Trainer is made, before the model is wrapped: wrapping it is the first thing that hangs.

    Added to a Trainer that is there already, it runs as the training begins.

    Args:
        timeout: as for `preflight`.
        on_illness: as for `preflight`.
    """

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Run it: the Trainer has been made."""
        self.run_once(args.device)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Run it, unless that has been done."""
        self.run_once(args.device)
