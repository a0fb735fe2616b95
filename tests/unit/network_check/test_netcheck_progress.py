"""How a netcheck goes while it goes: the live view's drawing, and the lines of a log."""

from __future__ import annotations

import io
import os
import pty
import shlex
import subprocess
import sys
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console

from ddpdoctor.facts.fleet import MissingNode
from ddpdoctor.facts.meeting import Attempt, ConnectOutcome, Meeting
from ddpdoctor.network_check.progress import NetcheckProgress, way_to_master
from ddpdoctor.network_check.protocol.hub import Hub
from ddpdoctor.network_check.protocol.messages import Waiting
from ddpdoctor.report.live import LineView, LiveView, show_on
from ddpdoctor.report.live_drawing import LiveDrawing

MEETING = Meeting(
    master="n0",
    port=29500,
    attempts=(Attempt(address="10.9.0.1", met=ConnectOutcome.REFUSED, words="Connection refused"),),
)
HOSTILE = "\x1b[31mred\nsecond line [bold]x[/bold]"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def hub(
    came: int, nnodes: int, *, ready: int | None = None, lost: dict[int, str] | None = None, host: str = "n"
) -> Hub:
    """A hub in which the first so many have joined, and of these the first `ready` have told their facts."""
    lost = lost or {}
    peers = {
        rank: SimpleNamespace(
            rank=rank,
            host=f"{host}{rank}",
            facts=object() if ready is None or rank < ready else None,
            lost=lost.get(rank, ""),
        )
        for rank in range(came)
    }
    absent = tuple(MissingNode(rank=rank) for rank in range(came, nnodes))
    names = {rank: peer.host for rank, peer in peers.items()}
    return cast(Hub, SimpleNamespace(nnodes=nnodes, peers=peers, names=names, absent=lambda: absent))


def command(rank: int) -> str:
    return f"ddpdoctor netcheck --master-addr 10.9.0.1 --nnodes 3 --node-rank {rank}"


def drawn(progress: NetcheckProgress, width: int = 80) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, markup=False, highlight=False, emoji=False)
    console.print(LiveDrawing(progress))
    return file.getvalue().removesuffix("\n")


def test_who_is_missing_is_named_with_the_command_to_run_there() -> None:
    progress = NetcheckProgress(clock=Clock())
    progress.hub(hub(2, 3, ready=1), command)
    assert progress.status() == (
        "2 of 3 nodes joined; n1 still looking at the host; waiting for node 2. Run on node 2: "
        "ddpdoctor netcheck --master-addr 10.9.0.1 --nnodes 3 --node-rank 2"
    )
    text = drawn(progress)
    assert "2 of 3 joined" in text
    assert f"  {command(2)}" in text.splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_command_can_be_copied_from_a_terminal_of_any_width(width: int) -> None:
    typed = "DDPDOCTOR_TOKEN='two words' ddpdoctor netcheck --master-addr 10.9.0.1 --nnodes 3 --node-rank 2 --wait 300 --quick"
    progress = NetcheckProgress(clock=Clock())
    progress.hub(hub(2, 3), lambda rank: typed)
    text = drawn(progress, width)
    assert all(len(line) <= width for line in text.splitlines())
    # A shell takes a backslash and the end of its line away.
    copied = text.partition("run there:\n")[2].replace("\\\n", "")
    assert shlex.split(copied) == shlex.split(typed)
    assert copied.count("\n") == 1


def test_who_is_lost_is_named_with_the_reason() -> None:
    progress = NetcheckProgress(clock=Clock())
    progress.hub(hub(2, 3, lost={1: "lost during join: stopped by its user: Ctrl-C"}), command)
    assert "lost     n1: during join: stopped by its user: Ctrl-C" in drawn(progress)


def test_node_0_does_not_wait_for_itself() -> None:
    progress = NetcheckProgress(clock=Clock())
    progress.hub(hub(0, 2), command)
    assert "waiting for node 1." in progress.status()
    assert "node 0" not in progress.status()


def test_another_node_is_told_the_way_and_who_is_waited_for() -> None:
    progress = NetcheckProgress(clock=Clock())
    assert progress.status() == ""
    progress.meeting(MEETING)
    assert progress.status() == (
        "Node 0 is not met yet at n0, port 29500: 10.9.0.1 refuses, so nobody listens there yet, or a filter rejects"
    )
    progress.waiting(Waiting(phase="join", waited_for=("node 2 (gpu07)",)))
    assert progress.status() == "Joined; waiting for node 2 (gpu07)"
    assert "node 2 (gpu07)" in drawn(progress)
    progress.waiting(Waiting(phase="join", waited_for=("node 2 (gpu07)",), first=2), command)
    assert progress.status() == f"Joined; waiting for node 2 (gpu07). Run on node 2: {command(2)}"
    assert command(2) in drawn(progress, 120)
    # Of one that came and is still busy with itself, nothing is left to type.
    progress.waiting(Waiting(phase="join", waited_for=("the facts of gpu07",)), command)
    assert progress.status() == "Joined; waiting for the facts of gpu07"
    assert command(2) not in drawn(progress, 120)
    progress.waiting(Waiting(phase="reach"))
    assert progress.status() == "reach: every node dials every other"


@pytest.mark.parametrize("met", list(ConnectOutcome))
def test_every_outcome_on_the_way_has_words(met: ConnectOutcome) -> None:
    way = way_to_master(Meeting(attempts=(Attempt(address="10.9.0.1", met=met),)))
    assert way.startswith("10.9.0.1 ")
    assert way != f"10.9.0.1 {met.value}"


def test_somebody_else_at_the_port_and_an_unknown_name_are_said_while_waiting() -> None:
    progress = NetcheckProgress(clock=Clock())
    attempt = Attempt(address="10.9.0.1", met=ConnectOutcome.CONNECTED)
    progress.meeting(Meeting(master="n0", port=29500, attempts=(attempt,), answered_by="an HTTP server"))
    assert progress.status().endswith("10.9.0.1 answers; it is an HTTP server, not ddpdoctor")
    progress.meeting(Meeting(master="n0", port=29500, unresolved="Name or service not known"))
    assert progress.status().endswith("the name n0 is not known yet: Name or service not known")
    assert "the name n0 is not known yet" in drawn(progress)


def test_phases_that_are_over_stay_with_their_seconds() -> None:
    clock = Clock()
    progress = NetcheckProgress(clock=clock)
    progress.waiting(Waiting(phase="join"))
    clock.now = 2.5
    progress.waiting(Waiting(phase="reach"))
    clock.now = 3.5
    assert "done     join 2.5 s" in drawn(progress)
    assert "now      reach  every node dials every other  1 s" in drawn(progress)


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("nnodes", [2, 8, 512, 4096])
def test_the_live_view_stays_small(nnodes: int, width: int) -> None:
    progress = NetcheckProgress(clock=Clock())
    progress.meeting(MEETING)
    progress.waiting(Waiting(phase="join"))
    came = nnodes // 2 + 1
    lost = dict.fromkeys(range(1, came, 2), "lost during join: nothing was heard of it for 10 s")
    progress.hub(hub(came, nnodes, ready=came // 2, lost=lost), command)
    while_waiting = drawn(progress, width)
    for phase in ("reach", "links", "gloo", "nccl"):
        progress.waiting(Waiting(phase=phase))
    for text in (while_waiting, drawn(progress, width)):
        lines = text.splitlines()
        assert len(lines) <= 20
        assert all(len(line) <= width for line in lines)
    assert ("run there" in while_waiting) == (came < nnodes)


def test_hostile_names_cannot_steer_the_terminal() -> None:
    progress = NetcheckProgress(clock=Clock())
    progress.hub(hub(2, 3, host=HOSTILE, lost={1: HOSTILE}), command)
    other = NetcheckProgress(clock=Clock())
    other.meeting(Meeting(master=HOSTILE, port=1, attempts=(Attempt(address=HOSTILE, met=ConnectOutcome.FAILED),)))
    for text in (drawn(progress), progress.status(), drawn(other), other.status()):
        assert "\x1b" not in text
    assert "\n" not in progress.status() + other.status()


def test_lines_come_when_something_changes_and_not_too_often() -> None:
    clock = Clock()
    progress = NetcheckProgress(clock=clock)
    lines = LineView(progress, io.StringIO())
    lines.close()
    progress.hub(hub(1, 3), command)
    assert lines.due() == ""
    clock.now = 1.5
    assert "1 of 3 nodes joined" in lines.due()
    progress.hub(hub(2, 3), command)
    clock.now = 2.0
    assert lines.due() == ""
    clock.now = 4.0
    assert "2 of 3 nodes joined" in lines.due()
    said = []
    for second in range(5, 125):
        clock.now = float(second)
        if lines.due():
            said.append(second)
    assert said == [19, 49, 109]


def test_without_a_terminal_rich_is_not_loaded() -> None:
    script = (
        "import sys; from ddpdoctor.network_check.progress import NetcheckProgress; from ddpdoctor.report.live import show_on; "
        "show_on(sys.stderr, NetcheckProgress()).close(); print('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def read(leader: int) -> bytes:
    """What was written to the terminal, and b"" once that is closed."""
    try:
        return os.read(leader, 65536)
    except OSError:
        return b""


def test_a_closed_live_view_leaves_the_cursor_and_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        progress = show_on(terminal, NetcheckProgress())
        assert isinstance(progress.view, LiveView)
        progress.hub(hub(1, 2), command)
        progress.close()
        progress.close()
    written = b"".join(iter(lambda: read(leader), b"")).decode()
    os.close(leader)
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1
    assert written.rindex("\x1b[?25h") > written.rindex("1 of 2 joined")


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        progress = show_on(terminal, NetcheckProgress())
        assert isinstance(progress.view, LineView)
        progress.close()
    os.close(leader)
