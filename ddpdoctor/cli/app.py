"""The command line: `ddpdoctor COMMAND`. One small module a command; here only what they share."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from contextlib import suppress
from typing import Annotated, TextIO

import typer

from ddpdoctor import __version__
from ddpdoctor.cli.check import check
from ddpdoctor.cli.explain import explain
from ddpdoctor.cli.list_checks import list_checks
from ddpdoctor.cli.snapshot import snapshot
from ddpdoctor.probes.subprocesses import end_all

app = typer.Typer(
    name="ddpdoctor",
    help="The doctor for PyTorch multi-GPU and multi-node training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(check)
app.command()(snapshot)
app.command("list")(list_checks)
app.command()(explain)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ddpdoctor {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """The doctor for PyTorch multi-GPU and multi-node training."""


def main() -> None:
    """Runs the command line. Whatever happens, the user sees a sentence and not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that can't show a character gets a "?" and the report goes on.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    code = _run()
    _leave(code)


def _stop(number: int, frame: object) -> None:
    raise _Stopped(128 + number)


class _Stopped(KeyboardInterrupt):
    """A signal asks us to end."""

    def __init__(self, code: int) -> None:
        self.code = code


def _run() -> int:
    try:
        app(standalone_mode=False)
    except typer.Exit as ended:
        return ended.exit_code
    except _Stopped as stopped:
        return _say("Stopped. Nothing was changed.", stopped.code)
    except (KeyboardInterrupt, typer.Abort):
        return _say("Stopped. Nothing was changed.", 130)
    except BrokenPipeError:
        return 141
    except OSError as error:
        return _say(f"ddpdoctor could not go on: {error.strerror or error}", 2)
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):
            error.show(sys.stderr)
            return int(error.exit_code)
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(where.filename)}, line {where.lineno}"  # noqa: PTH119
        return _say(
            f"ddpdoctor itself failed ({type(error).__name__}: {error}; {place}). That is a bug in it, and no verdict on this host.",
            2,
        )
    return 0


def _say(text: str, code: int) -> int:
    with suppress(OSError):
        print(text, file=sys.stderr)
    return code


def _leave(code: int) -> None:
    """Ends at once: a probe that hangs in the kernel must not hold us, nor a closed pipe end in a complaint."""
    end_all()
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
