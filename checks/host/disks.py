"""The folders and file systems that training writes to."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import GIB, MIB, human, listed
from ddpdoctor.engine.log_traits import LogTraits, Particulars
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.disks import Disk, Disks
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.knowledge.evidence import told
from ddpdoctor.logs.analyze.sightings import word

FLOORS: dict[str, tuple[int, int]] = {
    "working folder": (256 * MIB, 5 * GIB),
    "temporary files": (16 * MIB, 512 * MIB),
    "home": (0, 128 * MIB),
    "torch cache": (0, GIB),
    "Hugging Face cache": (0, GIB),
    "Triton cache": (0, GIB // 4),
}
"""Free bytes below which it fails, and warns. A checkpoint of a billion parameters with Adam takes 12 GB; a small one 5."""
INODES_WANTED = 1000
SYSTEM_MOUNTS = ("/", "/tmp", "/var", "/var/tmp")
"""File systems that every user of the host writes to: they are its administrator's to keep free."""


def _floors(disk: Disk) -> tuple[int, int]:
    return FLOORS.get(disk.purpose, (0, 0))


@check("disk-full", severity=FAIL, owner=Owner.USER)
def disk_full(disks: Disks) -> Iterator[Finding]:
    """A file system that training writes to is full.

    ## What breaks
    The checkpoint at the end of the first epoch is cut short, torch.compile cannot write its cache, or torchrun cannot
    make its folder for logs.

    ## Why
    The working folder, $TMPDIR, the home folder and the caches of torch, Triton and Hugging Face often lie on small or
    shared file systems. Besides bytes they can run out of inodes, one of which every file takes. A quota for your user or
    project doesn't show in these figures: ask `quota -s`, `lfs quota -h`, or your cluster's own command.

    ## Fix
    Make room, keep fewer checkpoints, or move: `TMPDIR`, `HF_HOME`, `TORCH_HOME`, `TRITON_CACHE_DIR`.
    """
    requires(disks.folders, "no file system could be asked")
    by_mount: dict[tuple[str, int], list[Disk]] = {}
    for disk in disks.folders:
        by_mount.setdefault((disk.mount or disk.path, disk.total), []).append(disk)
    for group in by_mount.values():
        # Images (squashfs, snap) are full by nature; folder-not-writable judges whether they can be written to.
        group = [disk for disk in group if disk.total and not disk.read_only_mount]
        if short := [disk for disk in group if disk.free < _floors(disk)[1]]:
            yield _short_of("space", short, f"{human(short[0].free)} of {human(short[0].total)} free", disks)
        if scarce := [disk for disk in group if _counts_inodes(disk) and disk.inodes_free < INODES_WANTED]:
            yield _short_of("inodes", scarce, f"{scarce[0].inodes_free} of {scarce[0].inodes_total} inodes free", disks)


def _counts_inodes(disk: Disk) -> bool:
    # Of file systems in user space many make these figures up.
    return disk.inodes_total > 0 and not disk.file_system.startswith("fuse")


def _short_of(what: str, disks: Sequence[Disk], figures: str, others: Disks) -> Finding:
    fails = what == "inodes" or any(disk.free < _floors(disk)[0] for disk in disks)
    where = disks[0].mount or disks[0].path
    counted, order = ("h", "-h") if what == "space" else (" --inodes", "-n")
    look = f"du -x{counted} --max-depth=2 {shlex.quote(where)} 2>/dev/null | sort {order} | tail -n 20"
    fixes = [Fix("See what takes the space, and remove what nobody needs", (look,))]
    for disk in disks:
        if disk.purpose in MOVES:
            moved = _moved(
                "Or set {} to a folder with room", *MOVES[disk.purpose], _with_room(disk, others), appliable=True
            )
            fixes.append(moved or Fix(f"Or set {MOVES[disk.purpose][0]} to a folder on a larger file system"))
    return Finding.of(
        f"{where} is short of {what}: {figures}; on it: {listed([disk.purpose for disk in disks], 3)}",
        (_seen(disk, figures) for disk in disks),
        fixes,
        severity=FAIL if fails else WARN,
        owner=Owner.NODE if disks[0].mount in SYSTEM_MOUNTS else None,
    )


MOVES = {
    "temporary files": ("TMPDIR", "tmp"),
    "Hugging Face cache": ("HF_HOME", "huggingface"),
    "torch cache": ("TORCH_HOME", "torch-cache"),
}
"""What can lie elsewhere: the variable that says where, and a name for the folder there."""


def _moved(text: str, variable: str, name: str, roomy: Disk | None, *, appliable: bool) -> Fix | None:
    """A setting that names a new folder; None where there is no room for one."""
    if roomy is None:
        return None
    folder = shlex.quote(f"{roomy.path.rstrip('/')}/{name}")
    set_it = f"mkdir -p {folder} && export {variable}={folder}"
    return Fix(f"{text.format(variable)}, {human(roomy.free)} free", (set_it,), appliable=appliable)


def _with_room(short: Disk, disks: Disks) -> Disk | None:
    """The working folder or the home, where it has the room that this one lacks, and inodes; for what can't be written to at
    all, the folder for temporary files, too."""
    purposes = ("working folder", "home", *(() if short.writable else ("temporary files",)))
    for folder in sorted(disks.folders, key=lambda disk: disk.purpose == "temporary files"):
        another = (folder.mount, folder.total) != (short.mount, short.total)
        elsewhere = folder.writable and (another or not short.writable)
        inodes = not _counts_inodes(folder) or folder.inodes_free >= 10 * INODES_WANTED
        # What it lacks it shall have twice: its own purpose needs room, too.
        room = folder.free >= 2 * max(_floors(short)[1], _floors(folder)[1])
        if folder.purpose in purposes and elsewhere and inodes and room:
            return folder
    return None


def _not_writable(disk: Disk, others: Disks) -> Finding:
    triton, roomy = disk.purpose == "Triton cache", _with_room(disk, others)
    if triton or disk.purpose == "temporary files":
        variable, name = ("TRITON_CACHE_DIR", "triton") if triton else MOVES[disk.purpose]
        moved = _moved("Set {} to a folder that you may write to", variable, name, roomy, appliable=False)
        none = f"Set {variable} to a folder that you may write to: none of the folders checked here has room for it"
        fix = moved or Fix(none)
    else:
        text = "Start training in a folder that you may write to, or tell your program to write its files to one"
        fix = Fix(text, (f"cd {shlex.quote(roomy.path)}",) if roomy else ())
    return Finding.of(
        f"This user can't write to {disk.path} ({disk.purpose})",
        _seen(disk, "not writable"),
        fix,
        cause="It is mounted read-only." if disk.read_only_mount else "It does not belong to this user.",
        severity=INFO if triton else WARN,
        owner=Owner.NODE if disk.read_only_mount and disk.mount in SYSTEM_MOUNTS else None,
    )


def _seen(disk: Disk, figures: str) -> Evidence:
    return Evidence(f"{disk.purpose} {disk.path} ({disk.file_system or 'file system'}): {figures}", "statvfs")


_OF_FILE_STORE: Final = compile_lazily(r"^RuntimeError: open\((?P<path>/[^)]*)\): (?P<said>\w[\w ]{0,80})")
_FILE_URL: Final = compile_lazily(r"file:/(?P<folder>/[^/\s'\"]+)(?P<path>/[^\s'\"?,)]*)")
"""One that lacks the third slash: torch takes its first folder for a host, and drops it."""


def _of_rendezvous(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Tell of the file at which the ranks meet: it is no folder that training writes to."""
    failed = next((found for match in seen if (found := _OF_FILE_STORE.match(match.line.text))), None)
    if failed is None:
        return Particulars()
    opened = failed["path"]
    summary = f"The ranks were to meet at the file {opened}, which can't be made"
    over_network = Fix("Or let the ranks meet over the network, as torchrun sets it up", ('init_method="env://"',))
    calls = [frame.code for raised in log.raised for frame in raised.frames]
    folder = next((url["folder"] for code in calls for url in _FILE_URL.finditer(code) if url["path"] == opened), "")
    if not folder:
        return Particulars(
            f"{summary}: {failed['said']}",
            (
                Fix(
                    "See on each host whether its folder is there, and whose it is",
                    (f'ls -ld "$(dirname {shlex.quote(opened)})"',),
                ),
                Fix(
                    "Name a file in a folder that all ranks share and may write to: behind file:// stands its whole path from the root on",
                    ('init_method="file:///FOLDER/NAME"',),
                ),
                over_network,
            ),
            "The rank that comes first makes that file. The system refused it: the folder isn't there, or isn't this user's to write to.",
        )
    return Particulars(
        f"{summary}: its address has one slash too few",
        (
            Fix(
                "Write three slashes, and a folder that all ranks share and may write to; the file must not be there before",
                (f'init_method="file://{folder}{opened}"',),
            ),
            over_network,
        ),
        "What stands between the second and the third slash of file:// is taken for a host, and dropped: of "
        f"file:/{folder}{opened} torch opens {opened}.",
    )


_CACHES: Final = {
    "torchinductor_": "TORCHINDUCTOR_CACHE_DIR",
    "torch_extensions": "TORCH_EXTENSIONS_DIR",
    ".triton": "TRITON_CACHE_DIR",
}
"""Folders of compiled code, by what their names begin with, and the settings that name others."""


def _of_a_cache(seen: Sequence[SignMatch]) -> Particulars:
    """Tell of a folder in which compiled code is kept."""
    cache = word(seen, "cache")
    if not cache:
        return Particulars()
    name = cache.rpartition("/")[2]
    folder, setting = next(known for known in _CACHES.items() if name.startswith(known[0]))
    return Particulars(
        f"The job's user can't write to {cache}, in which compiled code is kept",
        (
            Fix("See whose it is, and who you are there", (f"ls -ld {shlex.quote(cache)}; id",)),
            # Not below /tmp: whoever makes the folder first has their code run.
            Fix(
                "Keep compiled code in a folder of your own", (f'export {setting}="$HOME/.cache/{folder.strip("._")}"',)
            ),
            Fix("Or ask that user, or an administrator, to hand it over to you"),
        ),
        "Mostly another user has made it, such as root in a container that shares /tmp or the home folder; or the job's user has no name there, so that two users come to the same folder.",
    )


def _of_folders(seen: Sequence[SignMatch], log: Log) -> Particulars:
    particulars = _of_rendezvous(seen, log)
    return particulars if particulars.summary else _of_a_cache(seen)


@check("folder-not-writable", severity=FAIL, owner=Owner.USER, log=LogTraits(particulars=_of_folders))
def folder_not_writable(disks: Disks) -> Iterator[Finding]:
    """A folder that training writes to may not be written to.

    ## What breaks
    "Permission denied" or "Read-only file system", as torchrun makes its folder for logs, at the first checkpoint, or where
    torch.compile writes its cache.

    ## Why
    The folder belongs to somebody else, or its file system is mounted read-only: a shared data set, a container's image, or a
    disk that the kernel made read-only after errors. "cannot be opened" from torch.save may also mean that there is no such folder.

    ## Fix
    Write somewhere else: start in a folder of your own, or set `TMPDIR`, `TRITON_CACHE_DIR`, or your program's output folder.
    """
    requires(disks.folders, "no file system could be asked")
    for disk in disks.folders:
        if not disk.writable and disk.purpose in ("working folder", "temporary files", "Triton cache"):
            yield _not_writable(disk, disks)


def _of_an_io_error(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Tell of a file system that answers, with an error."""
    if not any("failed" in match.words for match in seen):
        return Particulars()
    file = word(seen, "file")
    read = shlex.quote(file) if file else "FILE"
    return Particulars(
        f"A file system answers with an error as it is read or written{f': {file}' if file else ''}",
        (
            Fix("See whether that file can be read now, on that host", (f"cat {read} > /dev/null",)),
            Fix(
                "See what the kernel says of it, and hand it to the administrator",
                ("sudo dmesg -T | grep -iE 'i/o error|nfs|lustre|ceph|beegfs|fuse|ext4|xfs|nvme' | tail -20",),
            ),
            Fix("Copy the data to another disk, and let the job read it there"),
        ),
        "The disk has a defect, or the server of that file system, or the way to it, failed. The script is not at fault; a program that prints to a terminal that is gone says it, too.",
    )


@check("disk-unanswered", severity=FAIL, owner=Owner.NODE, log=LogTraits(particulars=_of_an_io_error))
def disk_unanswered(disks: Disks) -> Iterator[Finding]:
    """A file system does not answer.

    ## What breaks
    Whatever touches it hangs and can't even be killed: an import, a dataset, a checkpoint, the shell's prompt. The other
    ranks wait for the one that hangs until the timeout.

    ## Why
    Its server (NFS, Lustre, a FUSE process) is gone or overloaded, and the kernel waits for it forever.

    ## Fix
    Tell the administrator, with the mount point. Until then work in a folder on another file system.
    """
    for path in disks.unanswered:
        yield Finding.of(
            f"The file system of {path} doesn't answer",
            told(disks, "unanswered", f"no answer about {path}"),
            Fix(
                "Work in a folder on another file system, and see from time to time whether this one answers",
                (f"timeout -s KILL 5 stat -f {shlex.quote(path)}",),
            ),
            Fix(
                "Tell the administrator which server it is; these are the network file systems here",
                ("grep -E ' (nfs|lustre|fuse|ceph|beegfs|gpfs)' /proc/mounts",),
            ),
        )


@check("working-folder-gone", severity=FAIL, owner=Owner.USER)
def working_folder_gone(disks: Disks) -> Iterator[Finding]:
    """The folder that this was started in was deleted.

    ## What breaks
    `import torch` can end without a traceback ("Intel oneMKL FATAL ERROR: Cannot load"), Python says "FileNotFoundError"
    at `os.getcwd()`, and no relative path can be opened.

    ## Why
    Something removed the folder while a shell was in it: a job's scratch folder was cleaned up, or a checkout was made
    again. A new folder of the same name is another folder: a shell in the old one doesn't notice it.

    ## Fix
    `cd` to a folder that exists, even if its name is the same (`cd "$PWD"`), and start again.
    """
    if not disks.removed:
        return
    yield Finding.of(
        f"The working folder was deleted: {disks.removed}",
        told(disks, "removed", f"{disks.removed} was deleted"),
        Fix("If there is a new folder of that name, enter it", ('cd "$PWD"',)),
        _elsewhere(disks),
    )


def _elsewhere(disks: Disks) -> Fix:
    homes = [folder for folder in disks.folders if folder.purpose == "home"]
    if disks.unanswered or any(not home.writable for home in homes):
        return Fix("Otherwise go to a folder that exists and that you may write to")
    return Fix("Otherwise go to a folder that exists", ("cd ~",))
