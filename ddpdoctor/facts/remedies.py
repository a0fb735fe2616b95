"""Remedies for a file that is no checkpoint, as data: no snapshot holds a command, it is made where it is shown."""

from __future__ import annotations

import shlex
from typing import Final

import msgspec

from ddpdoctor.base.shell import quoted

_IN_A_SHELL: Final = {
    "age": "age --decrypt --identity key.txt --output {1} {0}",
    "ansible-vault": "ansible-vault decrypt --output {1} {0}",
    "consolidate-fabric": "python -m lightning.fabric.utilities.consolidate_checkpoint {}",
    "consolidate-pytorch": "python -m lightning.pytorch.utilities.consolidate_checkpoint {}",
    "convert-dcp": "python -m torch.distributed.checkpoint.format_utils dcp_to_torch {} {}",
    "dvc-pull": "dvc pull {}",
    "fix": "ddpdoctor fix-checkpoint {}",
    "git-annex-get": "git -C {} annex get {}",
    "git-crypt": "git-crypt unlock",
    "gpg": "gpg --output {1} --decrypt {0}",
    "lfs-install": "git lfs install",
    "lfs-pull": "git -C {} lfs pull --include {}",
    "list": "ls -ld {}",
    "openssl": "openssl enc -d -aes-256-cbc -pbkdf2 -in {} -out {}",
    "remove": "rm {}",
    "undo": "ddpdoctor fix-checkpoint --undo {}",
    "7z": "7z x {}",
    "tar": "tar -xf {}",
    "unrar": "unrar x {}",
    "unzip": "unzip {}",
    "zero-to-fp32": "cd {} && python zero_to_fp32.py . consolidated",
    "zero-to-fp32-tag": "cd {} && python zero_to_fp32.py . consolidated --tag {}",
    "zip": "cd {} && zip -0 -D -r {} {}",
    **{tool: f"{tool} -dc {{}} > {{}}" for tool in ("gzip", "xz", "bzip2", "zstd", "lz4", "lzip")},
}
_IN_PYTHON: Final = {
    "resave-tar": "import torch; torch.save(torch.load({!r}, map_location='cpu', weights_only=False), {!r})",
    "resave-pickle": "import pickle, torch; torch.save(pickle.load(open({!r}, 'rb')), {!r})",
}


class Remedy(msgspec.Struct, frozen=True):
    """A command by its name, and the paths in it."""

    name: str
    paths: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """For a shell; "" where the name or the number of paths is none that is known here, as in a newer or forged snapshot."""
        try:
            if self.name in _IN_PYTHON:
                return f"python -c {shlex.quote(_IN_PYTHON[self.name].format(*self.paths))}"
            return _IN_A_SHELL.get(self.name, "").format(*map(quoted, self.paths))
        except IndexError:
            return ""


def remedy(name: str, *paths: object) -> Remedy:
    """The remedy with that name, and paths of any kind."""
    return Remedy(name, tuple(map(str, paths)))


def commands_of(remedies: tuple[Remedy, ...]) -> tuple[str, ...]:
    """The commands of those that are known."""
    return tuple(command for remedy in remedies if (command := remedy.command))
