"""`ddpdoctor gate`: whether this node may be given work, in the language of the scheduler or monitor that asks."""

# Annotations are values here, as in check.py.
import os
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
from ddpdoctor.gating.dialects import DIALECTS, Dialect, GateAnswer
from ddpdoctor.gating.outcome import no_verdict
from ddpdoctor.gating.supervision import ALARM_SECONDS, do_in_child, last_resort, seconds_since_start

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
            _leave(_wrong_usage(dialect, error.format_message()))


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
        typer.Option(metavar="SECONDS", help="For the whole. Default: what the caller allows."),
    ] = None,
) -> None:
    """Tell a scheduler or monitor, in its own language, whether this node may be given work.

    Only failures that are the node's own count: a user's wrong setting never
    takes a node out. Exit code: what the caller expects; as Slurm's
    HealthCheckProgram always 0.
    """
    dialect = DIALECTS.get(caller)
    if dialect is None:
        raise typer.BadParameter(f"--for {caller}: there is no such caller; there are {', '.join(DIALECTS)}")
    if serve is not None:
        _serve(serve, caller, select=chosen, ignore=ignored, owner=owners, quick=quick, killswitch=killswitch)
    try:
        seconds = dialect.seconds_for(timeout)
    except ValueError as error:
        _leave(_wrong_usage(dialect, str(error)))
    until = time.monotonic() + seconds - seconds_since_start()

    def judge() -> bytes:
        return _judge(
            dialect,
            until - HANDING_OVER_SECONDS,
            caller,
            select=chosen or (),
            ignore=ignored or (),
            owners=[name.strip() for names in owners or ["node"] for name in names.split(",")],
            quick=quick,
            drain=drain,
            kill=kill,
            killswitch=killswitch,
        )

    with last_resort(until + ALARM_SECONDS, _exit_code(dialect.codes[3], is_verdict=False)):
        try:
            judged = do_in_child(judge, _end_all, until)
            answer = msgspec.json.decode(judged, type=GateAnswer) if judged is not None else None
        except OSError as error:
            _leave(dialect.answer(no_verdict(f"no process could be started to look: {error.strerror or error}"), {}))
        except msgspec.DecodeError:
            _leave(dialect.answer(no_verdict("what looked at the node was ended in the middle of its answer"), {}))
        _leave(answer or dialect.answer(no_verdict(f"it could not be reached within {seconds:g} s"), {}))


def _serve(socket: str, caller: str, *, quick: bool, **options: list[str] | str | None) -> NoReturn:
    """Answer NVRx until stopped; each look is a command of its own with these options."""
    from ddpdoctor.api.gate_service import CALLER, ServiceError, serve_nvrx
    from ddpdoctor.base.error_lines import complain

    if caller != CALLER:
        raise typer.BadParameter(f"--serve goes with --for {CALLER} alone")
    words = ["--quick"] if quick else []
    for name, given in options.items():
        words += [f"--{name}={value}" for value in ([given] if isinstance(given, str) else given or ())]
    try:
        serve_nvrx(socket, words, lambda: typer.echo(f"ddpdoctor: answering on {socket}", err=True))
    except ServiceError as error:
        complain(str(error))
        raise typer.Exit(2) from error
    raise typer.Exit(0)


def _judge(dialect: Dialect, until: float, caller: str, **choices: Any) -> bytes:
    """In the child. Whatever goes wrong is no verdict on the node."""
    from ddpdoctor.api import node_gate

    try:
        answer = node_gate.gate_until(until, caller, **choices).answer()
    except ValueError as error:
        answer = _wrong_usage(dialect, str(error))
    except Exception as error:
        answer = dialect.answer(no_verdict(f"ddpdoctor itself failed ({type(error).__name__}: {error})"), {})
    return msgspec.json.encode(answer)


def _end_all() -> None:
    """End what the probes have started, if they were ever loaded."""
    if "ddpdoctor.probes.subprocesses" in sys.modules:
        sys.modules["ddpdoctor.probes.subprocesses"].end_all()


def _named_caller(arguments: list[str]) -> Dialect | None:
    """The caller that the words of a command line name, whatever else is wrong with them."""
    for word, following in pairwise([*arguments, ""]):
        if word == "--for" or word.startswith("--for="):
            return DIALECTS.get(following if word == "--for" else word.partition("=")[2])
    return None


def _wrong_usage(dialect: Dialect, text: str) -> GateAnswer:
    return dialect.answer(no_verdict(f"wrong usage: {text}"), {})


def _leave(answer: GateAnswer) -> NoReturn:
    """Say it, and end with the caller's exit code, also where nobody reads what is said, and at once: taking the interpreter down takes
    as long as the rest where hundreds end together."""
    _write(2, answer.stderr)
    if answer.details and _is_handed_down(DETAILS_DESCRIPTOR):
        _write(DETAILS_DESCRIPTOR, answer.details)
    _write(1, answer.stdout)
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


def _write(descriptor: int, text: str) -> None:
    left = memoryview(text.encode("utf-8", "replace"))
    with suppress(OSError):
        while left:
            left = left[os.write(descriptor, left) :]


def _is_handed_down(descriptor: int) -> bool:
    """Whether the caller has opened it for us. What Python opens doesn't outlive an exec."""
    with suppress(OSError):
        return os.get_inheritable(descriptor)
    return False
