"""Contents of checkpoint files, read without unpickling them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddpdoctor.base.text import listed, plural
from ddpdoctor.base.unknown import Facts, Source
from ddpdoctor.facts.remedies import Remedy, commands_of

PICKLE = "the file's pickle, read without running it"


class Pins(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors that are to be restored on one device. bytes: of the storages, each counted once."""

    device: str
    """As in the file: cuda:3, cpu, mps."""
    tensors: int
    bytes: int


class GlobalName(msgspec.Struct, frozen=True, kw_only=True):
    """A class or function outside torch's own short list, which loading the file would import and mostly call."""

    name: str
    """argparse.Namespace"""
    meaning: str = ""
    """What it is, where we know: "runs a command in a shell"."""
    dangerous: bool = False
    """Known to run commands or code, or to reach files or the network. False says nothing."""


class KeyPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """A state dict of which every key begins with the same name: a wrapper's, or that under which something else holds the model."""

    where: str
    """Path of the dict: "model", or "" for the file's top level."""
    prefix: str
    """module. or _orig_mod. ..., model., module.net. ..."""
    keys: int
    may_be_models: bool = False
    """It may as well be the model's own: only who knows its keys can tell."""


class DeviceText(msgspec.Struct, frozen=True, kw_only=True):
    """A string or torch.device that names a device and isn't a tensor's: the user's own code will read it."""

    where: str
    """Path: hyper_parameters.use_device"""
    device: str


class RankFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files of which every rank wrote its own, beside or in what was named. world_size: as many ranks as wrote them."""

    pattern: str
    """rng_state_*.pth"""
    world_size: int
    missing: tuple[int, ...] = ()
    """Ranks between 0 and the highest without a file."""


class CheckpointFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file or folder.

    kind: "zip", "legacy", "torchscript" are read to the ground; any other names what it is ("safetensors", "dcp-folder" ...).
    problem: why it could not be read, "" where it could; damaged: it is truncated or corrupt; advice, remedies: what to do.
    """

    path: str
    kind: str
    called: str
    """The kind in plain words: "a PyTorch checkpoint (zip)", "a Git LFS pointer"."""
    size: int
    """Bytes; of a folder, 0."""
    problem: str = ""
    damaged: bool = False
    advice: str = ""
    remedies: tuple[Remedy, ...] = ()
    pins: tuple[Pins, ...] = ()
    globals: tuple[GlobalName, ...] = ()
    weights_only_blockers: tuple[str, ...] = ()
    """Globals and opcodes at which torch.load(weights_only=True) stops."""
    prefixes: tuple[KeyPrefix, ...] = ()
    whole_module: str = ""
    """The class, if the file holds a pickled module and not its state dict."""
    rng_states: tuple[str, ...] = ()
    """Paths of random number generators' states."""
    device_texts: tuple[DeviceText, ...] = ()
    code_devices: tuple[str, ...] = ()
    """TorchScript only: device literals in the code, "code/__torch__.py:12: cuda:0"."""
    rank_files: tuple[RankFiles, ...] = ()
    loader: str = ""
    """The framework that loads it at a resume: "Lightning", "accelerate", "transformers' Trainer"; "nobody", or "" where nothing tells."""

    @property
    def commands(self) -> tuple[str, ...]:
        """Commands to type, made of the remedies."""
        return commands_of(self.remedies)

    @property
    def pinned(self) -> tuple[Pins, ...]:
        """The pins to anything but the CPU (and meta, which holds no data)."""
        return tuple(pin for pin in self.pins if pin.device not in ("cpu", "meta"))


class CheckpointFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder in which a framework has put all that it needs to resume. None where nothing tells."""

    path: str
    framework: str
    """"transformers' Trainer", "accelerate", "Lightning"; "Hugging Face" for a model alone."""
    step: int | None = None
    world_size: int | None = None
    """As many ranks as wrote their random numbers."""
    holds: tuple[str, ...] = ()
    """"model", "optimizer", "scheduler", "random numbers" ..."""

    @property
    def called(self) -> str:
        """ "a checkpoint of accelerate, written by 2 ranks; holds model and optimizer"."""
        step = f", step {self.step}" if self.step is not None else ""
        ranks = f", written by {plural(self.world_size, 'rank')}" if self.world_size else ""
        return (
            f"a checkpoint of {self.framework}{step}{ranks}; it holds {listed(self.holds, 9) or 'nothing that we know'}"
        )


class Checkpoints(Facts, frozen=True):
    """The files named with --checkpoint; none, if the option wasn't given."""

    files: Annotated[tuple[CheckpointFile, ...], Source(PICKLE)]
    folders: Annotated[tuple[CheckpointFolder, ...], Source("names in the folder, trainer_state.json")] = ()
    """Those that are a framework's, among the named ones and directly in these."""
