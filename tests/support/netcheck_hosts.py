"""Runs `ddpdoctor netcheck` on all hosts of a network of namespaces at once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.support.command import command, plain_environ
from tests.support.namespaces import Host

MASTER = "10.77.0.11"
"""The first host of `namespaces.network`."""


NAMED_WITHIN = 15.0
"""Seconds from the last join: any single fault, as the report itself counts."""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """How netcheck ended on one host. `seconds` from the start of all."""

    host: str
    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def report(self) -> dict[str, Any]:
        """Its JSON."""
        assert self.stdout, f"{self.host} printed no report: {self.stderr}"
        found: dict[str, Any] = json.loads(self.stdout)
        return found

    @property
    def slugs(self) -> set[str]:
        """What was found, informative findings apart."""
        return {finding["slug"] for finding in self.report["findings"] if finding["severity"] != "info"}

    def findings(self, slug: str) -> list[dict[str, Any]]:
        return [finding for finding in self.report["findings"] if finding["slug"] == slug]

    def nodes(self, slug: str) -> list[str]:
        """The nodes on which it was found."""
        return [finding.get("node", self.report["host"]) for finding in self.findings(slug)]

    def commands(self, slug: str) -> list[str]:
        """The commands of all its fixes."""
        return [command for finding in self.findings(slug) for fix in finding["fixes"] for command in fix["commands"]]


class Running:
    """netcheck, or another command, on one host, under way."""

    def __init__(
        self, host: Host, arguments: Sequence[str], environ: Mapping[str, str], name: str = "netcheck"
    ) -> None:
        self.host = host
        self.name = name
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            host.command(*command(name, *arguments)),
            env=plain_environ() | dict(environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_line(self, words: str) -> None:
        """Waits until a line with these words stands on its standard error, up to which `end` no longer has it."""
        assert self.process.stderr is not None
        assert any(words in line for line in self.process.stderr), f"{self.name} ended without {words!r}"

    def end(self, seconds: float = 60) -> Ran:
        """Waits for its end; killed where it takes longer, which fails the test."""
        try:
            stdout, stderr = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            stdout, stderr = self.process.communicate()
            raise AssertionError(f"{self.name} hangs on {self.host.hostname}: {stderr}") from None
        return Ran(
            host=self.host.hostname,
            code=self.process.returncode,
            stdout=stdout,
            stderr=stderr,
            seconds=time.monotonic() - self.began,
        )


def start(host: Host, *arguments: str, environ: Mapping[str, str] | None = None) -> Running:
    """Starts `ddpdoctor netcheck ARGUMENTS` there."""
    return Running(host, arguments, environ or {})


def netcheck(
    hosts: Sequence[Host],
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    each: Mapping[str, Mapping[str, str]] | None = None,
    ranks: bool = True,
    seconds: float = 60,
) -> list[Ran]:
    """Runs it on all of them: `--json --quick` and, unless `arguments` name another, the first host as master.

    each: settings of single hosts, by hostname. ranks: give --node-rank, in the order of the hosts.
    """
    given = [] if "--master-addr" in arguments else ["--master-addr", MASTER]
    given += [] if "--nnodes" in arguments else ["--nnodes", str(len(hosts))]
    given += [] if "--wait" in arguments else ["--wait", "10"]
    running = [
        start(
            host,
            "--json",
            *(() if "--full" in arguments else ("--quick",)),
            *given,
            *(("--node-rank", str(rank)) if ranks else ()),
            *(argument for argument in arguments if argument != "--full"),
            environ=dict(environ or {}) | dict((each or {}).get(host.hostname, {})),
        )
        for rank, host in enumerate(hosts)
    ]
    return [one.end(seconds) for one in running]


def carry_out(host: Host, commands: Sequence[str], shim: Path) -> None:
    """Runs what a fix prints, word for word, on that host; `shim` is what `sudo_shim` made."""
    environ = dict(os.environ) | {"PATH": f"{shim}:{os.environ['PATH']}"}
    for line in commands:
        host.run("sh", "-c", line, environ=environ)


def mend(
    ran: Ran, slug: str, hosts: Sequence[Host], shim: Path, each: Mapping[str, Mapping[str, str]] | None = None
) -> dict[str, dict[str, str]]:
    """Carries out the first fix of every finding of that slug, word for word, on the hosts that the fix names, else on the
    finding's own; `shim` is what `sudo_shim` made.

    each: the hosts' settings, by hostname. Gives those that their shells have then, for the next run.
    """
    settings = {host.hostname: dict((each or {}).get(host.hostname, {})) for host in hosts}
    findings = ran.findings(slug)
    assert findings, f"{ran.host} found no {slug}"
    for finding in findings:
        first = finding["fixes"][0]
        for host in _meant(first["text"], finding.get("node", ran.host), hosts):
            settings[host.hostname] = _in_a_shell(host, first["commands"], settings[host.hostname], shim)
    return settings


def _meant(text: str, node: str, hosts: Sequence[Host]) -> list[Host]:
    """Where a fix is to be carried out that begins with "On n1 and n2: ..." or "On all nodes, ..."; else on its node."""
    place = re.match(r"On ([^:]+?)[:,] ", text)
    words = set(re.findall(r"[\w.-]+", place[1])) if place else set()
    if words == {"all", "nodes"}:
        return list(hosts)
    return [host for host in hosts if host.hostname in words] or [host for host in hosts if host.hostname == node]


def _in_a_shell(host: Host, commands: Sequence[str], settings: Mapping[str, str], shim: Path) -> dict[str, str]:
    """The settings of a shell there that had those, once it has carried out the commands."""
    environ = {"PATH": f"{shim}:{os.environ['PATH']}", "HOME": str(shim)} | dict(settings)
    done = host.run("sh", "-ec", "\n".join([*commands, "printf '\\0'; env -0"]), environ=environ)
    lines = [one.partition("=") for one in done.stdout.split("\0")[1:] if "=" in one]
    return {name: value for name, _, value in lines if name not in ("PATH", "HOME", "PWD", "OLDPWD", "SHLVL", "_")}


def sudo_shim(folder: Path) -> Path:
    """A folder for PATH whose `sudo` runs its arguments: the tests are root already."""
    path = folder / "sudo"
    path.write_text('#!/bin/sh\nexec "$@"\n')
    path.chmod(0o755)
    return folder
