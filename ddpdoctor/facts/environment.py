"""Settings: environment variables and NCCL's configuration files. Secrets are taken out before they get here."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddpdoctor.facts.base import Facts, Maybe, Source


class Setting(msgspec.Struct, frozen=True):
    """One variable; `origin` is "environment" or the path of the configuration file that sets it."""

    name: str
    value: str
    origin: str = "environment"


class Environment(Facts, frozen=True, kw_only=True):
    """The variables that matter to training; where a file and the environment both set one, both stand here, the winner first."""

    settings: Annotated[tuple[Setting, ...], Source("environment, NCCL's configuration files")]
    configuration_files: Annotated[Maybe[tuple[str, ...]], Source("NCCL_CONF_FILE, ~/.nccl.conf, /etc/nccl.conf")] = ()
    unreadable_files: Annotated[tuple[str, ...], Source("NCCL's configuration files")] = ()
    file_init: Annotated[
        Maybe[tuple[tuple[str, int, str], ...]], Source("stat of file:// addresses in the settings")
    ] = ()
    """(path, size in bytes, file system) of each file:// rendezvous file that exists already."""

    def get(self, name: str, default: str = "") -> str:
        """The value that counts, or `default` where nothing sets it."""
        return next((one.value for one in self.settings if one.name == name), default)

    def __contains__(self, name: object) -> bool:
        return any(one.name == name for one in self.settings)
