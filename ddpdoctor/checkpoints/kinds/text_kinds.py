"""Recognising text in place of a checkpoint: a pointer to it, or what a server said instead of sending it."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from typing import Any

import msgspec

from ddpdoctor.base.text import human, listed, plural
from ddpdoctor.checkpoints.kinds.file_head import FileHead, Recognised, mode_of, printable, recognised
from ddpdoctor.facts.remedies import remedy

_MAX_JSON_BYTES = 1 << 26
_MAX_PAGE_BYTES = 1 << 18
_LFS = re.compile(rb"version https://(?:git-lfs\.github\.com|hawser\.github\.com)/spec/v1\s")
_LFS_SIZE = re.compile(rb"^size (\d+)$", re.MULTILINE)
_TITLE = re.compile(rb"<title[^<>]{0,200}>([^<]*)</title>", re.IGNORECASE)
_XML_MESSAGE = re.compile(rb"<(Code|Message)>([^<]*)</\1>")


def recognise_text(glance: FileHead) -> Recognised | None:
    """Recognise a text; None if it isn't one."""
    head = glance.head.removeprefix(b"\xef\xbb\xbf")
    if not _is_text(head):
        return None
    head = head.lstrip()
    if _LFS.match(head):
        return _lfs_pointer(glance)
    if re.match(rb"(\.\./)*\.?/?annex/objects/|/annex/objects/", head):
        fetch = remedy("git-annex-get", glance.path.parent, glance.path.name)
        return recognised("git-annex-pointer", fetch, what="pointer")
    if re.match(rb"outs:[^\S\n]*\n\s*- ", head):
        return recognised("dvc-pointer", remedy("dvc-pull", glance.path))
    if re.match(rb"(?i)<!doctype html|<html|<head|<body", head):
        return _html(glance)
    if head.startswith(b"<?xml") or re.match(rb"<(Error|error)\b", head):
        if b"<html" in head.lower():
            return _html(glance)
        message = ": ".join(printable(text) for _, text in _XML_MESSAGE.findall(head))
        if message or head.startswith(b"<Error"):
            return recognised("xml/error", message=message or _first_line(head))
        return recognised("xml")
    if head.startswith((b"{", b"[")):
        return _json(glance)
    if re.match(rb"HTTP/\d(\.\d)? \d{3}", head):
        return recognised("http-answer", line=_first_line(head))
    if head.startswith(b'model_checkpoint_path: "'):
        return recognised("tensorflow/list")
    return recognised("text", line=_first_line(head))


def _is_text(head: bytes) -> bool:
    if not head or b"\0" in head:
        return False
    try:
        # The head may end within a character.
        text = getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\t\n\r\f\x1b" for character in text)


def _first_line(text: bytes) -> str:
    return printable(text.split(b"\n", 1)[0])


def _lfs_pointer(glance: FileHead) -> Recognised:
    found = _LFS_SIZE.search(glance.head)
    size = int(found[1]) if found else 0
    meant = f"the file itself, {human(size)}," if size else "the file itself"
    absolute = glance.path.absolute()
    tree = next((folder for folder in absolute.parents if mode_of(folder / ".git")), None)
    if tree is None:
        return recognised("git-lfs-pointer/no-clone", size=glance.size, meant=meant)
    fetch = remedy("lfs-install"), remedy("lfs-pull", tree, absolute.relative_to(tree))
    return recognised("git-lfs-pointer", *fetch, size=glance.size, meant=meant)


def _html(glance: FileHead) -> Recognised:
    found = _TITLE.search(glance.read(0, _MAX_PAGE_BYTES))
    title = ""
    if found:
        import html

        title = printable(html.unescape(found[1].decode("utf-8", "replace")))
    titled = f' titled "{title}"' if title else ""
    advice = next(text for words, text in _INSTEAD_OF_PAGES if re.search(words, title.lower()))
    return recognised("html", titled=titled, advice=advice)


_INSTEAD_OF_PAGES = (
    (r"google drive", "Download it again with gdown, which answers Google Drive's question about large files"),
    (
        r"hugging face",
        "Download it again from the address with /resolve/ in place of /blob/, or with `hf download`",
    ),
    (r"github", "Download it again from the address with /raw/ in place of /blob/"),
    (r"jupyter|login|log in|sign in|sso", "Log in again, then download it again: the page asks for a login"),
    (r"", "Download it again, with `curl -fL` so that an error is not saved as the file"),
)
"""By the title of the page that came instead of the file, how that may really be had."""


def _json(glance: FileHead) -> Recognised:
    try:
        content: Any = msgspec.json.decode(glance.read(0, _MAX_JSON_BYTES))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return recognised("text/broken-json", line=_first_line(glance.head))
    if not isinstance(content, dict):
        return recognised("json", keys="")
    weight_map = content.get("weight_map")
    if isinstance(weight_map, dict):
        return _index(weight_map)
    if "nbformat" in content and "cells" in content:
        return recognised("notebook")
    message = next((content[key] for key in ("error", "message", "detail", "errors") if content.get(key)), None)
    if message:
        text = message if isinstance(message, str) else msgspec.json.encode(message).decode()
        return recognised("json-error", message=printable(text))
    return recognised("json", keys=f" ({listed((printable(key, 30) for key in content), 4)})" if content else "")


def _index(weight_map: dict[str, Any]) -> Recognised:
    from ddpdoctor.checkpoints.shard_index import leads_out

    shards = sorted({name for name in weight_map.values() if isinstance(name, str)})
    count = plural(len(shards), "shard")
    outside = [name for name in shards if leads_out(name)]
    if outside:
        return recognised("sharded-index/leads-out", shards=count, name=printable(outside[0]))
    return recognised("sharded-index" if shards else "sharded-index/empty", shards=count)
