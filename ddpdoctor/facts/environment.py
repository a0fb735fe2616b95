"""Settings: environment variables and NCCL's configuration files. Secrets are taken out before they get here."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddpdoctor.base.unknown import Facts, Maybe, Source, Unknown


class Setting(msgspec.Struct, frozen=True):
    """One variable; `origin` is "environment" or the path of the configuration file that sets it."""

    name: str
    value: str
    origin: str = "environment"


class UnreadableFile(msgspec.Struct, frozen=True):
    """A configuration file of NCCL's that is there, or was asked for, and can't be read."""

    path: str
    reason: str
    """"Permission denied", "No such file or directory", "not a text file" ..."""


class IgnoredLine(msgspec.Struct, frozen=True):
    """A line of such a file that NCCL doesn't take as its writer meant it. `number` counts from 1."""

    path: str
    number: int
    text: str
    why: str
    """"no =", "name with spaces or export", "quotes are part of the value", "set too late for torch"."""


class Environment(Facts, frozen=True, kw_only=True):
    """The variables that matter to training; where a file and the environment both set one, both stand here, the winner first."""

    settings: Annotated[tuple[Setting, ...], Source("environment, NCCL's configuration files")]
    configuration_files: Annotated[Maybe[tuple[str, ...]], Source("NCCL_CONF_FILE, ~/.nccl.conf, /etc/nccl.conf")] = ()
    unreadable_files: Annotated[tuple[UnreadableFile, ...], Source("NCCL's configuration files")] = ()
    ignored_lines: Annotated[tuple[IgnoredLine, ...], Source("NCCL's configuration files")] = ()
    undecodable: Annotated[tuple[str, ...], Source("environment")] = ()
    """Names whose name or value holds bytes that aren't UTF-8; each such byte is shown as U+FFFD."""
    file_init: Annotated[
        Maybe[tuple[tuple[str, int, str], ...]], Source("stat of file:// addresses in the settings")
    ] = ()
    """(path, size in bytes, file system) of each file:// rendezvous file that exists already."""

    def get(self, name: str, default: str = "") -> str:
        """The value that counts, or `default` where nothing sets it."""
        return next((setting.value for setting in self.settings if setting.name == name), default)

    def setting(self, name: str) -> Setting | None:
        """The setting that counts, or None."""
        return next((setting for setting in self.settings if setting.name == name), None)

    def __contains__(self, name: object) -> bool:
        return any(setting.name == name for setting in self.settings)

    @property
    def effective(self) -> tuple[Setting, ...]:
        """One setting for each name: the one that counts."""
        winners: dict[str, Setting] = {}
        for setting in self.settings:
            winners.setdefault(setting.name, setting)
        return tuple(winners.values())


def value_of(environment: Maybe[Environment], name: str) -> str:
    """What a variable is set to; "" where it isn't set, or the environment isn't known."""
    return "" if isinstance(environment, Unknown) else environment.get(name)
