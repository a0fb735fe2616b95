"""Takes the log of a run that ended well for what others are compared with, or refuses it, and says why."""

from __future__ import annotations

from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.log import Log
from ddpdoctor.logs.analyze.good_runs import GoodRun, ended_well, good_run, without_got_over
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.logs.match.shape_tally import ShapeTally
from ddpdoctor.logs.render.headline import headline
from ddpdoctor.logs.render.words import unread


class NotGoodError(Exception):
    """The log tells of a run that failed, or could not be read whole: it says which."""


def taken_for_good(name: str, log: Log, tally: ShapeTally, catalogue: Catalogue) -> GoodRun:
    """Keep of a log what others are compared with.

    Args:
        name: by which it is told.
        log: as it was read, with what is counted in `tally`.
        tally: the kinds of its lines.
        catalogue: the checks to judge it by.

    Raises:
        NotGoodError: it isn't that of a run that ended well.
    """
    if problems := unread(log):
        raise NotGoodError(problems[0])
    judgement = judge_log(without_got_over(log, tally), catalogue)
    if not ended_well(log, judgement.verdict):
        raise NotGoodError(headline(judgement))
    return good_run(name, log, tally)
