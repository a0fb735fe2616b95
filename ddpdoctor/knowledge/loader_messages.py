"""What the dynamic loader says of a shared object that it can't load: what each message means, and what to do. Pure.

It puts the file before the message, and the system's word on the error, if there is one, behind it. Whatever the script does, it is the
installation or the host that is at fault.
"""

from __future__ import annotations

import re
from shlex import quote
from typing import Final, NamedTuple

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.lazy_patterns import compile_lazily


class FileRemedy(NamedTuple):
    """What to do, and commands in which {file} stands for the shared object."""

    text: str
    commands: tuple[str, ...] = ()


class LoaderMessage(NamedTuple):
    """A message of the loader's.

    Args:
        patterns: of the words behind the file and a colon, any of which may stand there.
        means: what is wrong with the file, as a sentence that goes on behind its name.
        cause: why that comes about.
        remedies: what to do.
        of_a_path: only where the file is named with its folder.
    """

    patterns: tuple[str, ...]
    means: str
    cause: str
    remedies: tuple[FileRemedy, ...]
    of_a_path: bool = False

    @property
    def built_again(self) -> bool:
        """Whether another build of the package may mend it."""
        return _BUILD_AGAIN in self.remedies


class LoaderFault(NamedTuple):
    """A message of the loader's on one shared object."""

    file: str
    message: LoaderMessage

    @property
    def summary(self) -> str:
        """What is wrong, in a sentence."""
        return f"{self.file.rpartition('/')[2]} {self.message.means}"

    @property
    def fixes(self) -> tuple[Fix, ...]:
        """What to do, in commands on this very file."""
        file = quote(self.file)
        return tuple(
            Fix(remedy.text, tuple(command.format(file=file) for command in remedy.commands))
            for remedy in self.message.remedies
        )


_BUILD_AGAIN: Final = FileRemedy(
    "Install the package that it belongs to again in this environment, without a wheel from pip's cache; what was built from source, "
    "build again there (pip install --no-build-isolation --no-cache-dir)"
)
MESSAGES: Final = (
    LoaderMessage(
        ("failed to map segment from shared object: Cannot allocate memory",),
        "doesn't fit into the memory that the process may have",
        "The room for addresses is limited (ulimit -v, a batch system's limit on virtual memory), or the host has no memory left.",
        (FileRemedy("See the limit, and what is left", ("ulimit -v", "free -h")), FileRemedy("Raise it", ("ulimit -v unlimited",))),
    ),
    LoaderMessage(
        ("failed to map segment from shared object",),
        "may not be loaded as code: its file system is mounted noexec, or the file is damaged",
        "From a file system that is mounted with noexec, as other disks, network shares and /tmp often are, nothing may be run, compiled "
        "parts of packages neither. A file that was cut off, and a security policy (SELinux), lead to the same words.",
        (
            FileRemedy("See on that host, in the job's folder, how it is mounted", ("findmnt -T {file} -o TARGET,FSTYPE,OPTIONS", "ls -l {file}")),
            FileRemedy(
                "If it says noexec: move the environment, or the source tree with what was built in it, to a file system without that, and "
                "build it again there; or have it mounted with exec",
                ('sudo mount -o remount,exec "$(findmnt -T {file} -no TARGET)"',),
            ),
            FileRemedy("If it doesn't, the file is damaged: build or install it again"),
        ),
    ),
    LoaderMessage(
        ("cannot allocate memory in static TLS block",),
        "was loaded too late: the static TLS block is used up",
        "For variables of each thread the loader sets a small block aside as the process starts (TLS is thread-local storage). Libraries like "
        "libgomp need a place in it; those that were loaded before have taken it all. It depends on the order of imports, and happens mostly "
        "on aarch64.",
        (
            FileRemedy("Let this library be loaded before all others", ('export LD_PRELOAD={file}"${{LD_PRELOAD:+:$LD_PRELOAD}}"',)),
            FileRemedy("Or import the package that brings it first of all, at the top of the script"),
            FileRemedy("Or, with glibc 2.32 and later, set more aside", ("export GLIBC_TUNABLES=glibc.rtld.optional_static_tls=16384",)),
        ),
    ),
    LoaderMessage(
        ("cannot open shared object file: Permission denied",),
        "may not be read by this user",
        "The file is there, but it, or a folder above it, is another user's, and closed to this one.",
        (FileRemedy("See which of them is closed", ("namei -l {file}",)), FileRemedy("Open it (chmod), or install into an environment of your own")),
    ),
    LoaderMessage(
        ("cannot open shared object file",),
        "isn't there: this compiled part was never built, or not installed whole",
        "The package looks for its own library at that place. It comes with a build for this system, GPU (CUDA or ROCm) and Python, and such a "
        "build wasn't installed, or was left out as it was built from source. A file that is there may be for another processor.",
        (FileRemedy("See what is there instead", ('ls -l "$(dirname {file})"',)), _BUILD_AGAIN),
        of_a_path=True,
    ),
    LoaderMessage(
        ("cannot open shared object file",),
        "is found nowhere on that host: the library isn't installed, or not where the loader looks",
        "What was to be loaded is, or needs, a library that neither the system nor the environment has, in that very version; or its folder is "
        "not among those that the loader searches.",
        (
            FileRemedy("See whether the system knows it, or another version of it", ('ldconfig -p | grep "$(echo {file} | cut -d. -f1)"',)),
            FileRemedy(
                "See which package provides it, by apt or by dnf, and install that; or take it from conda",
                ("apt-file search {file}", "dnf provides '*/'{file}"),
            ),
            FileRemedy("If it lies in a folder of its own, name that", ('export LD_LIBRARY_PATH="FOLDER:$LD_LIBRARY_PATH"',)),
        ),
    ),
    LoaderMessage(
        ("file too short", "invalid ELF header", "cannot read file data", "ELF load command ", "ELF file's ", "object file has no "),
        "is no whole library: the file is damaged, or something else has its name",
        "It wasn't written to its end (a full disk, a copy or a download that broke off), it is only a placeholder (Git LFS), or it is a file of "
        "another system.",
        (FileRemedy("See what it is", ("ls -l {file}", "file {file}", "df -h {file}")), _BUILD_AGAIN),
    ),
    LoaderMessage(
        ("wrong ELF class",),
        "is for another kind of processor: 32 and 64 bits are mixed",
        "The library was built for another machine than the Python that loads it.",
        (FileRemedy("See what both are", ("file {file}", "uname -m")), _BUILD_AGAIN),
    ),
    LoaderMessage(
        ("cannot enable executable stack",),
        "asks for a stack that code may be run from, which this host refuses",
        "glibc 2.41 and later, and security policies, refuse that mark; older builds of some libraries carry it without need.",
        (
            FileRemedy("Install a newer release of the package that it belongs to"),
            FileRemedy("Or take the mark away", ("patchelf --clear-execstack {file}",)),
            FileRemedy("Or let glibc allow it, if its release knows that", ("export GLIBC_TUNABLES=glibc.rtld.execstack=2",)),
        ),
    ),
    LoaderMessage(
        (
            "cannot restore segment prot", "cannot apply additional memory protection", "cannot make segment writable",
            "cannot change memory protections",
        ),
        "may not change its own memory as it is loaded: a security policy forbids it, or there is no memory",
        "SELinux, or another hardening of the host, refuses what this library asks for.",
        (
            FileRemedy("See whether SELinux is on, and what it has refused", ("getenforce", "sudo ausearch -m avc -ts recent")),
            FileRemedy("Let the administrator allow it, or label the file for it", ("sudo chcon -t textrel_shlib_t {file}",)),
        ),
    ),
    LoaderMessage(
        ("undefined symbol: ", r"symbol \S+,? version \S+ not defined in file "),
        "asks for a function that no library here has: it was built against another release",
        "A compiled file and the libraries that it uses belong together. One of them was changed since, another one is found first "
        "(LD_LIBRARY_PATH, conda), or it was linked without a library that it needs.",
        (FileRemedy("See which libraries it gets, and from where", ("ldd {file}",)), _BUILD_AGAIN),
    ),
    LoaderMessage(
        (r"version [`']GLIBC_2\.\d+' not found",),
        "is older than what was built against it, and comes with the system (glibc)",
        "What needs it was built on a newer system than the one that it runs on. No package brings another glibc along.",
        (
            FileRemedy("See which glibc is here", ("ldd --version | head -n 1",)),
            FileRemedy("Install a release that was built for older systems, build it here, or run in a container with a newer system"),
        ),
    ),
    LoaderMessage(
        (r"version [`'][^']{1,200}' not found",),
        "is older than what was built against it",
        "The loader finds a library of that name first which lacks the version that is asked for: conda's, the system's, or one on "
        "LD_LIBRARY_PATH.",
        (
            FileRemedy(
                "See which versions it has, and whether LD_LIBRARY_PATH puts it first",
                ("LC_ALL=C grep -aoE '[A-Z]+_[0-9.]+' {file} | sort -uV", "echo $LD_LIBRARY_PATH"),
            ),
            FileRemedy("Install a newer release of that library in the environment, or build what needs it here"),
        ),
    ),
)  # fmt: skip
"""The first that fits counts."""

_SAID: Final = compile_lazily(
    r"(?P<file>\.so(?:\.[\w.-]{1,60})?): (?P<words>"
    + "|".join(dict.fromkeys(pattern for message in MESSAGES for pattern in message.patterns))
    + ")"
)
_BEGIN_OF_PATH: Final = compile_lazily(r"(?<!\S)\.{0,2}/")
_BEFORE_A_NAME: Final = compile_lazily(r"[\s'\"`(]")


def loader_fault(text: str) -> LoaderFault | None:
    """Return what the loader says in a text of a shared object that it can't load; None if nothing."""
    found = _SAID.search(text) if ".so" in text else None
    if found is None:
        return None
    file, said = _last_file(text[: found.end("file")]), text[found.start("words") :]
    fits = (message for message in MESSAGES if any(re.match(pattern, said) for pattern in message.patterns))
    message = next((one for one in fits if "/" in file or not one.of_a_path), None)
    return LoaderFault(file, message) if message else None


def _last_file(text: str) -> str:
    """The file that a text ends with; it may have spaces where a path begins with a slash or a dot."""
    clause = text.rpartition("\n")[2].rpartition(":")[2]
    begin = _BEGIN_OF_PATH.search(clause)
    return clause[begin.start() :] if begin else _BEFORE_A_NAME.split(clause)[-1]
