"""`ddpdoctor smoke`: a reference DDP job in the patient's Python, stage by stage."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Annotated

import typer


def smoke(
    nproc: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Ranks on this host. Default: one a GPU; without any, 2.", show_default=False
        ),
    ] = None,
    backend: Annotated[
        str, typer.Option(metavar="nccl|gloo|auto", help="Default: NCCL where there are GPUs.")
    ] = "auto",
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="The Python in which training runs. Default: the active environment's.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=86400,
            metavar="SECONDS",
            help="A stage may take so long. Default: 30, the import 90.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with -v also the facts.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 for warnings, too.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Name what passed and what had nothing to test.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="One line a finding, and the verdict.")] = False,
) -> None:
    """Train a small DDP job on torch's own engine, and say which rank stopped where.

    Exit code: 0 every stage that could be run passed, 1 something failed, 2 wrong usage or no verdict.
    """
    if verbose and quiet:
        raise typer.BadParameter("-v and -q exclude each other")
    if backend not in ("nccl", "gloo", "auto"):
        raise typer.BadParameter(f"--backend is nccl, gloo or auto, not {backend}")
    import msgspec

    from ddpdoctor.cli.looking import look
    from ddpdoctor.examination import examine
    from ddpdoctor.probes.context import Context
    from ddpdoctor.probes.patient.choice import choose_python
    from ddpdoctor.registry import all_checks
    from ddpdoctor.report.contract import build_report, to_json
    from ddpdoctor.report.terminal import make_console, show
    from ddpdoctor.smoke.orders import IMPORT_SECONDS, STAGE_SECONDS, Order
    from ddpdoctor.smoke.plan import GROUPS, smoke_plan
    from ddpdoctor.smoke.result import smoke_facts
    from ddpdoctor.smoke.running import run

    path, chosen_by = choose_python(python, os.environ)
    snapshot = look(Context(path, chosen_by, quick=True), GROUPS)
    plan = smoke_plan(snapshot, nproc, backend)
    order = Order(
        nproc=plan.nproc,
        world_size=plan.nproc,
        backend=plan.backend,
        seconds=timeout or STAGE_SECONDS,
        import_seconds=timeout or IMPORT_SECONDS,
    )
    began = time.monotonic()
    ran = asyncio.run(run(order, python=path, environ=os.environ))
    facts = smoke_facts(order, plan, [ran], python=path, seconds=time.monotonic() - began)
    examination = examine(
        msgspec.structs.replace(snapshot, smoke=facts),
        plan.nproc,
        [one for one in all_checks() if one.family == "smoke"],
    )
    if as_json:
        print(to_json(build_report("smoke", [examination], with_facts=verbose)))
    else:
        show(make_console(sys.stdout), [examination], verbose=verbose, quiet=quiet)
    raise typer.Exit(examination.verdict.exit_code(strict=strict))
