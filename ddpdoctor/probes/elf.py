"""Reading shared objects without loading them: what they need, what they lack, for which GPUs they hold code.

Only the tables that are asked for are unpacked: libtorch_cpu.so alone exports some hundred thousand symbols, and a library
that makes an object of each entry takes seconds.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from ddpdoctor.probes.files import open_regular

FILE_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
WITHOUT_BYTES = 8
"""The type of a section that takes no room in the file (SHT_NOBITS)."""
MAX_NAME_BYTES = 100
"""Bytes of a section's name that are read; in a broken file it may not end."""
SYMBOL = struct.Struct("<IBBHQQ")
GLOBAL = 1

TORCH_NAMESPACES = re.compile(rb"_Z(?:T[VTISWH])?N[rVKRO]*(?:2at|3c10|4c10d|5torch|6caffe2)")
"""Mangled names of things that live in torch's own namespaces, rather than mention them in a signature."""

FATBIN_MAGIC = b"\x50\xed\x55\xba"
FATBIN_HEADER = struct.Struct("<IHHQ")
ENTRY_HEADER = struct.Struct("<HHIQ")
MAX_COPY = 512 << 20
"""Bytes of a section that is read as a whole."""
MAX_ENTRIES = 20_000
"""A fat binary with more pieces isn't read to its end; touching each costs a page from the disk."""


class NotElf(Exception):
    """The file can't be read as a 64-bit little-endian ELF shared object; says why."""


def sections(data: mmap.mmap) -> dict[str, tuple[int, int]]:
    """Find start and end of each section's bytes, by its name. `struct.error` and `IndexError` where its tables are broken.

    Raises:
        NotElf: it is no such file.
    """
    if data[:6] != b"\x7fELF\2\1":
        raise NotElf("not a 64-bit little-endian ELF file")
    _, _, _, _, _, table, _, _, _, _, size, count, names = FILE_HEADER.unpack_from(data)
    headers = [SECTION_HEADER.unpack_from(data, table + size * number) for number in range(count)]
    start = headers[names][4] if headers else 0
    found = {}
    for name, kind, _, _, offset, length, *_ in headers:
        text, _, _ = data[start + name : start + name + MAX_NAME_BYTES].partition(b"\0")
        found[text.decode("utf-8", "replace")] = (0, 0) if kind == WITHOUT_BYTES else (offset, offset + length)
    return found


class SharedLibrary:
    """An open shared object; use `opened()`."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._sections = sections(data)
        if ".dynsym" not in self._sections:
            raise NotElf("no dynamic symbols: the file is cut off, or no shared object")
        self._strings = self._span(".dynstr")

    def _span(self, name: str) -> tuple[int, int]:
        """Start and end of a section's bytes; (0, 0) where there is no such section.

        Raises:
            NotElf: the section lies beyond the end of the file.
        """
        start, end = self._sections.get(name, (0, 0))
        if end > len(self._data):
            raise NotElf(f"the file is cut off: its section {name} should end at {end}, the file is {len(self._data)}")
        return start, end

    def _string(self, offset: int) -> str:
        start, end = self._strings
        stop = self._data.find(b"\0", start + offset, end)
        if stop < 0:
            raise NotElf("a name lies outside of the string table")
        return self._data[start + offset : stop].decode("utf-8", "replace")

    @property
    def needed(self) -> tuple[str, ...]:
        """DT_NEEDED, in order."""
        return self._dynamic(1)

    @property
    def search_path(self) -> tuple[str, ...]:
        """Folders of DT_RPATH and DT_RUNPATH, as written ("$ORIGIN/../lib")."""
        return tuple(part for text in self._dynamic(15) + self._dynamic(29) for part in text.split(":") if part)

    def _dynamic(self, wanted: int) -> tuple[str, ...]:
        """The texts of the dynamic section's entries of that tag."""
        start, end = self._span(".dynamic")
        found = []
        for tag, value in struct.iter_unpack("<QQ", self._bytes(start, end - (end - start) % 16)):
            if tag == 0:
                break
            if tag == wanted:
                found.append(self._string(value))
        return tuple(found)

    @cached_property
    def _names(self) -> bytes:
        """All names, one after the other."""
        return self._bytes(*self._strings)

    def _bytes(self, start: int, end: int) -> bytes:
        """A copy.

        Raises:
            NotElf: it would be too large; files with holes may claim to be of any size.
        """
        if end - start > MAX_COPY:
            raise NotElf(f"one of its sections has more than {MAX_COPY >> 20} MiB")
        return self._data[start:end]

    def section(self, name: str) -> bytes:
        """A section's bytes, b"" where there is no such section."""
        return self._bytes(*self._span(name))

    def undefined(self) -> tuple[str, ...]:
        """Strong undefined symbols in torch's namespaces."""
        names = self._names
        if b"_Z" not in names or TORCH_NAMESPACES.search(names) is None:
            return ()  # As in most libraries, of which some have ten thousand symbols.
        start, end = self._span(".dynsym")
        symbols = SYMBOL.iter_unpack(self._bytes(start, end - (end - start) % SYMBOL.size))
        undefined = (name for name, info, _, section, *_ in symbols if section == 0 and info >> 4 == GLOBAL)
        return tuple(self._string(name) for name in undefined if TORCH_NAMESPACES.match(names, name))

    def exports(self, name: str) -> bool | None:
        """Whether it defines that symbol, by its GNU hash table; None where it has no such table.

        Raises:
            NotElf: the table is broken.
        """
        start, end = self._span(".gnu.hash")
        if start == end:
            return None
        symbols, _ = self._span(".dynsym")
        data = self._data
        try:
            count, first, words, shift = struct.unpack_from("<4I", data, start)
            value = gnu_hash(name)
            bloom = start + 16
            (word,) = struct.unpack_from("<Q", data, bloom + 8 * ((value // 64) % words))
            if not (word >> (value % 64)) & (word >> ((value >> shift) % 64)) & 1:
                return False
            buckets = bloom + 8 * words
            (index,) = struct.unpack_from("<I", data, buckets + 4 * (value % count))
            if index < first:
                return False
            while True:
                (hashed,) = struct.unpack_from("<I", data, buckets + 4 * count + 4 * (index - first))
                if hashed | 1 == value | 1:
                    offset, _, _, section, _, _ = SYMBOL.unpack_from(data, symbols + SYMBOL.size * index)
                    if section != 0 and self._string(offset) == name:
                        return True
                if hashed & 1:
                    return False
                index += 1
        except (struct.error, OverflowError, ZeroDivisionError) as error:
            raise NotElf(f"its symbol hash table is broken ({error})") from error

    @property
    def glibcxx(self) -> str:
        """The newest GLIBCXX_3.4.N among the versions that it asks for."""
        found = re.findall(rb"\0(GLIBCXX_3\.4(?:\.\d+)?)(?=\0)", self._names)
        names = {name.decode() for name in found}
        return max(names, key=lambda name: [int(part) for part in name.partition("_")[2].split(".")], default="")

    @property
    def architectures(self) -> tuple[str, ...]:
        """GPUs in the fat binary, sorted; empty without one, or when it has more than `MAX_ENTRIES` pieces."""
        start, end = self._span(".nv_fatbin")
        return fatbin_architectures(self._data, start, end)


def gnu_hash(name: str) -> int:
    """The hash of DT_GNU_HASH (djb2 in 32 bits)."""
    value = 5381
    for byte in name.encode():
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def fatbin_architectures(data: bytes | mmap.mmap, start: int, end: int) -> tuple[str, ...]:
    """Walk the fat binaries in data[start:end], as nvcc lays them out.

    Each has a header (magic, version, its length, the length of what follows) and then entries: kind (1 PTX, 2 cubin),
    version, header length, payload length, and at 28 the architecture, at 40 flags. The headers of compressed entries
    (bits 13 and 15 of the flags) look the same; only their payloads don't, which nobody reads here.
    """
    found: set[tuple[int, str, str]] = set()
    count = 0
    position = data.find(FATBIN_MAGIC, start, end)
    while 0 <= position <= end - FATBIN_HEADER.size:
        _, _, header, length = FATBIN_HEADER.unpack_from(data, position)
        entry, stop = position + header, min(position + header + length, end)
        while header and entry + 48 <= stop:
            kind, _, entry_header, payload = ENTRY_HEADER.unpack_from(data, entry)
            (number,) = struct.unpack_from("<I", data, entry + 28)
            (flags,) = struct.unpack_from("<Q", data, entry + 40)
            if kind not in (1, 2) or not 48 <= entry_header <= 4096 or not 10 <= number < 1000:
                break
            suffix = "a" if flags & 0x100000 else "f" if flags & 0x200000 else ""
            found.add((number, suffix, "compute" if kind == 1 else "sm"))
            count += 1
            if count > MAX_ENTRIES:
                return ()
            entry += entry_header + payload
        position = data.find(FATBIN_MAGIC, max(stop, position + 8), end)
    return tuple(
        f"{kind}_{number}{suffix}"
        for number, suffix, kind in sorted(found, key=lambda code: (code[2] == "compute", code))
    )


@contextmanager
def broken_tables_named() -> Iterator[None]:
    """Read tables, which may lead anywhere.

    Raises:
        NotElf: they did.
    """
    try:
        yield
    except (struct.error, IndexError, OverflowError) as error:
        raise NotElf(f"its tables are broken ({error})") from error


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    """Map a file; nothing of it is read but what is asked for.

    Raises:
        NotElf: with the reason, be it the file system's or the file's, also for what is found in it.
    """
    try:
        with (
            os.fdopen(open_regular(path), "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            broken_tables_named(),
        ):
            yield data
    except ValueError as error:
        raise NotElf("the file is empty") from error
    except FileNotFoundError as error:
        raise NotElf("a link to nowhere, or no plain file") from error
    except OSError as error:
        raise NotElf(error.strerror or str(error)) from error


@contextmanager
def opened(path: Path) -> Iterator[SharedLibrary]:
    """Open a shared object. `NotElf` with the reason, be it the file system's or the file's."""
    with mapped(path) as data:
        yield SharedLibrary(data)
