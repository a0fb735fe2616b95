"""What a log itself tells of an illness beyond its page: a title with its figures, and remedies that fit them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.text import listed, ranks_named
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.engine.registry import Check
from ddpdoctor.facts.log import Log, SignMatch

_LISTED: Final = re.compile(r"Process (\d+) has \d")
"""A process that torch lists as a holder of the GPU."""


def particulars(check: Check, seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Empty where the log tells no more than that there is this illness."""
    return check.log.particulars(seen, log) if check.log.particulars and seen else Particulars()


def memory_of_ranks(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Where the holders that torch lists are ranks of this very run, by their launcher's word."""
    ranks = {
        str(process_exit.pid): process_exit.rank
        for process_exit in log.exited
        if process_exit.pid and process_exit.rank is not None
    }
    found = sorted({pid for match in seen for pid in _LISTED.findall(match.line.text) if pid in ranks}, key=int)
    if not found:
        return Particulars()
    own = sorted({rank for pid in found if (rank := ranks[pid]) is not None})
    verb = "is" if len(found) == 1 else "are"
    return Particulars(
        f"{'Process' if len(found) == 1 else 'Processes'} {listed(found, 4)}, which {'holds' if verb == 'is' else 'hold'} that GPU,"
        f" {verb} {ranks_named(own)} of this very run",
        (Fix('Call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before anything else that touches CUDA'),),
    )
