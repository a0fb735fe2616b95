"""Diagnoses a command: looks at a silent job, or reads the output of a failed one. Runs in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import redirect_stderr, suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ddpdoctor.base.ownership import foothold_on
from ddpdoctor.probes.files import open_regular
from ddpdoctor.run.command_wrappers import wrappers_and_program
from ddpdoctor.run.output_copy import MARK, read_part

if TYPE_CHECKING:
    from ddpdoctor.engine.examination import Examination
    from ddpdoctor.engine.explanations import Explanation
    from ddpdoctor.engine.registry import Catalogue
    from ddpdoctor.facts.log import Log
    from ddpdoctor.facts.snapshot import Snapshot
    from ddpdoctor.logs.analyze.good_runs import RunComparison
    from ddpdoctor.logs.diagnosis import LogJudgement
    from ddpdoctor.logs.match.shape_tally import ShapeTally

OUTPUT: Final = "output"
"""The name of the copy, where the output isn't in a file anyway."""

DUMP_SETTINGS: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Settings that say where torch writes the flight recorder's dumps: the first that is set counts."""

MAX_FILES: Final = 256
MAX_SHOWN: Final = 4
SETTINGS_FAMILIES: Final = ("launch", "settings")
"""Families of checks whose facts hold for the failed command, too: its environment is ours."""
SLOW_GROUPS: Final = frozenset({"torch", "nccl", "log"})
NO_PYTHON: Final = "None of its processes here is a Python whose stack could be shown."
_REDIRECTS: Final = re.compile(r"(?:^| )(?:-r|--redirects?)(?:[= ]?\d)")
_TEE: Final = re.compile(r"(?:^| )(?:-t|--tee)(?:[= ]?\d)")
_LOG_DIR: Final = re.compile(r"(?:^|\0)--log[-_]dir[=\0]([^\0]+)")


def _checks() -> Catalogue:
    """All checks, with the signs that the site has for its logs."""
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.logs.site_signs import with_site_signs

    return with_site_signs(catalogue())


class EndedCommand(NamedTuple):
    """A command that has ended, as a diagnosis needs it."""

    command: Sequence[str]
    status: int
    seconds: float
    """For which it ran."""
    output: tuple[tuple[str, bytes], ...]
    """Name and text of each output."""
    began: float
    """In seconds since the epoch: what the run has written is no older, however late the diagnosis looks for it."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing of its output was left out."""
        return not any(MARK in text for _, text in self.output)


def one_of_many(environ: Mapping[str, str]) -> str:
    """Name this process where a launcher has started one for each rank or node, and this is not the first: "rank 3", "task 3"; else "".

    The first tells the whole; of the others a line each is enough.
    """
    from ddpdoctor.knowledge.launchers import current_launch

    launch = current_launch(environ)
    if launch is None:
        return ""
    if launch.rank is not None:
        # Slurm's tasks are ranks, or each starts some.
        return f"{'task' if launch.launcher == 'Slurm' else 'rank'} {launch.rank}" if launch.rank else ""
    return f"node {launch.node_rank}" if launch.node_rank else ""


def looks_at_jobs(environ: Mapping[str, str]) -> bool:
    """Whether this process is the one of its host that looks at a silent job: all of them see its ranks."""
    from ddpdoctor.knowledge.launchers import current_launch

    launch = current_launch(environ)
    return launch is None or not launch.local_rank


def look_at(command: Sequence[str], pid: int, seconds: int, many: str) -> int:
    """Look at the silent job that a process of that command has started, for so many seconds. Returns 0 where nothing is wrong, and then
    has said so in a line. many: as `one_of_many` says it."""
    from ddpdoctor.base.text import one_line
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.hang.examining import NotExaminedError, examine_job, show
    from ddpdoctor.processes.overview import UnknownJobError

    try:
        with redirect_stderr(sys.stdout):
            examination = examine_job(str(pid), catalogue(), seconds=seconds, alone=True)
    except UnknownJobError as error:
        print(one_line(str(error) if error.launcher else NO_PYTHON))
        return 2
    except NotExaminedError as error:
        print(one_line(str(error)))
        return 2
    ill = examination.verdict.exit_code(strict=True)
    if many:
        print(f"{many} on {socket.gethostname()}: ", end="")
    quiet = bool(many) or ill != 1
    show(examination, quiet=quiet, explanations=() if quiet else explained_hang(command, examination))
    if not many and ill != 1:
        _say_where(examination)
    return ill


def explained_hang(command: Sequence[str], examination: Examination) -> tuple[Explanation, ...]:
    """Look into the script of a command for what explains that its ranks hang."""
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.engine.explanations import Illness
    from ddpdoctor.scripts.explaining import explain

    illnesses = [Illness(check.slug) for check, _, _ in examination.findings]
    return explain(script_of(command), illnesses, catalogue())


def script_of(command: Sequence[str]) -> Sequence[str]:
    """The path of the script that a command runs, as it names it; empty where it names none."""
    from ddpdoctor.knowledge.launcher_options import place_of_script

    place = place_of_script(command)
    return command[place : place + 1]


def _say_where(examination: Examination) -> None:
    """Say where the ranks are, though nothing is wrong there: the user may know better."""
    from ddpdoctor.base.text import one_line
    from ddpdoctor.hang.render_words import groups

    for group in groups(examination)[:MAX_SHOWN]:
        print(one_line(f"{group.ranks} {group.words}, {', '.join(group.details)}".rstrip(", ")))


def left_running(name: str, failed: bool, besides: Collection[int], outputs: Set[tuple[int, int]], many: str) -> int:
    """Name the processes that a command of our parent's has left running, but for those pids. outputs: device and inode of where its
    output went; many: as `one_of_many` says it."""
    from ddpdoctor.run.left_running import EndedJob, name_left_running

    job = EndedJob(name, failed, os.getppid(), {*besides, os.getpid()}, outputs, many)
    name_left_running(job, os.environ)
    return 0


def diagnose(
    ended: EndedCommand, many: str, environ: Mapping[str, str], killed: int, keep: str, remembers: bool
) -> int:
    """Diagnose a failed command.

    many: as `one_of_many` says it; killed: `count_oom_kills` before it was started; keep: the file in which the output is, or "";
    remembers: whether it is compared with the last good run.
    """
    ended = _with_redirected(ended)
    if many:
        return _in_a_line(ended, _read(ended, keep), many)
    from ddpdoctor.logs.analyze.verdict import RunOutcome
    from ddpdoctor.logs.diagnosis import judge_log
    from ddpdoctor.logs.render.comparison import comparison_section
    from ddpdoctor.logs.render.document import log_document
    from ddpdoctor.report.document import Document
    from ddpdoctor.report.terminal import screen_for
    from ddpdoctor.scripts.run_script import look_into_script

    log, comparison = _beside_last_good_run(ended, keep) if remembers else (_read(ended, keep), None)
    host = _host(log, ended.seconds, killed)
    judgement = judge_log(log, _checks(), host, watched=True, comparison=comparison)
    judgement = look_into_script(judgement, script_of(ended.command))
    shown = False
    if not any(file.bytes for file in log.files):
        print("It printed nothing.")
    elif judgement.verdict.outcome is RunOutcome.NOTHING:
        # The report on a log by itself would say that all is well.
        print("Nothing in that tells why.")
        if comparison:
            differences = comparison_section(judgement, verbose=False)
            screen_for(sys.stdout).show(Document(verdict=judgement.word, sections=(differences,)))
    else:
        screen_for(sys.stdout).show(log_document(judgement, watched=True))
        shown = True
    if judgement.names_no_cause or judgement.verdict.outcome in (RunOutcome.NOTHING, RunOutcome.UNRECOGNISED):
        _say_settings()
    _say_more(ended, judgement, keep, shown=shown)
    show_dumps(ended, environ)
    return 0


def remember(ended: EndedCommand) -> int:
    """Keep of a command that ended well what its next failure is compared with."""
    from ddpdoctor.logs.comparing import NotGoodError, taken_for_good
    from ddpdoctor.logs.match.shape_tally import ShapeTally
    from ddpdoctor.run.good_profile import keep_profile, name_of_run

    ended = _with_redirected(ended)
    if not ended.is_whole:
        return 0
    tally = ShapeTally()
    log = _read(ended, "", tally)
    with suppress(NotGoodError):
        keep_profile(ended.command, taken_for_good(name_of_run(time.time()), log, tally, _checks()))
    return 0


def _beside_last_good_run(ended: EndedCommand, keep: str) -> tuple[Log, RunComparison | None]:
    """Read the output, and compare it with the last good run's, if one is kept and nothing was left out."""
    from ddpdoctor.logs.analyze.good_runs import GoodRuns, beside_good_runs
    from ddpdoctor.logs.match.shape_tally import ShapeTally
    from ddpdoctor.run.good_profile import last_good_run

    good = last_good_run(ended.command) if ended.is_whole else None
    if good is None:
        return _read(ended, keep), None
    runs = GoodRuns([good])
    tally = ShapeTally(runs.even)
    return beside_good_runs(_read(ended, keep, tally), tally, runs, _checks())


def guarded(work: Callable[[], int]) -> int:
    """Do the work, and whatever happens return a code and leave no process."""
    import typer

    from ddpdoctor.base.signals import StoppedBySignal, stop_on_signals

    stop_on_signals()
    try:
        return work()
    except typer.Exit as ended:
        return ended.exit_code
    except StoppedBySignal as stopped:
        return stopped.code
    finally:
        if "ddpdoctor.probes.subprocesses" in sys.modules:
            sys.modules["ddpdoctor.probes.subprocesses"].end_all()


def _read(ended: EndedCommand, keep: str, tally: ShapeTally | None = None) -> Log:
    import msgspec

    from ddpdoctor.knowledge.launcher_options import launcher_of_command
    from ddpdoctor.logs.match.gathering import GatheredLog
    from ddpdoctor.logs.match.wanted_signs import vocabulary
    from ddpdoctor.logs.reading import read_stream

    words, gathered = vocabulary(_checks()), GatheredLog(shapes=tally)
    for name, text in ended.output:
        read_stream(BytesIO(text), keep if keep and name == OUTPUT else name, words, gathered)
    log = gathered.log()
    launcher = launcher_of_command(wrappers_and_program(ended.command)[1])
    return msgspec.structs.replace(log, launcher=launcher) if launcher else log


def _with_redirected(ended: EndedCommand) -> EndedCommand:
    return ended._replace(output=(*ended.output, *redirected_output(ended)))


def redirected_output(ended: EndedCommand) -> Iterator[tuple[str, bytes]]:
    """Read what torchrun has let the ranks write into files alone, during this run."""
    from ddpdoctor.logs.analyze.kernel_kills import STAMP_SECONDS

    began = ended.began - STAMP_SECONDS
    folder = folder_of_redirects(ended.command, began)
    for path in sorted(Path(folder).rglob("*.log"))[:MAX_FILES] if folder else ():
        with suppress(OSError), os.fdopen(open_regular(path), "rb") as file:
            facts = os.fstat(file.fileno())
            if facts.st_size and facts.st_mtime >= began:
                yield str(path), read_part(file.fileno(), 0, facts.st_size)


def folder_of_redirects(command: Sequence[str], began: float) -> str:
    """The folder of torchrun's --log-dir, where --redirects keeps the ranks' words from its own output; else "". Where none is named,
    the folder that torchrun has made itself, if only one was made since the command began."""
    named = log_dir(command)
    if named != "":
        return named or ""
    temporary = tempfile.gettempdir()
    with suppress(OSError):
        if foothold_on(temporary):
            # Another user who decides what is found there could have put it there since.
            return ""
    made = []
    for path in Path(temporary).glob("torchelastic_*"):
        with suppress(OSError):
            facts = path.lstat()
            if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and facts.st_mtime >= began:
                made.append(str(path))
    return made[0] if len(made) == 1 else ""


def log_dir(command: Sequence[str]) -> str | None:
    """torchrun's --log-dir where --redirects is given, "" where that has none; None where the ranks' words are in the output."""
    from ddpdoctor.knowledge.launcher_options import place_of_script

    words = command[: place_of_script(command)]
    options = " ".join(words)
    if not _REDIRECTS.search(options) or _TEE.search(options):
        return None
    found = _LOG_DIR.search("\0".join(words))
    return found[1] if found else ""


def count_oom_kills() -> int:
    """Count the processes of this container, job or session that the kernel has killed for want of memory; 0 where that isn't known."""
    from ddpdoctor.base.unknown import Unknown
    from ddpdoctor.probes.cgroup import probe
    from ddpdoctor.probes.context import Context

    with suppress(Exception):
        found = probe(Context(sys.executable, quick=True))
        if not isinstance(found, Unknown) and isinstance(found.oom_kills, int):
            return found.oom_kills
    return 0


def _host(log: Log, seconds: float, killed: int) -> Snapshot | None:
    """Collect this host's facts, as far as they decide on what the log suggests. seconds: that the run took."""
    from ddpdoctor.logs.analyze.kernel_kills import of_this_run
    from ddpdoctor.logs.diagnosis import collect_deciding

    began = time.monotonic() - seconds
    host = collect_deciding(log, _checks())
    return of_this_run(host, time.monotonic() - began, killed) if host else None


def _in_a_line(ended: EndedCommand, log: Log, many: str) -> int:
    from ddpdoctor.logs.analyze.verdict import RunOutcome
    from ddpdoctor.logs.diagnosis import judge_log
    from ddpdoctor.logs.render.document import log_document
    from ddpdoctor.report.terminal import text_of
    from ddpdoctor.run.messages import SupervisorMessages

    judgement = judge_log(log, _checks())
    if judgement.verdict.outcome is RunOutcome.NOTHING:
        # As in `diagnose`: what was found in the log alone isn't how the command fared.
        why = "nothing in its output tells why" if any(file.bytes for file in log.files) else "it printed nothing"
        verdict = f"{SupervisorMessages(ended.command).ended(ended.status)}, and {why}"
    else:
        verdict = text_of(log_document(judgement, quiet=True), 200)
    print(f"ddpdoctor, {many} on {socket.gethostname()}: {verdict.strip()}")
    return 0


def _say_settings() -> None:
    """Name settings with which no training starts, where the output doesn't tell the cause."""
    from ddpdoctor.base.findings import FAIL
    from ddpdoctor.base.text import one_line
    from ddpdoctor.checks.catalogue import select
    from ddpdoctor.engine.examination import examine
    from ddpdoctor.probes.session import collect_facts, start_probes

    checks = [check for check in select(SETTINGS_FAMILIES) if not SLOW_GROUPS.intersection(check.groups)]
    snapshot = collect_facts(start_probes(None, quick=True), set().union(*(check.groups for check in checks)))
    failing = [
        (check, finding) for check, severity, finding in examine(snapshot, None, checks).findings if severity is FAIL
    ]
    for check, finding in failing[:MAX_SHOWN]:
        print(one_line(f"Here `ddpdoctor check` fails on {check.slug}: {finding.summary}"))


def _say_more(ended: EndedCommand, judgement: LogJudgement, keep: str, *, shown: bool) -> None:
    """Say what the command's end tells where its log doesn't, and how the next run tells more."""
    from ddpdoctor.logs.analyze.verdict import RunOutcome

    killed = os.waitstatus_to_exitcode(ended.status) in (-signal.SIGKILL, 128 + signal.SIGKILL)
    if killed and judgement.verdict.outcome is not RunOutcome.ILLNESS:
        print("SIGKILL leaves no words in a log. Where the kernel ended it for want of memory, this says so:")
        print(f"    ddpdoctor check --select {judgement.catalogue.slug_for(signal.SIGKILL)}")
    names = [file.name for file in judgement.log.files if file.bytes]
    if log_dir(ended.command) == "" and not [name for name in names if "/torchelastic_" in name]:
        print(
            "The ranks' own words went to files that are not to be found: name a folder for them by torchrun --log-dir DIR"
        )
    if not keep and OUTPUT in names:
        counted = f"; {OUTPUT}:N above is its line N" if shown else ""
        print(f"ddpdoctor has kept the output in no file{counted}. To keep it: ddpdoctor run --keep FILE -- COMMAND")


def show_dumps(ended: EndedCommand, environ: Mapping[str, str]) -> None:
    """Show the flight recorders' dumps that this run has written."""
    written = dumps_of_run(environ, ended.began - 1)
    if not written:
        return
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.hang.examining import examine_job, show

    print(f"The ranks' flight recorders have left {written[0]}{' and others' if len(written) > 1 else ''}:")
    print()
    examination = examine_job(None, catalogue(), written, watched=False)
    show(examination, explanations=explained_hang(ended.command, examination))


def dumps_of_run(environ: Mapping[str, str], since: float) -> Sequence[str]:
    """The dumps of the ranks of this host that are no older than that moment, in seconds since the epoch."""
    from ddpdoctor.hang.flight_recorder.dump_files import candidates
    from ddpdoctor.hang.flight_recorder.plain_pickles import NotRead

    prefix = next((environ[name] for name in DUMP_SETTINGS if environ.get(name)), "")
    found = []
    with suppress(NotRead, OSError):
        for candidate in candidates(prefix) if prefix else ():
            if Path(candidate.path).stat().st_mtime >= since:
                found.append(candidate.path)
    return found
