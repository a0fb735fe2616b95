"""Which binary format that isn't torch's a file has: by its first bytes, and by as much of its structure as makes that sure."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from ddpdoctor.base.text import human, listed
from ddpdoctor.checkpoints.kinds.protobuf_kinds import recognise_protobuf
from ddpdoctor.checkpoints.kinds.recognised import FileHead, Recognised, printable
from ddpdoctor.facts.remedies import remedy


def recognise_binary(glance: FileHead) -> Recognised | None:
    """None if its first bytes say nothing to us."""
    return (
        _compressed(glance)
        or _encrypted(glance)
        or _other_format(glance)
        or _tar(glance)
        or recognise_protobuf(glance)
        or _zeros(glance)
    )


_PACKERS = (
    (b"\x1f\x8b\x08", "gzip", "gzip", (".gz", ".tgz")),
    (b"\xfd7zXZ\0", "xz", "xz", (".xz", ".txz")),
    (b"BZh", "bzip2", "bzip2", (".bz2", ".tbz2")),
    (b"\x28\xb5\x2f\xfd", "Zstandard", "zstd", (".zst", ".zstd")),
    (b"\x04\x22\x4d\x18", "LZ4", "lz4", (".lz4",)),
    (b"LZIP\1", "lzip", "lzip", (".lz",)),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip", "7z", ()),
    (b"Rar!\x1a\7", "RAR", "unrar", ()),
)


def _compressed(glance: FileHead) -> Recognised | None:
    for magic, name, tool, endings in _PACKERS:
        if glance.head.startswith(magic):
            return Recognised(
                kind="compressed",
                called=f"a file compressed with {name}",
                problem=f"Compressed with {name} as a whole, which torch.load can't read",
                advice="Unpack it, then name what comes out",
                remedies=(remedy(tool, glance.path, _unpacked(glance.path, endings)),),
            )
    return None


def _unpacked(path: Path, endings: tuple[str, ...]) -> str:
    """A name for what comes out."""
    for ending in endings:
        if path.name.endswith(ending):
            return str(path)[: -len(ending)] + (".tar" if ending.startswith(".t") else "")
    return str(path.with_name(f"{path.stem}.unpacked{path.suffix}"))


_ENCRYPTED = (
    # OpenPGP packets: a session key for a public key (version 3 or 6) or for a passphrase (version 4 to 6).
    (rb"-----BEGIN PGP MESSAGE-----|\x84.[\x03\x06]|\x85..[\x03\x06]|\x8c[\x04-\x40][\x04-\x06]|\xc1.{1,2}[\x03\x06]|\xc3[\x04-\x40][\x04-\x06]",
     "GnuPG (OpenPGP)", "gpg"),
    (rb"age-encryption\.org/v1\n|-----BEGIN AGE ENCRYPTED FILE-----", "age", "age"),
    (rb"Salted__", "openssl enc", "openssl"),
    (rb"\$ANSIBLE_VAULT;", "Ansible Vault", "ansible-vault"),
    (rb"\0GITCRYPT\0", "git-crypt", "git-crypt"),
)  # fmt: skip


def _encrypted(glance: FileHead) -> Recognised | None:
    for pattern, name, tool in _ENCRYPTED:
        if re.match(pattern, glance.head, re.DOTALL):
            path = glance.path
            out = (
                path.with_suffix("") if path.suffix in (".gpg", ".asc", ".age", ".enc", ".pgp") else _unpacked(path, ())
            )
            return Recognised(
                kind="encrypted",
                called=f"a file encrypted with {name}",
                problem=f"Encrypted with {name}: what is in it can't be read without the key",
                advice="Decrypt it, with the key and the options with which it was encrypted, then name what comes out",
                remedies=(remedy(tool, path, out),),
            )
    return None


_FORMATS = (
    # offset, magic, kind, called, advice
    (0, b"\x93NUMPY", "numpy", "a NumPy array (.npy)", "Load it with numpy.load; NumPy's arrays hold no device"),
    (0, b"\x89HDF\r\n\x1a\n", "hdf5", "an HDF5 file, as Keras and h5py write them", "Load it with keras.saving.load_model or h5py; it holds no device"),
    (0, b"GGUF", "gguf", "a GGUF model (llama.cpp)", "Load it with llama.cpp or the gguf package; it holds no device"),
    (0, b"lmgg", "ggml", "a GGML model (llama.cpp, whisper.cpp)", "Load it with the program that it was made for; it holds no device"),
    (0, b"fmgg", "ggml", "a GGML model (llama.cpp)", "Load it with the program that it was made for; it holds no device"),
    (0, b"tjgg", "ggml", "a GGML model (llama.cpp)", "Load it with the program that it was made for; it holds no device"),
    (4, b"TFL3", "tensorflow", "a TensorFlow Lite model", "Load it with tf.lite.Interpreter; it holds no device"),
    (0, b"\x7fELF", "program", "an ELF program or library", ""),
    (0, b"SQLite format 3\0", "other", "an SQLite database", ""),
    (0, b"PAR1", "other", "a Parquet table", ""),
    (0, b"%PDF-", "other", "a PDF document", ""),
    (0, b"\x89PNG\r\n\x1a\n", "other", "a picture (PNG)", ""),
    (0, b"\xff\xd8\xff", "other", "a picture (JPEG)", ""),
)  # fmt: skip
_MESSAGE_PACK = re.compile(
    rb"[\x81-\x8f](?:%s)" % b"|".join(b"%c[\\w.]{%d}[\x80-\x8f\xde\xc7-\xc9]" % (0xA0 + n, n) for n in range(1, 32))
)
"""A map that begins with a name and another map or an array."""
_LEVELDB_FOOTER = bytes.fromhex("57fb808b247547db")


def _other_format(glance: FileHead) -> Recognised | None:
    for offset, magic, kind, called, advice in _FORMATS:
        if glance.head.startswith(magic, offset):
            return Recognised(
                kind=kind,
                called=called,
                problem=f"{called[0].upper()}{called[1:]}, not a checkpoint of torch",
                advice=advice,
            )
    if _MESSAGE_PACK.match(glance.head):
        return Recognised(
            kind="flax",
            called="a MessagePack file, as Flax (JAX) writes its models",
            problem="A MessagePack file, as Flax (JAX) writes its models, not a checkpoint of torch",
            advice="Load it with flax.serialization.msgpack_restore; it holds no device",
        )
    if glance.size >= 48 and glance.read(glance.size - 8, 8) == _LEVELDB_FOOTER:
        return Recognised(
            kind="tensorflow",
            called="the index of a TensorFlow checkpoint",
            problem="The index of a TensorFlow checkpoint, not a checkpoint of torch",
            advice="Load it with tf.train.load_checkpoint, naming it without .index",
        )
    return None


def _tar(glance: FileHead) -> Recognised | None:
    if not _is_tar_header(glance.head[:512]):
        return None
    names = _tar_names(glance)
    if {"storages", "tensors", "pickle"} <= set(names):
        return Recognised(
            kind="torch-tar",
            called="a checkpoint in torch's oldest format (tar)",
            problem="A checkpoint in the tar format of the first releases of torch, which is not rewritten",
            advice="Load it with map_location='cpu' and save it again, if you trust it: torch can't read this format with weights_only",
            remedies=(remedy("resave-tar", glance.path, _unpacked(glance.path, ()).replace(".unpacked", ".resaved")),),
        )
    inside = [name for name in names if name.endswith((".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp"))]
    return Recognised(
        kind="tar",
        called="a tar archive",
        problem=f"A tar archive ({listed(map(printable, inside or names), 4)}), not a checkpoint itself",
        advice="Unpack it, then name the checkpoint in it" if inside else "Unpack it to see what is in it",
        remedies=(remedy("tar", glance.path),),
    )


def _is_tar_header(header: bytes) -> bool:
    """By its checksum, which tells a tar archive from anything else."""
    if len(header) < 512 or not header[0]:
        return False
    digits = header[148:156].strip(b" \0")
    if not re.fullmatch(rb"[0-7]{1,7}", digits):
        return False
    return int(digits, 8) == sum(header[:148]) + 8 * 0x20 + sum(header[156:])


def _tar_names(glance: FileHead, most: int = 64) -> list[str]:
    """The names of its first files. Python's tarfile would read as much into memory as a header tells it to."""
    names: list[str] = []
    at = 0
    for _ in range(most):
        header = glance.read(at, 512)
        if not _is_tar_header(header):
            break
        digits = header[124:136].strip(b" \0")
        if not re.fullmatch(rb"[0-7]+", digits):
            break
        if header[156:157] in b"\x000":
            names.append(header[:100].split(b"\0", 1)[0].decode("utf-8", "replace").removeprefix("./"))
        at += 512 + -(-int(digits, 8) // 512) * 512
    return names


_ZEROS_READ = 1 << 26
_PIECE = 1 << 20


def _zeros(glance: FileHead) -> Recognised | None:
    """A file that was given its size before it was filled, and never was. Says no more than was read."""
    if glance.head.strip(b"\0"):
        return None
    at = len(glance.head)
    try:
        at = os.lseek(glance.fd, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            at = glance.size
    start = at
    while at < glance.size and at - start < _ZEROS_READ:
        piece = glance.read(at, _PIECE)
        zeros = len(piece) - len(piece.lstrip(b"\0"))
        at += zeros
        if not piece or zeros < len(piece):
            break
    whole = at >= glance.size
    return Recognised(
        kind="zeros",
        called="a file of zero bytes",
        damaged=True,
        problem=f"Nothing but zero bytes, {human(glance.size)} of them"
        if whole
        else f"Its first {human(at)} are nothing but zero bytes",
        advice="The file was given its size, but never filled: download or copy it again, or use the checkpoint before it",
    )
