"""Pickles that torch.save didn't write: torch.load can't read them."""

from __future__ import annotations

import io
import re
from typing import BinaryIO

import msgspec

from ddpdoctor.checkpoints.kinds.file_head import FileHead, Recognised, recognised
from ddpdoctor.facts.remedies import remedy

_BINARY = re.compile(rb"\x80[\x02-\x05][\x95}\](\x8c\x8a\x8b\x8fc)J-NGUXC\x88\x89BT]")
_TEXT = re.compile(
    rb"(?:\(dp?\d*\n|\(lp?\d*\n|\(i[A-Za-z_][\w.]*\n\w+\n|\(?c[A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n|\}q\x00|\]q\x00)"
)
"""Protocols 0 and 1: a dict, a list, or a class by name."""
_ZLIB = re.compile(rb"x[\x01\x5e\x9c\xda]")
_PEEK_BYTES = 1 << 20
_MAX_INFLATED_BYTES = 1 << 26


def recognise_pickle(glance: FileHead) -> Recognised | None:
    """Recognise a pickle; None if it isn't one."""
    if _ZLIB.match(glance.head) and _inflated(glance.head, 16):
        data = _inflated(glance.read(0, _MAX_INFLATED_BYTES), _MAX_INFLATED_BYTES)
        return _judged(recognised("pickle/zlib"), io.BytesIO(data))
    if not (_BINARY.match(glance.head) or _TEXT.match(glance.head)):
        return None
    front = glance.read(0, _PEEK_BYTES)
    if b"joblib.numpy_pickle" in front:
        found = recognised("pickle/joblib")
    elif b"_load_from_bytes" in front or b"torch._utils" in front:
        # By pickle.dump each storage is a small torch.save of its own, and goes back to its device.
        found = recognised("pickle/tensors", remedy("resave-pickle", glance.path, f"{glance.path.stem}.resaved.pt"))
    else:
        found = recognised("pickle")
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
    """Add what the pickle names; give no word on how to load it where one of these is dangerous."""
    from ddpdoctor.checkpoints.pickle_globals import is_dangerous
    from ddpdoctor.checkpoints.pickles.named_globals import named_in
    from ddpdoctor.checkpoints.weights_only import DO_NOT_LOAD

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
