"""Mistakes in starting a run that only its log shows."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ddpdoctor.base.findings import FAIL, Finding, Fix, Owner
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.logs.analyze.sightings import word


@log_check("local-rank-arg-mismatch", severity=FAIL, owner=Owner.USER)
def local_rank_arg_mismatch(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """The script doesn't know the argument by which its launcher tells the local rank.

    ## What breaks
    Every rank ends at once with "unrecognized arguments: --local-rank=0".

    ## Why
    `python -m torch.distributed.launch` adds `--local-rank=N` (before torch 2.0 `--local_rank=N`), `deepspeed`
    `--local_rank=N`. The script declares the other spelling, or none.

    ## Fix
    Start with `torchrun`, or `deepspeed --no_local_rank`, which add nothing, and read `int(os.environ["LOCAL_RANK"])`. Or
    declare both:
    `parser.add_argument("--local-rank", "--local_rank", type=int)`.
    """
    argument = word(seen, "argument")
    deepspeed = log.launcher == "deepspeed"
    start = "deepspeed --no_local_rank" if deepspeed else "torchrun"
    return Finding.of(
        f"The script doesn't know {argument}, which {'deepspeed' if deepspeed else 'torch.distributed.launch'} adds",
        Fix(f'Read it from the environment, and start with {start}: local_rank = int(os.environ["LOCAL_RANK"])'),
        Fix('Or declare both spellings: parser.add_argument("--local-rank", "--local_rank", type=int, default=0)'),
    )


@log_check("ssh-login-failed", severity=FAIL, owner=Owner.UNKNOWN)
def ssh_login_failed(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """The launcher can't log in to another node by ssh.

    ## What breaks
    Launchers that go to the other nodes by ssh (DeepSpeed, Open MPI, pdsh, Horovod) start nothing there, and end or wait.

    ## Why
    They log in without anybody at the keyboard: a password, a host key that nobody has confirmed, another user or port, a node that doesn't
    run sshd, as most containers, or a name that doesn't resolve, each ends it.

    ## Fix
    Make `ssh -o BatchMode=yes NODE hostname` work from the node that launches, as the user who launches: a key without a passphrase, or
    an agent, and each node's host key in `known_hosts`. In a cluster with a scheduler start by it (`srun`, `deepspeed --launcher slurm`,
    `torchrun` on each node), which needs no ssh.
    """
    host = word(seen, "host")
    node = shlex.quote(host or "NODE")
    return Finding.of(
        f"The launcher can't log in to {host or 'another node'} by ssh",
        Fix(
            "Log in as the launcher does, from its node and as its user, and see what it says",
            (f"ssh -v -o BatchMode=yes {node} hostname",),
        ),
        Fix(
            "If it asks for a password, give the node your key; if it asks whether to trust the host, say so once",
            (f"ssh-copy-id {node}",),
        ),
        Fix("Or start without ssh: by srun, or by torchrun on each node"),
    )


@log_check("mpirun-slots", severity=FAIL, owner=Owner.USER)
def mpirun_slots(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """mpirun has fewer slots than the processes that it is to start.

    ## What breaks
    mpirun, or what calls it (horovodrun, torchpack), ends before any process of the run has begun.

    ## Why
    Open MPI starts one process for each slot, and has as many as a host file, `--host` or the scheduler tells it, or else the cores of this
    host. More were asked for; a host was named without its number, which is one slot; or the launcher is another MPI, or an old one,
    which takes `host:4` for a name.

    ## Fix
    Ask for as many processes as there are GPUs, and name the slots: `mpirun -np 8 --host node1:4,node2:4 ...`, or a host file with lines such
    as `node1 slots=4`. Under Slurm or PBS ask the scheduler for that many tasks. `--oversubscribe` starts more processes than there are slots.
    """
    host, wanted = word(seen, "host"), word(seen, "wanted")
    if host:
        slots = word(seen, "slots")
        return Finding.of(
            f"The launcher takes {host}:{slots} for a host's name: it doesn't know that {slots} is the number of slots",
            Fix("See which MPI it is: Open MPI knows host:slots", ("mpirun --version",)),
            Fix(
                "Or give the number in a host file, which older ones know, too: one such line for each host",
                (f"echo {shlex.quote(f'{host} slots={slots}')} >> mpi-hosts", "mpirun --hostfile mpi-hosts ..."),
            ),
        )
    number = wanted or "N"
    return Finding.of(
        f"mpirun is to start {f'{wanted} processes' if wanted else 'more processes'}, and has not enough slots for them",
        Fix(
            "See how many GPUs there are, and ask for no more processes: mpirun -np, horovodrun -np", ("nvidia-smi -L",)
        ),
        Fix(
            f"If there are enough GPUs, name each host with its number of slots; together at least {number}",
            (f"mpirun -np {number} --host HOST1:8,HOST2:8 ...",),
        ),
    )


@log_check("wandb-unusable", severity=FAIL, owner=Owner.USER)
def wandb_unusable(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """Weights & Biases can't be used where the run is.

    ## What breaks
    `wandb.init()` raises in the rank that calls it, or waits for minutes and raises then; the other ranks wait for that one.

    ## Why
    A job has no terminal at which wandb could ask for the key; nodes often have no way to its server; and its service process may not come up
    where threads, memory or the temporary folder run out.

    ## Fix
    `export WANDB_MODE=offline` in the job, and `wandb sync` later, or `WANDB_MODE=disabled`. With a way to the server: `wandb login` once
    before the job, on a file system that the node sees, or `WANDB_API_KEY`. Call `wandb.init()` in rank 0 alone.
    """
    no_key = any("api_key" in match.sign for match in seen)
    return Finding.of(
        "Weights & Biases has no API key, and a job has no terminal to ask for it"
        if no_key
        else "Weights & Biases can't reach its server, or its own process",
        Fix("Log in before the job, where its home folder is the same", ("wandb login",)) if no_key else None,
        Fix(
            "Let it write to disk alone, and upload that later",
            ("export WANDB_MODE=offline", "wandb sync wandb/offline-run-*"),
        ),
        Fix("Or let it do nothing", ("export WANDB_MODE=disabled",)),
    )


@log_check("libuv-missing", severity=FAIL, owner=Owner.USER)
def libuv_missing(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """torch was built without libuv, which its store is told to use.

    ## What breaks
    torchrun and `init_process_group` end at once with "use_libuv was requested but PyTorch was built without libuv support".

    ## Why
    Since torch 2.4 the store, by which the ranks find each other, uses libuv unless told otherwise. Wheels for Windows come without
    it, as do some builds that people make themselves.

    ## Fix
    `USE_LIBUV=0` in the environment of every rank, or `init_method="env://?use_libuv=0"`. torchrun's own store ignores both, up to
    torch 2.13 at least: on a single host start the ranks by `mp.spawn` in its place, or run it in WSL or on Linux, whose wheels have
    libuv.
    """
    launcher = any("elastic" in frame.path for exception in log.raised for frame in exception.frames)
    unset = Fix("Tell the store of every rank to work without it; on Windows", ("set USE_LIBUV=0",))
    spawn = Fix(
        "torchrun's own store ignores USE_LIBUV: on a single host start the ranks by torch.multiprocessing.spawn, and in each",
        (
            'os.environ.update(USE_LIBUV="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")',
            'dist.init_process_group("gloo", rank=rank, world_size=world_size)',
        ),
    )
    return Finding.of(
        "This build of torch has no libuv, but its store, at which the ranks meet, needs it",
        None if launcher else unset,
        spawn,
        Fix("Or run it in WSL or on Linux, whose wheels have libuv, and NCCL as well"),
    )
