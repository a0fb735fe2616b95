"""The entry point: whatever happens, the user sees a sentence and an exit code."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from typing import TextIO

from ddpdoctor.base.error_lines import NO_MORE_THREADS, complain, lacks_threads
from ddpdoctor.base.signals import StoppedBySignal, ignore_signals, stop_on_signals
from ddpdoctor.base.terminal import forget_sizes_that_are_none, take_terminal
from ddpdoctor.base.text import guard

OBJECTS_BETWEEN_COLLECTIONS = 100_000


def main() -> None:
    """Runs the command line. Whatever happens, the user sees a sentence and not a traceback."""
    # Modules leave nothing to be collected, and looking for it again and again while they load takes a twentieth of the time.
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that can't show a character gets a "?" and the report goes on.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
        guard(stream)
    forget_sizes_that_are_none()
    take_terminal()
    stop_on_signals()
    code = _run()
    _leave(code)


def _open_closed_streams() -> None:
    """Open streams that the caller closed (`<&-`, `>&-`) on /dev/null, so that no file of ours gets their number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # Those below it are open by now, so that it gets this very number. What we start doesn't inherit it.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def _run() -> int:
    try:
        # Here and not above, so that Ctrl-C while it loads, or a broken installation, ends in a sentence, too.
        from ddpdoctor.cli.app import app
        from ddpdoctor.cli.completion import installs_completion, refuse_foreign_home

        if installs_completion(sys.argv[1:]) and (refusal := refuse_foreign_home()):
            return _say(refusal, 2)
        # typer hands back the code of `typer.Exit`, and None where a command simply ended.
        return app(prog_name="ddpdoctor", standalone_mode=False) or 0
    except StoppedBySignal as stopped:
        return _say(stopped.text, stopped.code)
    except BrokenPipeError:
        return 141
    except SystemExit as ended:
        # Without its standalone mode typer ends the process itself in two cases only: completion is done, or the reader of our
        # output has gone.
        return 141 if ended.code else 0
    except OSError as error:
        if error.filename is None and not _can_be_written(sys.stdout):
            _close_for_good(sys.stdout)
            return _say(f"the report could not be written: {error.strerror}", 2)
        return _say(f"ddpdoctor could not go on: {error.strerror or error}", 2)
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):
            # Here and not above: only who errs waits for it.
            from io import StringIO

            said = StringIO()
            error.show(said)
            _say(said.getvalue().removesuffix("\n"), 2)
            _hint_at_dashes()
            return int(error.exit_code)
        if lacks_threads(error):
            return _say(f"ddpdoctor could not go on: {NO_MORE_THREADS}", 2)
        # Here and not above: it takes milliseconds to load.
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(where.filename)}, line {where.lineno}"  # noqa: PTH119
        return _say(
            f"ddpdoctor itself failed ({type(error).__name__}: {error}; {place}). That is a bug in it, and no verdict on this host.",
            2,
        )


def _hint_at_dashes() -> None:
    """A file whose name begins with a dash is taken for options."""
    for argument in sys.argv[1:]:
        if argument[:1] == "-" and os.path.lexists(argument):
            _say(f"There is a file {argument} here: to name it, write ./{argument}", 2)


def _can_be_written(stream: TextIO) -> bool:
    try:
        # What could not be written before is forgotten: a flush alone would say that all is well.
        print(file=stream, flush=True)
    except OSError:
        return False
    return True


def _close_for_good(stream: TextIO) -> None:
    """Drop what a stream still holds, so that it fails no second time."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())


def _say(text: str, code: int) -> int:
    with suppress(OSError):
        complain(text)
    return code


def _leave(code: int) -> None:
    """Ends at once: a probe that hangs in the kernel must not hold us, nor a closed pipe end in a complaint."""
    ignore_signals()
    if "ddpdoctor.probes.subprocesses" in sys.modules:
        sys.modules["ddpdoctor.probes.subprocesses"].end_all()
    for stream in (sys.stdout, sys.stderr):
        code = _flush(stream, code)
    os._exit(code)


def _flush(stream: TextIO, code: int) -> int:
    try:
        stream.flush()
    except BrokenPipeError:
        return code or 141
    except OSError as error:
        return _say(f"the report could not be written: {error.strerror}", 2) if stream is sys.stdout else code
    return code
