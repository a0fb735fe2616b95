"""Errors that say why a checkpoint was left as it is. Each carries a sentence for the user and, where there is one, what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class CheckpointError(Exception):
    """The file was not changed.

    text: what is wrong, in one sentence without a full stop.
    advice: what to do about it, one sentence; commands: exactly what to type.
    """

    def __init__(self, text: str, advice: str = "", commands: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.text = text
        self.advice = advice
        self.commands = commands

    def after(self, done: str) -> CheckpointError:
        """The same error, where something was changed before it: a sentence that says what."""
        unchanged, unchanged_since = "Nothing was changed", "Nothing else was changed"
        text, advice = (sentence.replace(unchanged, unchanged_since) for sentence in (self.text, self.advice))
        return type(self)(f"{done} Then: {text}", advice, self.commands)


class Damaged(CheckpointError):
    """Truncated or corrupt: `text` says what exactly."""

    def __init__(
        self,
        text: str,
        advice: str = "Copy or download it again, or go back to the checkpoint before it",
        commands: tuple[str, ...] = (),
    ) -> None:
        super().__init__(text, advice, commands)


class OutOfData(Damaged):
    """The pickle goes on behind the end of the data."""

    def __init__(self) -> None:
        super().__init__("The pickle breaks off in the middle")


class Refused(CheckpointError):
    """It could be read, and is not touched: suspicious, in use, a link, no permission, or an option that can't be met."""


class Busy(Refused):
    """Another run is at work on the file, or was since it was read: a moment later things look otherwise."""


class Stale(Refused):
    """The undo file belongs to content that is gone: saved anew or replaced. It says nothing about the file as it is."""


class Untrusted(Refused):
    """The undo file isn't believed: somebody else could have written what lies there. It is left alone."""


class Torn(Refused):
    """A run was killed while it changed the file, and what stands there now is, or may be, neither old nor new."""


class NotACheckpoint(CheckpointError):
    """The file is something else: `text` says what it is."""


@contextmanager
def system_errors_refused(path: Path) -> Iterator[None]:
    """Turn what the system says of a file, or a lack of memory, into a refusal.

    Raises:
        Refused: in place of either.
    """
    try:
        yield
    except OSError as error:
        raise Refused(f"{error.filename or path}: {error.strerror or error}") from error
    except (MemoryError, RecursionError) as error:
        raise Refused("There is not enough memory to read its pickle") from error
