"""The supervisor: the command's parent, from its start to the last word on it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from ddpdoctor.base.text import visible
from ddpdoctor.run.command_start import NotStarted, let_go_of_inherited, start
from ddpdoctor.run.diagnosis_process import DiagnosisProcess, Work
from ddpdoctor.run.messages import Words
from ddpdoctor.run.orphans import adopt, children, places
from ddpdoctor.run.output_copy import HEAD, TAIL, joined, part_of
from ddpdoctor.run.output_file import KeptFile, NotKeptError
from ddpdoctor.run.output_streams import STDERR, Ways, copy_size, ways
from ddpdoctor.run.relay_client import Carrier
from ddpdoctor.run.shared_output import SharedOutput
from ddpdoctor.run.signal_forwarding import (
    AWAITED,
    PASSED_ON,
    STOPS,
    Witness,
    end_as_it_did,
    is_stopped,
    stop_as_it_did,
)
from ddpdoctor.run.silence_detection import Silence

OUTPUT: Final = "output"
"""The name of the copy, where the output isn't in a file anyway."""
LOOK_PATIENCE: Final = 60.0
DIAGNOSIS_PATIENCE: Final = 60.0
"""Seconds that the doctor may take; for a look beyond those for which he watches."""
SHORTEST_WATCH: Final = 3
LONGEST_WATCH: Final = 30
WATCHED_PART: Final = 10
"""Seconds for which the ranks are watched, and what part of the silence that is."""
LEFT_PATIENCE: Final = 20.0
"""For what the command has left running."""
LONGEST_WAIT: Final = 3600.0
"""For a signal: the call doesn't take any number of seconds."""
HURRY_SECONDS: Final = 10.0
"""For a diagnosis that is under way when a launcher ends us."""
STOPPING_SECONDS: Final = 60.0
"""A command that ends so soon after it was asked to has ended for that."""
STOPPING: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)


class EndedCommand(NamedTuple):
    """What a diagnosis is made of. seconds: how long it ran. output: name and text of what the command has said. began: when, in
    seconds since the epoch; what the run has written is no older, however late the diagnosis looks for it."""

    command: Sequence[str]
    status: int
    seconds: float
    output: tuple[tuple[str, bytes], ...]
    began: float


class Orders(NamedTuple):
    """hang_after: seconds, 0 for never. keep: a file for the copy. brief: the diagnosis alone speaks of a failure.
    clear_up: called at the end, with the command's status, None where it was never started. ignored, mask: signals as they were when ddpdoctor was started. look: what a doctor does about the silent command of that pid, in how many seconds; diagnose: about one that failed.
    left: about what one has left running: its name, its status, pids that aren't meant, device and inode of its outputs."""

    command: Sequence[str]
    environ: Mapping[str, str]
    hang_after: float
    keep: KeptFile | None
    brief: bool
    ignored: Collection[int]
    mask: Iterable[int]
    look: Callable[[int, int], Work]
    diagnose: Callable[[EndedCommand], Work]
    left: Callable[[str, int, Collection[int], Set[tuple[int, int]]], Work]
    clear_up: Callable[[int | None], None]


def supervise(orders: Orders) -> int:
    """Runs the command; the exit code. Where a signal ended the command, the same ends this process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    try:
        supervisor = _Supervisor(orders, ways(), SharedOutput(HEAD, TAIL))
        supervisor.prepare()
    except OSError as error:
        return _without_us(orders, error)
    try:
        supervisor.start()
    except NotStarted as error:
        orders.clear_up(None)
        supervisor.say(str(error))
        return error.code
    status = supervisor.run()
    orders.clear_up(status)
    return end_as_it_did(status)


def _without_us(orders: Orders, error: OSError) -> int:
    """There are no more descriptors, terminals or processes for us: the training shall run all the same."""
    print(f"ddpdoctor can't watch the command ({error.strerror}): it runs without", file=sys.stderr, flush=True)
    try:
        pid = start(orders.command, orders.environ, (), orders.ignored, orders.mask)
    except NotStarted as refused:
        orders.clear_up(None)
        print(refused, file=sys.stderr)
        return refused.code
    status = os.waitpid(pid, 0)[1]
    orders.clear_up(status)
    return end_as_it_did(status)


class _Supervisor:
    def __init__(self, orders: Orders, ways: Ways, shared: SharedOutput) -> None:
        self._orders = orders
        self._ways = ways
        self._shared = shared
        self._words = Words(orders.command)
        self._witness = Witness(shared)
        self._silence = Silence(orders.hang_after, shared, ways.direct)
        self._child = 0
        self._status: int | None = None
        self._carrier = Carrier(ways.streams, shared)
        self._doctor: DiagnosisProcess | None = None
        self._silent = 0.0
        self._asked_to_stop: dict[int, float] = {}
        self._impatient = False
        self._hurried = False
        self._said: list[bytes] = []
        self._besides: frozenset[int] = frozenset()
        self._outputs: frozenset[tuple[int, int]] = frozenset()
        self._gathered: list[bytes] | None = None

    # --- from start to end --------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Raises OSError: there are no more processes."""
        self._carrier.start()
        self._witness.relay = self._carrier.pid

    def start(self) -> None:
        """Raises NotStarted."""
        orders = self._orders
        adopt()
        self._besides = children()
        self._outputs = places(
            *(stream.given for stream in self._ways.streams), *(direct.reading for direct in self._ways.direct)
        )
        self._began = time.monotonic()
        self._child = start(orders.command, orders.environ, self._ways.streams, orders.ignored, orders.mask)
        self._carrier.command_has_begun()
        # Who writes to the command's standard input shall see that it reads no more.
        with open(os.devnull) as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), 0)
        let_go_of_inherited()

    def run(self) -> int:
        """The command's status, once all is said."""
        try:
            self._wait(lambda: self._status is not None)
        except Exception as error:
            self.say(self._words.broken(error))
        if self._status is None:
            # A bug of ours: the command is waited for all the same.
            self._status = os.waitpid(self._child, 0)[1]
        seconds = time.monotonic() - self._began
        began = time.time() - seconds
        self._end_doctor()
        left = self._left_running()
        self._carrier.tell_end()
        self._wait(lambda: self._carrier.done or self._shared.drained)
        self._shared.keep_no_more()
        if left and self._ways.direct:
            # What goes on writes into the file itself: all that we say is to stand there together.
            self._gathered = []
        if not self._impatient:
            try:
                self._conclude(EndedCommand(self._orders.command, self._status, seconds, (), began))
            except Exception as error:
                self.say(self._words.broken(error))
        self._say_all(left)
        return self._status

    def _left_running(self) -> bytes:
        """What is to be said of those that the command has started and that live; "" of none."""
        assert self._status is not None
        self._reap()
        besides = {*self._besides, self._carrier.pid}
        if not (pids := children() - besides):
            return b""
        try:
            work = self._orders.left(self._words.name, self._status, besides, self._outputs)
            doctor = self._call_doctor(work, LEFT_PATIENCE)
            self._wait(lambda: doctor.code is not None)
        except Exception as error:
            return f"{visible(self._words.broken(error))}\n".encode()
        self._end_doctor()
        if doctor.code == 0 and not doctor.was_told_to_end:
            return doctor.text
        return f"{visible(self._words.left_running(pids))}\n".encode()

    def _conclude(self, ended: EndedCommand) -> None:
        wanted = os.waitstatus_to_exitcode(ended.status) != 0 and not self._to_be_expected()
        if not wanted and not self._orders.keep:
            return
        ended = ended._replace(output=self._output())
        if self._orders.keep:
            self._keep_in(self._orders.keep, ended)
        if wanted:
            self._diagnose(ended)

    def _to_be_expected(self) -> bool:
        """The user, or what runs the job, has ended it; or nobody wanted its output any more."""
        if any(self._shared.broken(number) for number in range(len(self._ways.streams))):
            return True
        lately = [number for number, when in self._asked_to_stop.items() if time.monotonic() - when < STOPPING_SECONDS]
        if lately and not {signal.SIGINT, signal.SIGQUIT} & set(lately):
            self.say(self._words.asked_to_stop(lately[-1]))
        return bool(lately)

    def _output(self) -> tuple[tuple[str, bytes], ...]:
        found = []
        if self._ways.streams:
            found.append((OUTPUT, joined(*self._shared.kept())))
        for direct in self._ways.direct:
            text = part_of(direct.reading, direct.start, direct.end())
            for said in self._said:
                text = text.replace(said, b"", 1)
            found.append((str(Path(f"/proc/self/fd/{direct.reading}").readlink()), text))
        return tuple(found)

    def _keep_in(self, file: KeptFile, ended: EndedCommand) -> None:
        try:
            file.write(b"".join(text for _, text in ended.output))
        except (OSError, NotKeptError) as error:
            self.say(self._words.not_kept(file.path, error))

    # --- the doctor ---------------------------------------------------------------------------------------------------------

    def _diagnose(self, ended: EndedCommand) -> None:
        if not self._orders.brief:
            self.say(self._words.diagnosing(ended.status, ended.seconds))
        doctor = self._call_doctor(self._orders.diagnose(ended), DIAGNOSIS_PATIENCE)
        self._wait(lambda: doctor.code is not None)
        if doctor.code is None:
            self._end_doctor()
            self.say(self._words.interrupted())
            return
        self.say(doctor.text if self._spoke(doctor) else self._words.no_diagnosis(doctor.was_told_to_end, doctor.code))

    def _look(self, silent: float) -> None:
        self._silent = silent
        try:
            seconds = int(min(LONGEST_WATCH, max(SHORTEST_WATCH, silent / WATCHED_PART)))
            self._call_doctor(self._orders.look(self._child, seconds), LOOK_PATIENCE + seconds)
        except Exception as error:
            self._silence.judged(ill=False)
            self.say(f"{self._words.silent(silent)} {self._words.broken(error)}")

    def _looked(self, doctor: DiagnosisProcess) -> None:
        """Says what the doctor found, unless the command speaks again. Of one silence once, until something is wrong."""
        if not self._silence.too_long():
            return
        ill = doctor.code == 1 and self._spoke(doctor)
        if ill or not self._silence.looked_before:
            found = doctor.text if self._spoke(doctor) else self._words.no_look().encode() + b"\n"
            between = b"\n" if ill and not self._orders.brief else b" "
            self.say(self._words.silent(self._silent).encode() + between + found)
        self._silence.judged(ill=ill)

    @staticmethod
    def _spoke(doctor: DiagnosisProcess) -> bool:
        return doctor.code in (0, 1, 2) and not doctor.was_told_to_end and bool(doctor.text.strip())

    def _call_doctor(self, work: Work, patience: float) -> DiagnosisProcess:
        def at_work() -> int:
            self._carrier.let_go_of_all()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            return work()

        self._doctor = DiagnosisProcess(at_work, self._words.environ(), patience)
        return self._doctor

    def _end_doctor(self) -> None:
        """At once: what it was asked for is past."""
        if self._doctor:
            self._doctor.end()
            self._doctor.end()
            self._doctor = None

    # --- waiting ------------------------------------------------------------------------------------------------------------

    def _wait(self, done: Callable[[], bool]) -> None:
        while not done() and not self._impatient:
            seconds = self._due() - time.monotonic()
            info = signal.sigtimedwait(AWAITED, min(max(0.0, seconds), LONGEST_WAIT))
            if info is not None:
                self._take(info.si_signo, info.si_code)
            self._tick()

    def _due(self) -> float:
        """When to look after things without being told."""
        times = [self._carrier.due]
        if self._doctor:
            times.append(self._doctor.until)
        elif self._status is None and (look := self._silence.next_look()) is not None:
            times.append(look)
        return min(times)

    def _tick(self) -> None:
        self._carrier.see_to_it()
        self._witness.relay = self._carrier.pid
        if self._doctor and self._doctor.late:
            self._doctor.end()
        if self._status is None and not self._doctor and (silent := self._silence.too_long()):
            self._look(silent)

    def _take(self, number: int, code: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
            self._carrier.let_go_of_broken()
        elif number == signal.SIGWINCH:
            self._resize()
        elif self._status is not None:
            if number not in self._orders.ignored:
                self._be_quick(number)
        elif number in PASSED_ON:
            if number in STOPPING:
                self._asked_to_stop[number] = time.monotonic()
            if number == signal.SIGCONT:
                self._silence.resumed()
                self._resize()
            if not self._witness.others_have(number, code):
                with suppress(ProcessLookupError):
                    os.kill(self._child, number)

    def _be_quick(self, number: int) -> None:
        """The command has ended, and somebody asks us to. A launcher whose other ranks failed with ours waits longer than this."""
        if number in (signal.SIGTERM, signal.SIGHUP) and self._doctor and not self._hurried:
            self._hurried = True
            self._doctor.hurry(HURRY_SECONDS)
        elif number in STOPPING:
            self._impatient = True

    def _resize(self) -> None:
        changed = [copy_size(stream.destination, stream.source) for stream in self._ways.streams if stream.terminal]
        if any(changed) and self._child and self._status is None:
            # It may have looked before we had.
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGWINCH)

    def _reap(self) -> None:
        """All that have ended or stopped: as the first process of a container, those of others, too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if not pid:
                return
            if os.WIFSTOPPED(status):
                if pid == self._carrier.pid:
                    os.kill(pid, signal.SIGCONT)
                elif pid == self._child and os.WSTOPSIG(status) in STOPS and is_stopped(pid):
                    stop_as_it_did(os.WSTOPSIG(status))
            elif pid == self._child:
                self._status = status
            elif pid == self._carrier.pid:
                self._carrier.ended(status)
                self._witness.relay = 0
            elif self._doctor and pid == self._doctor.pid:
                doctor = self._doctor
                doctor.ended(status)
                self._doctor = None
                if self._status is None:
                    self._looked(doctor)

    # --- words --------------------------------------------------------------------------------------------------------------

    def say(self, text: str | bytes) -> None:
        """To standard error, whole and at once. What can't be written there is lost."""
        data = text if isinstance(text, bytes) else f"{visible(text)}\n".encode()
        if self._gathered is not None:
            self._gathered.append(data)
            return
        self._said.append(data)
        with suppress(OSError):
            while data:
                data = data[os.write(STDERR, data) :]
        self._silence.wrote_ourselves()

    def _say_all(self, last: bytes) -> None:
        """What was gathered, and that."""
        data = b"".join([*(self._gathered or ()), last])
        self._gathered = None
        if data:
            self.say(data)
