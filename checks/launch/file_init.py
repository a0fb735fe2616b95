"""Whether the file at which ranks meet is left over from another run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ddpdoctor.base.findings import WARN, Finding, Fix
from ddpdoctor.base.unknown import known
from ddpdoctor.checks.launch.launchers import with_torchrun
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.plan import Plan


@check("stale-file-init", severity=WARN)
def stale_file_init(environment: Environment, plan: Plan) -> Iterator[Finding]:
    """The rendezvous file of an earlier run is still there.

    ## What breaks
    The ranks read what the earlier run wrote, and fail, hang, or meet ranks that have long gone.

    ## Why
    With `init_method="file://..."` the file is the meeting place. It must not exist before the first rank starts; a run
    that dies leaves it behind. On NFS it needs locks that work, too.

    ## Fix
    Remove the file, use a new name for each run, or use `env://` with torchrun.
    """
    files = known(environment.file_init)
    addresses = [setting for setting in environment.settings if "file://" in setting.value]
    requires(addresses, "no file:// rendezvous in the settings")
    requires("RANK" not in environment, "the job that uses the rendezvous file is running")
    for path, size, kind in files:
        if size == 0:
            continue
        on_nfs = kind.startswith("nfs")
        yield Finding(
            summary=f"The rendezvous file {path[-90:]} exists already ({size} bytes{', on NFS' if on_nfs else ''})",
            evidence=(environment.seen("file_init", f"{path}: {size} bytes on {kind or 'an unknown file system'}"),),
            fixes=(
                Fix("If no job is using it, remove it before the start", (f"rm -- {shlex.quote(path)}",)),
                with_torchrun(plan),
            ),
        )
