"""The supervisor: the command's parent, from its start to the last word on it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Final, NamedTuple, ParamSpec

from ddpdoctor.base.text import visible
from ddpdoctor.run.command_start import NotStarted, adopt_orphans, child_pids, close_inherited, start_command
from ddpdoctor.run.diagnosis import OUTPUT, EndedCommand, diagnose, guarded, left_running, look_at, remember
from ddpdoctor.run.diagnosis_process import DiagnosisProcess
from ddpdoctor.run.messages import INTERRUPTED, NO_LOOK, SupervisorMessages
from ddpdoctor.run.output_copy import HEAD_BYTES, TAIL_BYTES, join_copy, read_part
from ddpdoctor.run.output_file import OutputFile, OutputFileError
from ddpdoctor.run.output_streams import STDERR, OutputStreams, copy_size, identities_of, open_streams
from ddpdoctor.run.relay_client import RelayClient
from ddpdoctor.run.shared_output import SharedOutput
from ddpdoctor.run.signal_forwarding import (
    AWAITED_SIGNALS,
    FORWARDED_SIGNALS,
    STOP_SIGNALS,
    GroupSignalDetector,
    end_as_it_did,
    is_stopped,
    stop_as_it_did,
)
from ddpdoctor.run.silence_detection import SilenceDetector

LOOK_SECONDS: Final = 60.0
"""For looking at a silent job, beside those for which its ranks are watched."""
DIAGNOSIS_SECONDS: Final = 60.0
REMEMBERING_SECONDS: Final = 10.0
"""For keeping the profile of a run that ended well: its end isn't to wait long for that."""
MIN_WATCH_SECONDS: Final = 3
MAX_WATCH_SECONDS: Final = 30
SILENCE_PER_WATCH: Final = 10
"""The ranks are watched for a tenth of the silence."""
LEFT_RUNNING_SECONDS: Final = 20.0
"""For naming what the command has left running."""
MAX_WAIT_SECONDS: Final = 3600.0
"""For a signal: the call doesn't take any number of seconds."""
HURRY_SECONDS: Final = 10.0
"""For a diagnosis that is under way when a launcher ends us."""
STOP_REQUEST_SECONDS: Final = 60.0
"""A command that ends so soon after it was asked to has ended for that."""
STOP_REQUESTS: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)

P = ParamSpec("P")


class RunOptions(NamedTuple):
    """The command to run, and what is done about it."""

    command: Sequence[str]
    environ: Mapping[str, str]
    hang_after: float
    """Seconds of silence; 0 for never."""
    keep: OutputFile | None
    """For the copy of the output."""
    many: str
    """The words of `one_of_many`: of one that isn't the first a line is enough."""
    dumps: str
    """A folder of ours for what the ranks leave for the diagnosis, or ""."""
    remember: bool
    """Whether the profile of a run that ends well is kept, and a failure compared with it."""
    killed: int
    """`count_oom_kills` before."""
    ignored: Collection[int]
    """Signals that were ignored when ddpdoctor was started."""
    mask: Iterable[int]
    """Signals that were blocked then."""

    def clear_up(self, status: int | None) -> None:
        """Remove what isn't needed any more. status: the command's; None where it was never started."""
        if self.keep and status is None:
            self.keep.discard()
        if self.dumps and not status:
            rmtree(self.dumps, ignore_errors=True)
        elif self.dumps:
            # It stays with what the ranks have left there.
            with suppress(OSError):
                Path(self.dumps).rmdir()


def supervise(options: RunOptions) -> int:
    """Run the command. Returns the exit code; where a signal ended the command, the same ends this process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED_SIGNALS)
    try:
        supervisor = _Supervisor(options, open_streams(), SharedOutput(HEAD_BYTES, TAIL_BYTES))
        supervisor.prepare()
    except OSError as error:
        return _run_unwatched(options, error)
    try:
        supervisor.start()
    except NotStarted as error:
        options.clear_up(None)
        supervisor.say(str(error))
        return error.code
    status = supervisor.run()
    options.clear_up(status)
    return end_as_it_did(status)


def _run_unwatched(options: RunOptions, error: OSError) -> int:
    """Run the command alone, since there are no more descriptors, terminals or processes for us."""
    print(f"ddpdoctor can't watch the command ({error.strerror}): it runs without", file=sys.stderr, flush=True)
    try:
        pid = start_command(options.command, options.environ, (), options.ignored, options.mask)
    except NotStarted as refused:
        options.clear_up(None)
        print(refused, file=sys.stderr)
        return refused.code
    status = os.waitpid(pid, 0)[1]
    options.clear_up(status)
    return end_as_it_did(status)


class _Supervisor:
    def __init__(self, options: RunOptions, streams: OutputStreams, shared: SharedOutput) -> None:
        self._options = options
        self._streams = streams
        self._shared = shared
        self._messages = SupervisorMessages(options.command)
        self._group_signals = GroupSignalDetector(shared)
        self._silence = SilenceDetector(options.hang_after, shared, streams.files)
        self._child = 0
        self._status: int | None = None
        self._relay = RelayClient(streams.carried, shared)
        self._diagnosis: DiagnosisProcess | None = None
        self._silent = 0.0
        self._asked_to_stop: dict[int, float] = {}
        self._impatient = False
        self._hurried = False
        self._own_output: list[bytes] = []
        self._other_pids: frozenset[int] = frozenset()
        self._outputs: frozenset[tuple[int, int]] = frozenset()
        self._held_back: list[bytes] | None = None

    # --- from start to end --------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Start the relay. An OSError tells that there are no more processes."""
        self._relay.start()
        self._group_signals.relay = self._relay.pid

    def start(self) -> None:
        """Start the command. NotStarted tells why it can't be."""
        options = self._options
        adopt_orphans()
        self._other_pids = child_pids()
        self._outputs = identities_of(
            *(stream.given for stream in self._streams.carried), *(file.reading for file in self._streams.files)
        )
        self._began = time.monotonic()
        self._child = start_command(
            options.command, options.environ, self._streams.carried, options.ignored, options.mask
        )
        self._relay.close_given()
        # Who writes to the command's standard input shall see that it reads no more.
        with open(os.devnull) as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), 0)
        close_inherited()

    def run(self) -> int:
        """Wait for the end of the command, and say all that there is to say. Returns its status."""
        try:
            self._wait(lambda: self._status is not None)
        except Exception as error:
            self.say(self._messages.broken(error))
        if self._status is None:
            # A bug of ours: the command is waited for all the same.
            self._status = os.waitpid(self._child, 0)[1]
        seconds = time.monotonic() - self._began
        began = time.time() - seconds
        self._end_diagnosis()
        left = self._left_running()
        self._relay.tell_end()
        self._wait(lambda: self._relay.done or self._shared.is_drained)
        self._shared.end_copy()
        if left and self._streams.files:
            # What goes on writes into the file itself: all that we say is to stand there together.
            self._held_back = []
        if not self._impatient:
            try:
                self._conclude(EndedCommand(self._options.command, self._status, seconds, (), began))
            except Exception as error:
                self.say(self._messages.broken(error))
        self._say_all(left)
        return self._status

    def _left_running(self) -> bytes:
        """The text on processes that the command has started and that live; "" where there are none."""
        assert self._status is not None
        self._reap()
        besides = {*self._other_pids, self._relay.pid}
        if not (pids := child_pids() - besides):
            return b""
        try:
            job = (self._messages.name, self._status != 0, besides, self._outputs)
            diagnosis = self._start_diagnosis(LEFT_RUNNING_SECONDS, left_running, *job, self._options.many)
            self._wait(lambda: diagnosis.code is not None)
        except Exception as error:
            return f"{visible(self._messages.broken(error))}\n".encode()
        self._end_diagnosis()
        if diagnosis.code == 0 and not diagnosis.is_told_to_end:
            return diagnosis.text
        return f"{visible(self._messages.left_running(pids))}\n".encode()

    def _conclude(self, ended: EndedCommand) -> None:
        wanted = os.waitstatus_to_exitcode(ended.status) != 0 and not self._is_end_expected()
        ended_well = ended.status == 0 and not self._asked_to_stop and not self._options.many
        remembered = self._options.remember and ended_well
        if not wanted and not remembered and not self._options.keep:
            return
        ended = ended._replace(output=self._output())
        if file := self._options.keep:
            try:
                file.write(b"".join(text for _, text in ended.output))
            except (OSError, OutputFileError) as error:
                self.say(self._messages.not_kept(file.path, error))
        if wanted:
            self._diagnose(ended)
        elif remembered and any(text for _, text in ended.output):
            diagnosis = self._start_diagnosis(REMEMBERING_SECONDS, remember, ended)
            self._wait(lambda: diagnosis.code is not None)
            self._end_diagnosis()

    def _is_end_expected(self) -> bool:
        """Whether the user, or what runs the job, has ended the command; or nothing reads its output any more."""
        if any(self._shared.is_broken(number) for number in range(len(self._streams.carried))):
            return True
        lately = [
            number for number, when in self._asked_to_stop.items() if time.monotonic() - when < STOP_REQUEST_SECONDS
        ]
        if lately and not {signal.SIGINT, signal.SIGQUIT} & set(lately):
            self.say(self._messages.asked_to_stop(lately[-1]))
        return bool(lately)

    def _output(self) -> tuple[tuple[str, bytes], ...]:
        found = []
        if self._streams.carried:
            found.append((OUTPUT, join_copy(*self._shared.copy())))
        for file in self._streams.files:
            text = read_part(file.reading, file.start, file.end())
            for own in self._own_output:
                text = text.replace(own, b"", 1)
            found.append((str(Path(f"/proc/self/fd/{file.reading}").readlink()), text))
        return tuple(found)

    # --- the diagnosis ---------------------------------------------------------------------------------------------------------

    def _diagnose(self, ended: EndedCommand) -> None:
        options = self._options
        if not options.many:
            self.say(self._messages.diagnosing(ended.status, ended.seconds))
        kept = options.keep.path if options.keep else ""
        diagnosis = self._start_diagnosis(
            DIAGNOSIS_SECONDS,
            diagnose,
            ended,
            options.many,
            options.environ,
            options.killed,
            kept,
            options.remember,
        )
        self._wait(lambda: diagnosis.code is not None)
        if diagnosis.code is None:
            self._end_diagnosis()
            self.say(INTERRUPTED)
            return
        self.say(
            diagnosis.text
            if self._has_spoken(diagnosis)
            else self._messages.no_diagnosis(diagnosis.is_told_to_end, diagnosis.code)
        )

    def _look(self, silent: float) -> None:
        self._silent = silent
        try:
            seconds = int(min(MAX_WATCH_SECONDS, max(MIN_WATCH_SECONDS, silent / SILENCE_PER_WATCH)))
            self._start_diagnosis(
                LOOK_SECONDS + seconds, look_at, self._options.command, self._child, seconds, self._options.many
            )
        except Exception as error:
            self._silence.set_judged(ill=False)
            self.say(f"{self._messages.silent(silent)} {self._messages.broken(error)}")

    def _end_look(self, diagnosis: DiagnosisProcess) -> None:
        """Say what the look found, unless the command prints again; once for each silence, until something is wrong."""
        if not self._silence.too_long():
            return
        ill = diagnosis.code == 1 and self._has_spoken(diagnosis)
        if ill or not self._silence.looked_before:
            found = diagnosis.text if self._has_spoken(diagnosis) else f"{NO_LOOK}\n".encode()
            between = b"\n" if ill and not self._options.many else b" "
            self.say(self._messages.silent(self._silent).encode() + between + found)
        self._silence.set_judged(ill=ill)

    @staticmethod
    def _has_spoken(diagnosis: DiagnosisProcess) -> bool:
        return diagnosis.code in (0, 1, 2) and not diagnosis.is_told_to_end and bool(diagnosis.text.strip())

    def _start_diagnosis(
        self, patience: float, work: Callable[P, int], *args: P.args, **more: P.kwargs
    ) -> DiagnosisProcess:
        def at_work() -> int:
            self._relay.close_all()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            return guarded(partial(work, *args, **more))

        self._diagnosis = DiagnosisProcess(at_work, self._messages.environ(), patience)
        return self._diagnosis

    def _end_diagnosis(self) -> None:
        """End the diagnosis at once: what it was asked for is past."""
        if self._diagnosis:
            self._diagnosis.end()
            self._diagnosis.end()
            self._diagnosis = None

    # --- waiting ------------------------------------------------------------------------------------------------------------

    def _wait(self, done: Callable[[], bool]) -> None:
        while not done() and not self._impatient:
            seconds = self._due() - time.monotonic()
            info = signal.sigtimedwait(AWAITED_SIGNALS, min(max(0.0, seconds), MAX_WAIT_SECONDS))
            if info is not None:
                self._take(info.si_signo, info.si_code)
            self._tick()

    def _due(self) -> float:
        """The moment to look after things without a signal."""
        times = [self._relay.due]
        if self._diagnosis:
            times.append(self._diagnosis.until)
        elif self._status is None and (look := self._silence.next_look()) is not None:
            times.append(look)
        return min(times)

    def _tick(self) -> None:
        self._relay.restart_if_due()
        self._group_signals.relay = self._relay.pid
        if self._diagnosis and time.monotonic() > self._diagnosis.until:
            self._diagnosis.end()
        if self._status is None and not self._diagnosis and (silent := self._silence.too_long()):
            self._look(silent)

    def _take(self, number: int, code: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
            self._relay.close_broken()
        elif number == signal.SIGWINCH:
            self._resize()
        elif self._status is not None:
            if number not in self._options.ignored:
                self._hurry(number)
        elif number in FORWARDED_SIGNALS:
            if number in STOP_REQUESTS:
                self._asked_to_stop[number] = time.monotonic()
            if number == signal.SIGCONT:
                self._silence.note_resumed()
                self._resize()
            if not self._group_signals.command_has(number, code):
                with suppress(ProcessLookupError):
                    os.kill(self._child, number)

    def _hurry(self, number: int) -> None:
        """End soon: the command has ended, and a signal asks us to. A launcher whose other ranks failed with ours waits longer than
        this."""
        if number in (signal.SIGTERM, signal.SIGHUP) and self._diagnosis and not self._hurried:
            self._hurried = True
            self._diagnosis.until = min(self._diagnosis.until, time.monotonic() + HURRY_SECONDS)
        elif number in STOP_REQUESTS:
            self._impatient = True

    def _resize(self) -> None:
        changed = [copy_size(stream.destination, stream.source) for stream in self._streams.carried if stream.terminal]
        if any(changed) and self._child and self._status is None:
            # It may have looked before we had.
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGWINCH)

    def _reap(self) -> None:
        """Collect all that have ended or stopped: as the first process of a container, children of other processes, too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if not pid:
                return
            if os.WIFSTOPPED(status):
                if pid == self._relay.pid:
                    os.kill(pid, signal.SIGCONT)
                elif pid == self._child and os.WSTOPSIG(status) in STOP_SIGNALS and is_stopped(pid):
                    stop_as_it_did(os.WSTOPSIG(status))
            elif pid == self._child:
                self._status = status
            elif pid == self._relay.pid:
                self._relay.note_end(status)
                self._group_signals.relay = 0
            elif self._diagnosis and pid == self._diagnosis.pid:
                diagnosis = self._diagnosis
                diagnosis.note_end(status)
                self._diagnosis = None
                if self._status is None:
                    self._end_look(diagnosis)

    # --- words --------------------------------------------------------------------------------------------------------------

    def say(self, text: str | bytes) -> None:
        """Write to standard error, whole and at once. What can't be written there is lost."""
        data = text if isinstance(text, bytes) else f"{visible(text)}\n".encode()
        if self._held_back is not None:
            self._held_back.append(data)
            return
        self._own_output.append(data)
        with suppress(OSError):
            while data:
                data = data[os.write(STDERR, data) :]
        self._silence.note_own_output()

    def _say_all(self, last: bytes) -> None:
        """Write what was held back, and that."""
        data = b"".join([*(self._held_back or ()), last])
        self._held_back = None
        if data:
            self.say(data)
