"""`ddpdoctor gate`: whether this node may be given work, in the language of the scheduler or monitor that asks."""

# Annotations are values here, as in check.py.
import os
import select
import signal
import sys
import time
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, NoReturn

import msgspec
import typer
from typer.core import TyperCommand

from ddpdoctor.cli.options import IgnoreOption, QuickOption, SelectOption
from ddpdoctor.gating.dialects import DIALECTS, SERVED_CALLER, Dialect, GateAnswer
from ddpdoctor.gating.outcome import no_verdict
from ddpdoctor.gating.supervision import (
    ALARM_SECONDS,
    LostChildError,
    do_in_child,
    last_resort,
    seconds_since_start,
)

DETAILS_DESCRIPTOR = 3
LAUNCHER_CODES = "DDPDOCTOR_GATE_CODES_FROM"
"""Set by deploy/ddpdoctor-gate: what it wants added to an exit code that is an answer. All other codes say that there was none."""
UNANSWERED_CODE = 124
"""As `timeout` ends where there was no answer in time."""
HANDING_OVER_SECONDS = 0.5
"""Before the time is up, for the answer without a verdict."""


class GateCommand(TyperCommand):
    """Answers as its caller expects where the options are wrong, too: a typing error in slurm.conf must take no node out."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        given = list(args)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except Exception as error:
            dialect = _named_caller(given)
            if dialect is None or not hasattr(error, "format_message"):
                raise
            leave(dialect, _wrong_usage(dialect, error.format_message()))


COMMAND = GateCommand


def gate(
    caller: Annotated[str, typer.Option("--for", metavar="CALLER", help=f"Who asks: {', '.join(DIALECTS)}.")],
    chosen: SelectOption = None,
    ignored: IgnoreOption = None,
    owners: Annotated[
        list[str] | None,
        typer.Option(
            "--owner",
            help="Whose failures count: node, fabric, user, unknown (comma-separated or repeated). Default: node.",
        ),
    ] = None,
    quick: QuickOption = False,
    drain: Annotated[
        bool,
        typer.Option("--drain", help="Drain this node of Slurm if it fails; undrain it if we had, and it has healed."),
    ] = False,
    kill: Annotated[
        bool, typer.Option("--kill", help="For slurm-epilog: end what is proven to be left over from the job.")
    ] = False,
    killswitch: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Names checks that are switched off. Default: /etc/ddpdoctor/killswitch, if it is there.",
        ),
    ] = None,
    serve: Annotated[
        str | None,
        typer.Option(metavar="SOCKET", help="For nvrx: answer its launcher on this unix socket, until stopped."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="For the whole, 1 to 600 (slurm-healthcheck: 50). Default: what the caller allows."
        ),
    ] = None,
) -> None:
    """Tell a scheduler or monitor, in its own language, whether this node may be given work.

    Only failures that are the node's own count: a user's wrong setting never
    takes a node out. Exit code: what the caller expects, for a wrong option,
    too; as Slurm's HealthCheckProgram always 0.
    """
    dialect = DIALECTS.get(caller)
    if dialect is None:
        raise typer.BadParameter(f"--for {caller}: there is no such caller; there are {', '.join(DIALECTS)}")
    counted = [name.strip() for names in owners or ["node"] for name in names.split(",")]
    if serve is not None:
        if caller != SERVED_CALLER or drain or kill or timeout is not None:
            words = f"--serve goes with --for {SERVED_CALLER} alone, and without --drain, --kill and --timeout"
            leave(dialect, _wrong_usage(dialect, words))
        _serve(dialect, serve, select=chosen, ignore=ignored, owner=counted, quick=quick, killswitch=killswitch)
    try:
        seconds = dialect.seconds_for(timeout)
    except ValueError as error:
        leave(dialect, _wrong_usage(dialect, str(error)))
    until = time.monotonic() + seconds - seconds_since_start()

    def judge() -> bytes:
        return _judge(
            dialect,
            until - HANDING_OVER_SECONDS,
            caller,
            select=chosen or (),
            ignore=ignored or (),
            owners=counted,
            quick=quick,
            drain=drain,
            kill=kill,
            killswitch=killswitch,
        )

    with last_resort(until + ALARM_SECONDS, _exit_code(dialect.codes[3], is_verdict=False)):
        try:
            judged = do_in_child(judge, _end_all, until)
            answer = msgspec.json.decode(judged, type=GateAnswer) if judged is not None else None
            why = f"it could not be reached within {seconds:g} s"
        except OSError as error:
            answer, why = None, f"no process could be started to look: {error.strerror or error}"
        except LostChildError as error:
            answer, why = None, f"the process that looked at the node {error}"
        except msgspec.DecodeError:
            answer, why = None, "what looked at the node was ended in the middle of its answer"
        leave(dialect, answer or dialect.answer(no_verdict(why), {}))


def _serve(
    dialect: Dialect,
    socket: str,
    *,
    select: list[str] | None,
    ignore: list[str] | None,
    owner: list[str],
    quick: bool,
    killswitch: str | None,
) -> NoReturn:
    """Answer NVRx until stopped; each look is a command of its own with these options."""
    from ddpdoctor.api.errors import UsageError
    from ddpdoctor.api.gate_service import ServiceError, serve_nvrx
    from ddpdoctor.api.node_gate import refuse_unknown_names
    from ddpdoctor.base.error_lines import complain

    try:
        # Once, and not at each look, where nobody sees it.
        refuse_unknown_names(select or (), ignore or (), owner)
    except UsageError as error:
        leave(dialect, _wrong_usage(dialect, str(error)))
    words = ["--quick"] if quick else []
    options = {
        "select": select,
        "ignore": ignore,
        "owner": owner,
        "killswitch": None if killswitch is None else [killswitch],
    }
    words += [f"--{name}={value}" for name, values in options.items() for value in values or ()]
    try:
        serve_nvrx(socket, words, lambda: typer.echo(f"ddpdoctor: answering on {socket}", err=True))
    except ServiceError as error:
        complain(str(error))
        raise typer.Exit(2) from error
    raise typer.Exit(0)


def _judge(dialect: Dialect, until: float, caller: str, **choices: Any) -> bytes:
    """In the child. Whatever goes wrong is no verdict on the node."""
    from ddpdoctor.api import node_gate
    from ddpdoctor.api.errors import UsageError
    from ddpdoctor.base.error_lines import NO_MORE_THREADS, lacks_threads

    try:
        answer = node_gate.gate_until(until, caller, **choices).answer()
    except UsageError as error:
        answer = _wrong_usage(dialect, str(error))
    except Exception as error:
        failed = f"ddpdoctor itself failed ({type(error).__name__}: {error})"
        answer = dialect.answer(no_verdict(NO_MORE_THREADS if lacks_threads(error) else failed), {})
    return msgspec.json.encode(answer)


def _end_all() -> None:
    """End what the probes have started, if they were ever loaded."""
    if "ddpdoctor.probes.subprocesses" in sys.modules:
        sys.modules["ddpdoctor.probes.subprocesses"].end_all()


def _named_caller(arguments: list[str]) -> Dialect | None:
    """The caller that the words of a command line name last, whatever else is wrong with them."""
    name = ""
    for word, following in pairwise([*arguments, ""]):
        if word == "--for" or word.startswith("--for="):
            name = following if word == "--for" else word.partition("=")[2]
    return DIALECTS.get(name)


def _wrong_usage(dialect: Dialect, text: str) -> GateAnswer:
    return dialect.answer(no_verdict(f"wrong usage: {text}"), {})


def leave(dialect: Dialect, answer: GateAnswer) -> NoReturn:
    """Say it, and end with the caller's exit code, also where nobody reads what is said, and at once: taking the interpreter down takes
    as long as the rest where hundreds end together."""
    unread_code = _exit_code(dialect.code_unread(answer.code))
    # By then whoever holds the other end of a full pipe hasn't read.
    signal.signal(signal.SIGALRM, lambda *_: os._exit(unread_code))
    _write(2, answer.stderr)
    if answer.details and _is_handed_down(DETAILS_DESCRIPTOR):
        _write(DETAILS_DESCRIPTOR, answer.details)
    if why := _write(1, answer.stdout):
        _write(2, f"ddpdoctor: the answer could not be written to standard output: {why}\n")
        os._exit(unread_code)
    os._exit(_exit_code(answer.code))


def _exit_code(code: int, *, is_verdict: bool = True) -> int:
    """The caller's exit code as the launcher is to see it, if that started this."""
    base = _launcher_base()
    return code if base is None else base + code if is_verdict else UNANSWERED_CODE


@cache
def _launcher_base() -> int | None:
    """The launcher's word, taken out of the environment: it is none of the settings of a job here."""
    base = os.environ.pop(LAUNCHER_CODES, "")
    return int(base) if base.isdecimal() else None


def _write(descriptor: int, text: str) -> str:
    """Why it could not be written; "" where it was."""
    left = memoryview(text.encode("utf-8", "replace"))
    if left and not _is_handed_down(descriptor):
        return "it is closed"
    try:
        while left:
            try:
                left = left[os.write(descriptor, left) :]
            except BlockingIOError:
                select.select([], [descriptor], [])
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _is_handed_down(descriptor: int) -> bool:
    """Whether the caller has opened it for us. What Python opens doesn't outlive an exec."""
    with suppress(OSError):
        return os.get_inheritable(descriptor)
    return False
