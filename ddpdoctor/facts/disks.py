"""The file systems that training writes to."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddpdoctor.base.unknown import Facts, Source


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """One folder that matters and the file system it lies on. Sizes in bytes."""

    purpose: str
    """"working folder", "Python's environment", "temporary files", "home", "torch cache", "Triton cache", "Hugging Face cache"."""
    path: str
    """The folder asked for; where it doesn't exist yet, the figures are those of its nearest existing parent."""
    file_system: str = ""
    """"ext4", "nfs4", "overlay" ...; "" where the mount table doesn't say."""
    mount: str = ""
    """Where that file system is mounted."""
    total: int = 0
    free: int = 0
    """What this user may still write."""
    inodes_total: int = 0
    """0 where the file system doesn't count them (btrfs)."""
    inodes_free: int = 0
    writable: bool = True
    read_only_mount: bool = False
    """Mounted read-only, which no permission can change."""


class Disks(Facts, frozen=True, kw_only=True):
    """One entry for each folder, even where several share a file system."""

    folders: Annotated[tuple[Disk, ...], Source("statvfs, mount table")]
    unanswered: Annotated[tuple[str, ...], Source("statvfs with a deadline")] = ()
    """Folders whose file system did not answer in time (a hanging NFS server)."""
    removed: Annotated[str, Source("getcwd, /proc/self/cwd")] = ""
    """The working folder, where it was deleted under the process; then it isn't among `folders`."""
