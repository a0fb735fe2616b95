"""Editing pickles as options say; each new one is proven to say what the old one said but for what was asked for."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ddpdoctor.checkpoints.errors import Refused
from ddpdoctor.checkpoints.formats.opening import FilePart
from ddpdoctor.checkpoints.pickles.comparison import Expected, are_alike
from ddpdoctor.checkpoints.pickles.device_locations import Moves, moves, pinned
from ddpdoctor.checkpoints.pickles.key_prefixes import Renamings, strip
from ddpdoctor.checkpoints.pickles.machine import scan
from ddpdoctor.checkpoints.pickles.splices import apply, fit, reword


class EditOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The edits that a user asks for.

    to: the device for everything that is pinned to another than the CPU.
    strip_prefixes: taken from the keys one after the other. keep, drop: keys of the top level, or several with commas.
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


class Edit(NamedTuple):
    """The edits of one part; nothing of it has been done yet."""

    part: FilePart
    moves: Moves
    renamings: Renamings

    def __bool__(self) -> bool:
        return bool(self.moves or self.renamings)


def propose(part: FilePart, options: EditOptions) -> Edit:
    """The edits that the options take. Refused is raised if a prefix can't be stripped."""
    found = moves(part.data, part.program, options.to, options.moves)
    return Edit(part, found, strip(part.program, options.strip_prefixes))


def carry_out(edit: Edit) -> FilePart:
    """The part as it is to be, as long as the original wherever that can be.

    Raises:
        Refused: the result doesn't say what it should.
    """
    if not edit:
        return edit.part
    name, data, program = edit.part
    wordings = [*edit.moves.wordings, *edit.renamings.keys, *edit.renamings.modules]
    edited = apply(data, [*reword(data, wordings), *edit.moves.splices], program.frames)
    frames = scan(edited).frames if program.frames else ()
    fitted = fit(edited, len(data), frames) or edited
    expected = Expected({wording.position: wording.new for wording in wordings}, edit.moves.devices)
    result = scan(fitted)
    if result.end != len(fitted) or not are_alike(program, data, result, fitted, expected):
        raise Refused("Editing its pickle did not come out right, which is a bug in ddpdoctor. Nothing was changed")
    return FilePart(name, fitted, result)
