"""Why a running job hangs: ranks that can do nothing at all, or are gone."""

from __future__ import annotations

from ddpdoctor.base.findings import WARN, Finding, Fix, Owner
from ddpdoctor.base.text import listed
from ddpdoctor.checks.hang.hang_check import hang_check
from ddpdoctor.facts.hang import Hang
from ddpdoctor.hang.evidence import named, summary_of, timeout_words
from ddpdoctor.hang.fixes import KILLED_LINES, end_the_rest, full_stacks, look_again, read_the_code
from ddpdoctor.hang.verdict import HangVerdict
from ddpdoctor.knowledge.hang_causes import HangCause


@hang_check("rank-stopped", HangCause.STOPPED, owner=Owner.USER)
def rank_stopped(found: HangVerdict, hang: Hang) -> Finding:
    """A rank of a running job is stopped.

    ## What breaks
    All other ranks wait in their next collective until the timeout of the group ends the job. The stopped rank uses no
    processor, and keeps its GPU memory.

    ## Why
    Somebody pressed Ctrl-Z, a debugger or profiler holds the process, a job in the background wanted to read from its
    terminal (SIGTTIN), or a scheduler has suspended the job (SIGSTOP).

    ## Fix
    `kill -CONT PID`, or `fg` in the terminal; let a debugger go on or detach. After a long stop NCCL's watchdog may have
    given the job up already.
    """
    traced = [culprit for culprit in found.culprits if culprit.last.state == "t"]
    stopped = [culprit for culprit in found.culprits if culprit not in traced]
    pids = " ".join(str(culprit.pid) for culprit in stopped)
    how = "held by a debugger" if traced and not stopped else "stopped"
    go_on = Fix(f"Let {'it' if len(stopped) == 1 else 'them'} go on", (f"kill -CONT {pids}",))
    return Finding.of(
        summary_of(found, hang, "is", "are", f"{how} at {found.where}"),
        go_on if stopped else None,
        (
            Fix(
                f"Rank {culprit.number} is in the hands of a debugger (gdb, strace): go on or detach there; this names it",
                (f"grep TracerPid /proc/{culprit.pid}/status",),
            )
            for culprit in traced[:3]
        ),
        cause=f"{timeout_words(hang)} Stopped ranks can't be woken by the others." if found.waiting else "",
    )


@hang_check("peer-rank-crashed", HangCause.CRASHED, owner=Owner.UNKNOWN)
def peer_rank_crashed(found: HangVerdict, hang: Hang) -> Finding:
    """A rank is gone, and the others wait for it.

    ## What breaks
    The ranks that are left wait, or will wait from their next one on, in a collective that can never be done. Over NCCL that
    lasts until the watchdog's timeout (10 minutes), and their last words speak of the timeout or of a lost connection, not of
    the rank that died.

    ## Why
    The rank raised an error, was killed (mostly out of memory), or ended by itself, and what started it has not ended the
    others: a launcher without such a duty, one that was killed itself, or a rank started by hand.

    ## Fix
    Read the log of the rank that is gone for its first error; the others only report what followed. Then end the rest, and
    start anew with torchrun, which ends all ranks when one fails.
    """
    who = named(found.culprits, hang)
    later = "" if found.waiting else f"; the others will wait for {found.verb('it', 'them')} at their next collective"
    missed = Fix(
        f"If {who} had done all its work, nothing is wrong: see whether the others go on",
        (look_again(hang, 30),),
    )
    timeout = f" {timeout_words(hang)}" if found.waiting else ""
    return Finding.of(
        summary_of(found, hang, "is", "are", f"gone{later}"),
        Fix(f"Find the first error of {who}: its log, and whether the kernel killed it", (KILLED_LINES,)),
        end_the_rest(found.culprits, hang) if found.waiting else missed,
        cause=f"It has crashed, was killed, or has left the training before the others.{timeout}".strip(),
        severity=None if found.waiting else WARN,
    )


NFS, NVIDIA = "An NFS server doesn't answer.", "NVIDIA's driver waits for a GPU."
KERNEL_HOLDERS = {
    "nfs": NFS,
    "rpc": NFS,
    "fuse": "A FUSE file system doesn't answer.",
    "nv": NVIDIA,
    "uvm": NVIDIA,
    "ceph": "A Ceph file system doesn't answer.",
}
"""Who holds a rank, by a part of the kernel's function in which it is."""


@hang_check("rank-in-kernel", HangCause.KERNEL, owner=Owner.NODE)
def rank_in_kernel(found: HangVerdict, hang: Hang) -> Finding:
    """A rank is held by the kernel: a disk, a network file system or a driver doesn't answer.

    ## What breaks
    The process sits in uninterruptible sleep (state D): no signal reaches it, not even kill -9. The other ranks wait for it.

    ## Why
    An NFS or Lustre server doesn't answer, a disk fails, or the GPU's driver waits for a GPU that has fallen off the bus.
    The name of the kernel function (wchan) tells which: nfs_, rpc_, ll_, nvidia, uvm_.

    ## Fix
    Bring back what it waits for; the process goes on by itself then. A GPU or driver that is gone needs a reset or a reboot.
    """
    waits_in = dict.fromkeys(culprit.last.waits_in for culprit in found.culprits if culprit.last.waits_in)
    names = listed(waits_in, most=3) or "the kernel"
    gpus = Fix("See what is wrong with the GPUs", ("ddpdoctor check --select gpu,driver",))
    return Finding.of(
        summary_of(found, hang, "is", "are", f"held by the kernel in {names}, at {found.where}"),
        Fix("See what the kernel says of it", ("sudo dmesg -T | tail -50",)),
        Fix(
            "See whether file systems answer: each line that doesn't come is one that doesn't",
            ("timeout 5 df -hT",),
        ),
        gpus if "nv" in names else None,
        cause=next((who for part, who in KERNEL_HOLDERS.items() if part in names), ""),
    )


@hang_check("rank-waits-for-input", HangCause.INPUT, owner=Owner.USER)
def rank_waits_for_input(found: HangVerdict, hang: Hang) -> Finding:
    """A rank waits for somebody at a keyboard.

    ## What breaks
    The rank stands in a debugger's prompt or in `input()` for ever. Under a launcher nobody sees the prompt, and the other
    ranks wait in their next collective.

    ## Why
    A `breakpoint()` or `pdb.set_trace()` was left in the code, a library asks a question (a login, a licence, whether to
    overwrite), or `pdb` was entered after an error.

    ## Fix
    Take the breakpoint out, or answer questions by an option or environment variable. To debug one rank,
    `torch.distributed.breakpoint(rank=0)` holds the others in a barrier meanwhile.
    """
    return Finding.of(
        summary_of(found, hang, "waits", "wait", f"for input from a keyboard at {found.where}"),
        read_the_code(found.frames, f"Take out what asks at {found.lines}"),
        full_stacks(hang, found.culprits),
        cause=timeout_words(hang) if found.waiting else "",
    )
