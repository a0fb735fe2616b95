"""Where the debug server listens that `ddpdoctor run --debug-server` has had a job start."""

from __future__ import annotations

import sys

from ddpdoctor.facts.hang import PORT_SETTING
from ddpdoctor.hang.debug_server.pages import parse_address
from ddpdoctor.processes.jobs import TrainingJob, setting


def debug_server_of(job: TrainingJob) -> str:
    """Name HOST:PORT of a job's own debug server, which is on rank 0's host; "" without one, or where no rank says on which host."""
    served = (rank for rank in job.ranks if setting(rank, PORT_SETTING))
    rank = min(served, key=lambda rank: rank.place.rank if rank.place else sys.maxsize, default=None)
    if rank is None:
        return ""
    is_first = rank.place is not None and rank.place.rank == 0
    host = "localhost" if is_first else setting(rank, "MASTER_ADDR")
    # Whatever another user has written there: what is no address is in no command.
    host = f"[{host}]" if ":" in host else host
    address = parse_address(f"{host}:{setting(rank, PORT_SETTING)}")
    return str(address) if address else ""
