"""Pickles that torch.save didn't write: torch.load can't read them."""

from __future__ import annotations

import io
import re
from typing import BinaryIO

import msgspec

from ddpdoctor.checkpoints.kinds.recognised import FileHead, Recognised
from ddpdoctor.facts.remedies import remedy

_BINARY = re.compile(rb"\x80[\x02-\x05][\x95}\](\x8c\x8a\x8b\x8fc)J-NGUXC\x88\x89BT]")
_TEXT = re.compile(
    rb"(?:\(dp?\d*\n|\(lp?\d*\n|\(i[A-Za-z_][\w.]*\n\w+\n|\(?c[A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n|\}q\x00|\]q\x00)"
)
"""Protocols 0 and 1: a dict, a list, or a class by name."""
_ZLIB = re.compile(rb"x[\x01\x5e\x9c\xda]")
_PEEK = 1 << 20
_MOST_INFLATED = 1 << 26


def recognise_pickle(glance: FileHead) -> Recognised | None:
    if _ZLIB.match(glance.head) and _inflated(glance.head, 16):
        found = _pickle(
            "a zlib-compressed file, as joblib writes them",
            "Compressed with zlib as a whole, probably by joblib.dump, which torch.load can't read",
            "joblib",
        )
        return _judged(found, io.BytesIO(_inflated(glance.read(0, _MOST_INFLATED), _MOST_INFLATED)))
    if not (_BINARY.match(glance.head) or _TEXT.match(glance.head)):
        return None
    front = glance.read(0, _PEEK)
    if b"joblib.numpy_pickle" in front:
        found = _pickle(
            "a pickle written by joblib", "A pickle written by joblib.dump, which torch.load can't read", "joblib"
        )
    elif b"_load_from_bytes" in front or b"torch._utils" in front:
        found = _tensors(glance)
    else:
        found = _pickle(
            "a plain pickle", "A plain pickle, not written by torch.save: torch.load can't read it", "pickle"
        )
    with open(glance.fd, "rb", closefd=False) as file:
        file.seek(0)
        return _judged(found, file)


def _inflated(data: bytes, most: int) -> bytes:
    import zlib

    try:
        return zlib.decompressobj().decompress(data, most)
    except zlib.error:
        return b""


def _judged(found: Recognised, pickle: BinaryIO) -> Recognised:
    """With what the pickle names; without a word on how to load it where one of these is dangerous."""
    from ddpdoctor.checkpoints.loading import DO_NOT_LOAD
    from ddpdoctor.checkpoints.pickle_globals import is_dangerous
    from ddpdoctor.checkpoints.pickles.names import named_in

    named = named_in(pickle)
    # Behind what can be followed, an array's bytes may look like the name of anything.
    names = dict.fromkeys((*named.sure, *(name for name in named.perhaps if is_dangerous(name))))
    found = msgspec.structs.replace(found, names=tuple(names))
    if any(map(is_dangerous, names)):
        return msgspec.structs.replace(found, advice=DO_NOT_LOAD, remedies=())
    if not named.followed and "joblib" not in found.advice:
        advice = "It can't be followed to its end, so it is damaged or made to deceive: copy or download it again"
        return msgspec.structs.replace(found, advice=advice, remedies=())
    return found


def _pickle(called: str, problem: str, module: str) -> Recognised:
    return Recognised(
        kind="pickle",
        called=called,
        problem=problem,
        advice=f"Load it with {module}.load if you trust it, since that runs what the file says, and torch.save the state dict",
    )


def _tensors(glance: FileHead) -> Recognised:
    """pickle.dump of tensors: each storage is a small torch.save of its own, and goes back to its device."""
    return Recognised(
        kind="pickle",
        called="a pickle of tensors, not written by torch.save",
        problem="Tensors written by pickle.dump and not by torch.save: torch.load can't read them, and pickle.load knows no map_location",
        advice="If you trust it, since pickle.load runs what the file says: load it on a host with as many GPUs as it was saved on, and save it with torch.save",
        remedies=(remedy("resave-pickle", glance.path, f"{glance.path.stem}.resaved.pt"),),
    )
