"""The one place where a command for `ddpdoctor netcheck`, or smoke, on some node is written. Pure.

Where the nodes show each other a token, a command has dots in its place: it travels between nodes and stands in reports that
are kept. Only what is printed for a person at a terminal has the token itself; see `with_token`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from ddpdoctor.facts.meeting import Meeting

DEFAULT_PORT = 29500

TOKEN_VARIABLE = "DDPDOCTOR_TOKEN"
"""The environment variable that --token is read from. Unlike a command line, other users of the host can't read it."""

SMOKE_OPTIONS = ("--nproc", "--backend", "--timeout", "--stages")
OPTIONS = (*SMOKE_OPTIONS, "--wait", "--quick", "--python", "--strict")
"""Those that a command for another node takes over from the one that was typed here."""

DOTS = "..."
"""In the place of a token that isn't told."""


def netcheck_command(
    meeting: Meeting,
    nnodes: int | None,
    rank: int | None,
    more: Sequence[str] = (),
    *,
    master: str = "",
    port: int = 0,
) -> str:
    """Write what to type on the node of that rank, to meet at the same place and test the same.

    nnodes: None, if only the way to the master is to be looked at. rank: None for any. more: options, each with its value, that win over
    what was given here ("--wait 300"). master, port: to meet there and not at the same place.
    """
    # A node sends this, too.
    name = "smoke" if meeting.command == "smoke" else "netcheck"
    command = f"{by_launcher(meeting)}ddpdoctor {name} --master-addr"
    words = [command, shlex.quote(master or meeting.master)]
    port = port or meeting.port
    if port not in (0, DEFAULT_PORT):
        words.append(f"--master-port {port}")
    if nnodes is not None and not meeting.launched:
        words.append(f"--nnodes {nnodes}")
        words += [] if rank is None else [f"--node-rank {rank}"]
    if meeting.token and not meeting.launched:
        words.insert(0, f"{TOKEN_VARIABLE}={DOTS}")
    return " ".join([*words, *options(meeting, more)])


def for_netcheck(meeting: Meeting) -> Meeting:
    """The same meeting, for commands that test the network between its hosts, whatever was run there."""
    kept = tuple(option for option in meeting.options if option.partition(" ")[0] not in SMOKE_OPTIONS)
    return msgspec.structs.replace(meeting, command="netcheck", launched=False, options=kept)


def by_launcher(meeting: Meeting) -> str:
    """Write how the launcher starts all ranks, in front of the command that each of them is; "" by hand, or where it isn't known."""
    if not meeting.launched or not meeting.nnodes:
        return ""
    return {"Slurm": f"srun --ntasks={meeting.nnodes} ", "Open MPI": f"mpirun -np {meeting.nnodes} "}.get(
        meeting.launcher, ""
    )


def options(meeting: Meeting, more: Sequence[str] = ()) -> list[str]:
    """The options that were given here and that a command for any node takes over, and more."""
    return quoted((*meeting.options, *more))


def quoted(given: Sequence[str]) -> list[str]:
    """The options, each with its value, as a shell reads them; of two of a name the last."""
    chosen = dict(option.partition(" ")[::2] for option in given)
    # A node sends its options to node 0, which prints commands with them: nothing else may get into these.
    known = [(name, chosen[name]) for name in OPTIONS if name in chosen]
    return [f"{name} {shlex.quote(value)}" if value else name for name, value in known]


def with_token(text: str, token: str) -> str:
    """The text, with the token in the place of the dots of its commands; the dots stay where there is none."""
    there = f"{TOKEN_VARIABLE}={DOTS}"
    return text.replace(there, f"{TOKEN_VARIABLE}={shlex.quote(token)}") if token else text


def waits_longer(meeting: Meeting, nnodes: int, rank: int | None) -> str:
    """The command with twice the time for late nodes, five minutes at the least."""
    given = [float(option.removeprefix("--wait ")) for option in meeting.options if option.startswith("--wait ")]
    return netcheck_command(meeting, nnodes, rank, (f"--wait {2 * max([150.0, *given]):g}",))
