"""From what is wished to new pickles, each proven to say what the old one said but for what was wished."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ddpdoctor.checkpoints.comparison import Expected, same
from ddpdoctor.checkpoints.contents import Part
from ddpdoctor.checkpoints.errors import Refused
from ddpdoctor.checkpoints.locations import moves, pinned
from ddpdoctor.checkpoints.machine import scan
from ddpdoctor.checkpoints.prefixes import strip
from ddpdoctor.checkpoints.splices import apply, fit, reword


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done to a checkpoint.

    to: the device for everything that is pinned to another than the CPU.
    strip_prefixes: taken from the keys one after the other. keep, drop: keys of the top level.
    params_only: the model's state dict and nothing else. to_safetensors: in that format.
    """

    to: str = "cpu"
    strip_prefixes: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    params_only: bool = False
    to_safetensors: bool = False

    @property
    def cuts(self) -> bool:
        """Whether something is to be taken out of the file, which then has to be written anew."""
        return bool(self.keep or self.drop or self.params_only)

    def moves(self, device: str) -> bool:
        """Whether what is pinned to this device is to go elsewhere."""
        return pinned(device) and device != self.to


class Edited(NamedTuple):
    """A part as it is to be. `renamed`: keys that lost their prefix."""

    part: Part
    data: bytes
    renamed: int

    @property
    def changed(self) -> bool:
        return self.data != self.part.data


def edit(part: Part, wishes: Wishes) -> Edited:
    """Moves the pins and strips the prefixes. The result is as long as the original wherever that can be.

    Raises:
        Refused: a prefix can't be stripped, or the result doesn't say what it should.
    """
    data, program = part.data, part.program
    found = moves(data, program, wishes.to, wishes.moves)
    renamings = strip(program, wishes.strip_prefixes) if wishes.strip_prefixes else []
    if not found and not renamings:
        return Edited(part, data, 0)
    wordings = [*found.wordings, *renamings]
    edited = apply(data, [*reword(data, wordings), *found.splices], program.frames)
    fitted = fit(edited, len(data), scan(edited).frames) or edited
    expected = Expected({one.position: one.new for one in wordings}, found.devices)
    result = scan(fitted)
    if result.end != len(fitted) or not same(program, data, result, fitted, expected):
        raise Refused("Editing its pickle did not come out right, which is a bug in ddpdoctor. Nothing was changed")
    return Edited(part, fitted, sum(one.new != one.text.value for one in renamings))
