"""`zombies`: what earlier runs left behind on this host, and, if asked for, the end of what is proven to be that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ddpdoctor.api.errors import UsageError
from ddpdoctor.api.results import CommandResult
from ddpdoctor.base.signals import StoppedBySignal

if TYPE_CHECKING:
    from ddpdoctor.engine.examination import Verdict
    from ddpdoctor.processes.leftovers.ending import Endings, LeftoverLook
    from ddpdoctor.processes.leftovers.leftover import Leftover
    from ddpdoctor.report.contract import Report
    from ddpdoctor.report.document import Document, Section


class ZombiesResult(CommandResult):
    """Leftovers, and what became of them.

    Args:
        leftovers: those that are meant, what is proven first.
        blind_spots: where nobody could look.
        problems: what was asked for and isn't left over, and why.
        endings: what was ended; None where nothing was to be.
    """

    command = "zombies"

    def __init__(
        self,
        leftovers: Sequence[Leftover],
        blind_spots: Sequence[str],
        problems: Sequence[str],
        endings: Endings | None = None,
    ) -> None:
        self.leftovers = tuple(leftovers)
        self.blind_spots = tuple(blind_spots)
        self.endings = endings
        self._problems = tuple(problems)

    @property
    def problems(self) -> Sequence[str]:
        return self._problems

    @property
    def proven(self) -> list[Leftover]:
        """Those that may be ended: surely left over, and the caller's."""
        return [leftover for leftover in self.leftovers if leftover.proven]

    @property
    def verdict(self) -> Verdict:
        """FAIL where something is left over, also in doubt; UNKNOWN where nothing is, as far as could be seen."""
        from ddpdoctor.engine.examination import Verdict
        from ddpdoctor.report.reported_leftovers import Fate

        if self.endings is not None:
            there = (Fate.LEFT, Fate.STAYS)
            ended = {ending.leftover for ending in self.endings.all if ending.fate not in there}
            return Verdict.FAIL if set(self.leftovers) - ended else Verdict.OK
        return Verdict.FAIL if self.leftovers else Verdict.UNKNOWN if self._problems else Verdict.OK

    def report(self, *, with_facts: bool = False) -> Report:
        """Build what the command's `--json` prints, typed; it has no facts besides."""
        from ddpdoctor.checks.catalogue import catalogue
        from ddpdoctor.engine.registry import Catalogue
        from ddpdoctor.processes.render_zombies import zombies_report

        checks = catalogue() if self.leftovers else Catalogue()
        return zombies_report(self.leftovers, self.blind_spots, self._problems, self.endings, self.verdict, checks)

    def document(self, *, verbose: bool = False, quiet: bool = False) -> Document:
        from ddpdoctor.processes.render_zombies import zombies_document

        return zombies_document(self.leftovers, self.blind_spots, self._problems, self.endings, self.verdict)

    def plan(self) -> Sequence[Section]:
        """What was found, and what of it may be ended."""
        from ddpdoctor.processes.render_zombies import leftover_sections, plan_section

        found = leftover_sections(self.leftovers, self.blind_spots, self._problems, killing=True)
        return [*found, plan_section(self.proven)]

    def outcome(self) -> Section:
        """What was ended; empty where nothing was to be."""
        from ddpdoctor.processes.render_zombies import endings_section
        from ddpdoctor.report.document import Section

        return endings_section(self.endings) if self.endings else Section()


def zombies(
    targets: Sequence[str | int] = (),
    *,
    kill: bool = False,
    confirm: Callable[[ZombiesResult], bool] = lambda result: True,
) -> ZombiesResult:
    """Find what earlier runs left behind: orphaned ranks and workers, GPU memory, ports, shared memory.

    It only looks, unless it is told to end something.

    Args:
        targets: only these: pids, or paths in /dev/shm; (): all that is left over.
        kill: end what is proven to be left over and is the caller's, after a second look some seconds later.
        confirm: is given what was found before anything of it is ended, if anything is to be; False: nothing is.

    Raises:
        UsageError: a target is neither a pid nor a path in /dev/shm.
    """
    names = [str(target) for target in targets]
    for name in names:
        if not name.isdecimal() and not name.startswith("/dev/shm/"):
            raise UsageError(f"{name!r} is neither a pid nor a path in /dev/shm")
    from ddpdoctor.fixes.leftovers import chosen
    from ddpdoctor.processes.leftovers.all_kinds import blind_spots

    first = _look()
    found = chosen(first.leftovers, names)
    spots = blind_spots(first.processes, first.gpus, first.shared_memory)
    result = ZombiesResult(found, spots, _problems(names, found, first))
    if kill and result.proven and confirm(result):
        result.endings = _end(result.proven, first)
    return result


def _look() -> LeftoverLook:
    from ddpdoctor.base.status_line import StatusLine
    from ddpdoctor.fixes.leftovers import look

    line = StatusLine(lambda seconds: f"Looking for leftovers ({seconds:.0f} s)", 0.3)
    try:
        return look()
    finally:
        line.close()


def _problems(targets: Sequence[str], found: Sequence[Leftover], first: LeftoverLook) -> list[str]:
    """Word for each target that isn't left over, why."""
    from ddpdoctor.base.unknown import Unknown

    processes = first.processes
    if isinstance(processes, Unknown):
        return [f"The processes could not be seen: {processes.reason}"]
    named = {str(leftover.pid) for leftover in found if leftover.pid} | {leftover.path for leftover in found}
    pids = {str(process.pid) for process in processes.listed}
    problems = []
    for target in targets:
        if target not in named:
            if not target.isdecimal():
                why = "no segment that nobody uses"
            else:
                why = (
                    "it is not left over, as far as can be seen" if target in pids else "no job's process has that pid"
                )
            problems.append(f"{target}: {why}; nothing was done to it")
    return problems


def _end(proven: Sequence[Leftover], first: LeftoverLook) -> Endings:
    from ddpdoctor.base.status_line import StatusLine
    from ddpdoctor.fixes.leftovers import look
    from ddpdoctor.processes.leftovers.ending import Endings, end

    endings = Endings()
    line = StatusLine(lambda seconds: f"Looking a second time, then ending them ({seconds:.0f} s)", 0.3)
    try:
        end(proven, first, look, endings)
    except StoppedBySignal as stopped:
        done = endings.describe()
        stopped.text = f"Stopped. By then {done}." if done else "Stopped. Nothing was ended."
        raise
    finally:
        line.close()
    return endings
