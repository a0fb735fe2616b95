"""Looks at the processes of this host, and where ranks may be left over also at their stacks."""

from __future__ import annotations

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.processes import Processes
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.processes import listing
from ddpdoctor.processes.stacks_of_leftovers import with_stacks

DEADLINE = listing.DEADLINE


def probe(context: Context) -> Processes | Unknown:
    """What every process is to a job; of each rank of a job with a quiet orphan also its stack."""
    found = listing.probe(context)
    return found if isinstance(found, Unknown) else with_stacks(found)
