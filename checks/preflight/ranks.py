"""Who of a job's ranks came to its preflight, and whether they mean the same job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import FAIL, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.shell import quoted
from ddpdoctor.base.text import capital, listed, plural, ranks_named
from ddpdoctor.engine.registry import Subject, check, requires
from ddpdoctor.facts.preflight import Preflight, PreflightRank
from ddpdoctor.knowledge.evidence import told

NO_PREFLIGHT = "only preflight() looks at a job from within"
"""The reason of checks of such a job, where there is none."""
ONE_RANK = "there is only one rank"
MAX_SHOWN_RANKS = 8


def of_several(preflight: Preflight) -> None:
    """Ends the check where no ranks were to meet."""
    requires(preflight.world_size, NO_PREFLIGHT)
    requires(preflight.world_size > 1, ONE_RANK)


@check("preflight-rank-missing", severity=FAIL, owner=Owner.UNKNOWN, judges=(Subject.JOB_FROM_WITHIN,))
def preflight_rank_missing(preflight: Preflight) -> Iterator[Finding]:
    """A rank did not come to the job's preflight.

    ## What breaks
    The first collective waits for that rank, until the timeout of the process group ends the job: 10 minutes with NCCL, 30 with gloo.

    ## Why
    It is still busy with what stands before the call, such as reading data or compiling. Or it never gets there: the call stands
    under an `if`, the rank waits for something else, or its process has ended.

    ## Fix
    Call `preflight()` on every rank, at the same place. See with `ddpdoctor jobs --hang` where the rank is. If it only needs longer, give it more time:
    `preflight(timeout=300)`.
    """
    of_several(preflight)
    requires(not preflight.store_failure, "the job's store did not answer: see job-store-unreachable")
    if not preflight.absent:
        return
    here = preflight.ranks
    came = f"{len(here)} of {plural(preflight.world_size, 'rank')} came"
    witness = here[0] if here else None
    yield Finding.of(
        f"{capital(ranks_named(preflight.absent))} did not come to the preflight within {preflight.waited:.0f} s; {came}",
        told(preflight, "absent", f"without a word: {ranks_named(preflight.absent)}"),
        told(preflight, "store", f"store: {preflight.store}") if preflight.store else None,
        Fix(
            f"See where {'it is' if len(preflight.absent) == 1 else 'they are'}: on {witness.host}, and on each other host of the job",
            (f"ddpdoctor jobs --hang {witness.pid}",),
        )
        if witness
        else None,
        Fix("Call preflight() on every rank, at the same place of the program, and not under an `if`"),
        Fix("If a rank needs longer to get there, give it more time: preflight(timeout=300)"),
        rank=preflight.absent[0] if len(preflight.absent) == 1 else None,
    )


@check("job-store-unreachable", severity=FAIL, owner=Owner.UNKNOWN, judges=(Subject.JOB_FROM_WITHIN,))
def job_store_unreachable(preflight: Preflight) -> Iterator[Finding]:
    """A rank of a job that is about to train can't use the job's store.

    ## What breaks
    `init_process_group` waits for the same store, and fails after its timeout. Where the group is there already, the next group that is
    made, and the first collective over NCCL, wait for it.

    ## Why
    Rank 0, or torchrun's agent on the first node, hosts the store. It isn't there yet, has ended, or is stopped; or MASTER_ADDR and
    MASTER_PORT lead elsewhere; or a packet filter stands between.

    ## Fix
    See whether rank 0 runs, and is not stopped. Let `ddpdoctor netcheck` try the way there on every node.
    """
    of_several(preflight)
    if not preflight.store_failure:
        return
    ranks = ranks_named(rank.rank for rank in preflight.ranks)
    yield Finding.of(
        f"{capital(ranks)} can't use the job's store ({preflight.store}): {preflight.store_failure}",
        told(preflight, "store_failure", preflight.store_failure),
        Fix("See on the host of rank 0 whether it runs, and where it stands", ("ddpdoctor jobs",)),
        Fix("Once the job has ended, try the way to the store on every node", ("ddpdoctor netcheck",)),
        cause="Rank 0, or torchrun's agent on the first node, hosts the store, and the other ranks have not heard of it in time.",
    )


@check("preflight-rank-failed", severity=WARN, owner=Owner.USER, judges=(Subject.JOB_FROM_WITHIN,))
def preflight_rank_failed(preflight: Preflight) -> Iterator[Finding]:
    """A rank raised an exception as it was to say what it is.

    ## What breaks
    Mostly the training on that rank: what raised is what torch is asked for its version, its device and its settings. The other ranks wait
    for it then.

    ## Why
    Its torch is damaged, or replaced by something else of that name; or the program has put something of its own in the place of one of
    torch's functions.

    ## Fix
    Run on that rank's host what the finding names, and look at the Python that it runs in with `ddpdoctor check --python`.
    """
    of_several(preflight)
    failed = grouped((rank for rank in preflight.ranks if rank.problem), lambda rank: rank.problem)
    for problem, ranks in failed.items():
        yield Finding.of(
            f"{capital(_on(ranks))} could not say what {'it is' if len(ranks) == 1 else 'they are'}: {problem}",
            told(preflight, "ranks", f"Python: {ranks[0].python}"),
            Fix(
                f"On {ranks[0].host}, see what is wrong with that Python",
                (f"ddpdoctor check --python {quoted(ranks[0].python)}",),
            ),
            rank=ranks[0].rank if len(ranks) == 1 else None,
        )


@check("preflight-device-missing", severity=FAIL, owner=Owner.USER, judges=(Subject.JOB_FROM_WITHIN,))
def preflight_device_missing(preflight: Preflight) -> Iterator[Finding]:
    """A rank is to use a GPU that isn't there.

    ## What breaks
    The first that is made on that device raises: "Torch not compiled with CUDA enabled", "No CUDA GPUs are available", "invalid device
    ordinal". The other ranks wait for that rank then.

    ## Why
    The torch that was installed is built for the CPU; the host has no GPU, or no driver for it; CUDA_VISIBLE_DEVICES shows fewer GPUs than the
    rank counts on; or more ranks were started than there are GPUs.

    ## Fix
    See with `ddpdoctor check` why torch sees no GPU there. Start as many ranks as there are GPUs; to train on the CPU, take "cpu" for the
    device and gloo for the backend.
    """
    requires(preflight.ranks, NO_PREFLIGHT)
    lacking = grouped((rank for rank in preflight.ranks if rank.no_gpu), lambda rank: rank.no_gpu)
    for why, ranks in lacking.items():
        devices = listed(dict.fromkeys(rank.device for rank in ranks), 3)
        yield Finding.of(
            f"{capital(_on(ranks))} {'is' if len(ranks) == 1 else 'are'} to use {devices}, and there is no such GPU: {why}",
            (
                Evidence(f"rank {rank.rank} on {rank.host}: {rank.device}", rank.device_source)
                for rank in ranks[:MAX_SHOWN_RANKS]
            ),
            Fix(
                f"On {ranks[0].host}, see which GPUs that Python has, and why not more",
                (f"ddpdoctor check --python {quoted(ranks[0].python)}",),
            ),
            Fix('Or train on the CPU: the device "cpu", and init_process_group("gloo")'),
            rank=ranks[0].rank if len(ranks) == 1 else None,
        )


@check("world-size-mismatch", severity=FAIL, owner=Owner.USER, judges=(Subject.JOB_FROM_WITHIN,))
def world_size_mismatch(preflight: Preflight) -> Iterator[Finding]:
    """The ranks of a job don't agree on how many they are.

    ## What breaks
    Those with the larger number wait for ranks that nobody starts, in `init_process_group` or in the first collective.

    ## Why
    WORLD_SIZE differs: it was exported by hand on one host, or is left over from another run there; or the nodes were started with
    different `--nnodes` or `--nproc-per-node`.

    ## Fix
    Start all nodes by the same command, and let the launcher set WORLD_SIZE.
    """
    of_several(preflight)
    requires(preflight.ranks, "no rank answered")
    sizes = grouped(preflight.ranks, lambda rank: str(rank.world_size))
    if len(sizes) < 2:
        return
    yield Finding.of(
        f"The ranks differ in the number of ranks: {_told(sizes)}",
        _shown(preflight, sizes, "world size"),
        Fix("Start every node by the same command, with the same --nnodes and --nproc-per-node"),
        Fix("Where it is set by hand, take it away, and let the launcher set it", ("unset WORLD_SIZE RANK",)),
    )


@check("backend-mismatch", severity=FAIL, owner=Owner.USER, judges=(Subject.JOB_FROM_WITHIN,))
def backend_mismatch(preflight: Preflight) -> Iterator[Finding]:
    """The ranks of a job use different backends.

    ## What breaks
    The ranks of one backend never hear of the others: the first collective, or `init_process_group`, waits until its timeout.

    ## Why
    The backend is chosen by something that differs between the hosts: whether torch sees a GPU there (`"nccl" if
    torch.cuda.is_available() else "gloo"`), whether its build has NCCL, or a setting.

    ## Fix
    Name the backend, the same on all ranks, and let a rank without a GPU fail at once. See with `ddpdoctor check` why a host's torch sees no GPU.
    """
    of_several(preflight)
    named = [rank for rank in preflight.ranks if rank.backend]
    requires(named, "no rank has a backend yet")
    backends = grouped(named, lambda rank: rank.backend)
    if len(backends) < 2:
        return
    # Of two that are equally frequent, the one that rank 0 doesn't have.
    odd = min(reversed(backends.values()), key=len)[0]
    yield Finding.of(
        f"The ranks use different backends: {_told(backends)}",
        _shown(preflight, backends, "backend"),
        Fix('Name the same on all ranks: init_process_group("nccl"), and not what torch.cuda.is_available() says'),
        Fix(f"On {odd.host}, see what its torch can do", (f"ddpdoctor check --python {quoted(odd.python)}",)),
    )


def _told(groups: dict[str, list[PreflightRank]]) -> str:
    return listed((f"{value} on {ranks_named(rank.rank for rank in ranks)}" for value, ranks in groups.items()), 3)


def _shown(preflight: Preflight, groups: dict[str, list[PreflightRank]], what: str) -> tuple[Evidence, ...]:
    return tuple(
        told(preflight, "ranks", f"{_on(ranks)}: {what} {value}")
        for value, ranks in list(groups.items())[:MAX_SHOWN_RANKS]
    )


def _on(ranks: Sequence[PreflightRank]) -> str:
    """ "rank 3 on n1", "ranks 0-6 on n1 and n2"."""
    hosts = dict.fromkeys(rank.host for rank in ranks)
    return f"{ranks_named(rank.rank for rank in ranks)} on {listed(hosts, 3)}"
