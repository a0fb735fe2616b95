"""`netcheck`: why the ranks don't meet, seen from every node of the job."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from ddpdoctor.api.errors import NoVerdictError, SpokenForError, UsageError, refuse_empty
from ddpdoctor.api.results import CommandResult
from ddpdoctor.knowledge.netcheck_command import DOTS, with_token
from ddpdoctor.knowledge.netcheck_command import TOKEN_VARIABLE as TOKEN_VARIABLE

if TYPE_CHECKING:
    from ddpdoctor.base.findings import Finding
    from ddpdoctor.engine.examination import Examination, Verdict
    from ddpdoctor.facts.smoke import Smoke
    from ddpdoctor.network_check.progress import NetcheckProgress
    from ddpdoctor.network_check.results import ProgressListener, RunResult
    from ddpdoctor.report.document import Document

WAIT_SECONDS = 60.0
MOST_WAIT_SECONDS = 86400


class NetcheckResult(CommandResult):
    """The findings of nodes together: on node 0 all of them, on another node its own part.

    Args:
        run: how it ended on this node.
        smoke: what a training came to, where the nodes met for one; on node 0 that of all nodes.
    """

    command = "netcheck"

    def __init__(self, run: RunResult, smoke: Smoke | None = None) -> None:
        self.run = run
        self.smoke = smoke

    @property
    def examinations(self) -> Sequence[Examination]:
        return self.run.examinations

    @property
    def problems(self) -> Sequence[str]:
        return self.run.problems

    @property
    def verdict(self) -> Verdict:
        from ddpdoctor.engine.examination import Verdict, overall, unless_unjudged

        run = self.run
        judged = Verdict.UNKNOWN if run.exit_code == 2 else overall(run.examinations)
        return unless_unjudged(run.part.verdict if run.part else judged, run.problems)

    def exit_code(self, *, strict: bool = False) -> int:
        """The same on every node, where node 0 has decided whether warnings count."""
        return self.run.exit_code

    def write_nodes(self, folder: str | os.PathLike[str]) -> tuple[str, ...]:
        """Write passing_nodes.txt and failing_nodes.txt, a host a line, for `srun --exclude`; on node 0, which alone knows of all.

        Returns:
            Hosts that are in neither, and why, a sentence each.
        Raises:
            WriteError: they can't be written.
        """
        from ddpdoctor.api.node_lists import write_node_lists
        from ddpdoctor.network_check.analysis.node_lists import sort_nodes

        if self.run.fleet is None:
            return ("no lists of nodes were written: node 0 writes them, once the nodes have met",)
        lists = sort_nodes(self.run.fleet, self.run.examinations)
        write_node_lists(folder, lists.passing, lists.failing)
        return tuple(f"in neither list: {words}" for words in lists.unjudged)

    def _report_fields(self) -> dict[str, Any]:
        return {"fleet": self.run.fleet, "seconds": self.run.seconds, "smoke": self.smoke}

    def document(self, *, verbose: bool = False, quiet: bool = False, matrix: bool = False) -> Document:
        """Build the report for this node's user, with the token in the commands for other nodes.

        Args:
            verbose: also what passed and had nothing to test, by name.
            quiet: a line a finding, and the verdict.
            matrix: on node 0, latency and bandwidth between all pairs.
        """
        return self._document(_with_token(self.run), verbose=verbose, quiet=quiet, matrix=matrix)

    def _public_document(self) -> Document:
        # Whoever reads a bug report is not to have the token.
        return self._document(self.run, matrix=True)

    def _other_hosts(self) -> Collection[str]:
        return self.run.part.hosts if self.run.part else ()

    def _document(
        self, run: RunResult, *, verbose: bool = False, quiet: bool = False, matrix: bool = False
    ) -> Document:
        from ddpdoctor.network_check.render import document
        from ddpdoctor.smoke_training.render import joint_training_document

        training = None
        if self.smoke is not None:
            named = {
                finding.rank
                for examination in run.examinations
                for _, _, finding in examination.findings
                if finding.rank is not None
            }
            training = joint_training_document(self.smoke, self.verdict, named)
        return document(run, training=training, matrix=matrix, verbose=verbose, quiet=quiet)


def netcheck(
    master_addr: str | None = None,
    *,
    master_port: int | None = None,
    nnodes: int | None = None,
    node_rank: int | None = None,
    token: str | None = None,
    wait: float = WAIT_SECONDS,
    python: str | None = None,
    quick: bool = False,
    strict: bool = False,
    listen: Callable[[NetcheckProgress], ProgressListener] = lambda progress: progress,
    tell: Callable[[str], None] = lambda text: None,
) -> NetcheckResult:
    """Find out why the ranks don't meet: to be called on every node of the job, in any order.

    Args:
        master_addr: where rank 0 runs; None: the launcher's.
        master_port: None: the launcher's, or 29500.
        nnodes: nodes of the job; None: the launcher's. Without any, it looks from here alone.
        node_rank: this node, from 0; None: the launcher's, else by order of arrival.
        token: let in only nodes that give the same; None: from the job's id.
        wait: seconds for nodes that aren't there yet.
        python: the Python in which training runs; None: the active environment's.
        quick: without torch: no real store, no collectives. Node 0's counts.
        strict: warnings count, on all nodes. Node 0's counts.
        listen: is given the progress, and gives who is told how it goes.
        tell: is told what it waits for before it knows whom to meet.

    Raises:
        UsageError: the arguments contradict each other, or the launcher's settings.
        NoVerdictError: not all pods of NVSentinel's gang have come in time.
        SpokenForError: local rank 0 speaks for this node.
        UnsafeError: root would run another user's Python.
    """
    refuse_empty(master_addr=master_addr, token=token, python=python)
    refuse_wait(wait)
    if token is not None and token.strip() == DOTS:
        raise UsageError(f"the dots in {TOKEN_VARIABLE}={DOTS} stand for the token that node 0 prints")
    from ddpdoctor.network_check.job import Flags, JobError, job_of

    options = _options(wait=wait, quick=quick, python=python, strict=strict)
    flags = Flags(master=master_addr, port=master_port, nnodes=nnodes, node_rank=node_rank, options=options)
    try:
        job = job_of(flags, {**os.environ, **_gang_settings(nnodes, tell)})
    except JobError as error:
        raise UsageError(str(error)) from error
    if job.local_rank:
        raise SpokenForError("netcheck", [f"Local rank {job.local_rank}: local rank 0 speaks for this node."])
    from ddpdoctor.api.target_python import refuse_others_python, refuse_what_is_no_python
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.network_check.progress import NetcheckProgress
    from ddpdoctor.network_check.results import NetcheckOptions
    from ddpdoctor.network_check.run import run
    from ddpdoctor.network_check.task import Netcheck
    from ddpdoctor.probes.target_python.choice import choose_python

    path, chosen_by = choose_python(python, os.environ)
    if not quick:
        refuse_others_python(path, chosen_by)
    if python is not None:
        # Before the other nodes are made to wait for a node that couldn't take part in the collectives.
        refuse_what_is_no_python(python, path)
    listener = listen(NetcheckProgress())
    try:
        return NetcheckResult(
            run(
                NetcheckOptions(
                    job=job,
                    options=options,
                    token=token,
                    wait=wait,
                    task=Netcheck(catalogue(), quick=quick),
                    strict=strict,
                    python=path,
                    chosen_by=chosen_by,
                ),
                listener,
            )
        )
    finally:
        listener.close()


def _gang_settings(nnodes: int | None, tell: Callable[[str], None]) -> dict[str, str]:
    """What NVSentinel tells of the pods that start together, once all of them have come; nothing where it tells of none.

    Raises:
        NoVerdictError: they haven't come in time.
    """
    from ddpdoctor.probes.gang import wait_for_gang

    gang = None if nnodes is not None else wait_for_gang(os.environ, tell)
    if gang is None:
        return {}
    if not gang.is_complete:
        came = f"{len(gang.peers)} of {gang.expected or '?'} pods have come"
        raise NoVerdictError("netcheck", [f"The gang did not form in time: {came}. That is no fault of this node"])
    return gang.settings(os.environ)


def refuse_wait(wait: float) -> None:
    """Refuse a wait for other nodes that is none.

    Raises:
        UsageError: it is no number of seconds, or there is no end to it.
    """
    if wait != wait:
        raise UsageError("--wait is no number of seconds")
    if not 1 <= wait <= MOST_WAIT_SECONDS:
        raise UsageError(f"--wait is from 1 to {MOST_WAIT_SECONDS} seconds, not {wait:g}")


def _options(*, wait: float, quick: bool, python: str | None, strict: bool) -> tuple[str, ...]:
    """List the options that a command for another node takes over: all that aren't the default, as `facts.meeting.Meeting.options`."""
    return (
        *([f"--wait {wait:g}"] if wait != WAIT_SECONDS else []),
        *(["--quick"] if quick else []),
        *([f"--python {python}"] if python else []),
        *(["--strict"] if strict else []),
    )


def _with_token(end: RunResult) -> RunResult:
    """With the token in all commands: what is shown here is for the eyes of this node's user."""
    import msgspec

    replace = msgspec.structs.replace

    def told(finding: Finding) -> Finding:
        fixes = [
            replace(fix, commands=tuple(with_token(command, end.token) for command in fix.commands))
            for fix in finding.fixes
        ]
        return replace(finding, fixes=tuple(fixes))

    return replace(
        end,
        examinations=tuple(
            replace(
                examination,
                results=tuple(replace(two, findings=tuple(map(told, two.findings))) for two in examination.results),
            )
            for examination in end.examinations
        ),
    )
