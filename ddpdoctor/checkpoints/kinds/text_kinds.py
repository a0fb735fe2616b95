"""Which text a file is that should have been a checkpoint: a pointer to it, or what a server said instead of sending it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from ddpdoctor.base.text import human, listed, plural
from ddpdoctor.checkpoints.kinds.recognised import FileHead, Recognised, mode_of, printable
from ddpdoctor.facts.remedies import remedy

_LARGEST_JSON = 1 << 26
_LFS = re.compile(rb"version https://(?:git-lfs\.github\.com|hawser\.github\.com)/spec/v1\s")
_LFS_SIZE = re.compile(rb"^size (\d+)$", re.MULTILINE)
_TITLE = re.compile(rb"<title[^<>]{0,200}>([^<]*)</title>", re.IGNORECASE)
_XML_MESSAGE = re.compile(rb"<(Code|Message)>([^<]*)</\1>")


def recognise_text(glance: FileHead) -> Recognised | None:
    """None if it isn't text."""
    head = glance.head.removeprefix(b"\xef\xbb\xbf")
    if not _is_text(head):
        return None
    head = head.lstrip()
    if _LFS.match(head):
        return _lfs_pointer(glance)
    if re.match(rb"(\.\./)*\.?/?annex/objects/|/annex/objects/", head):
        return _annex_pointer(glance)
    if re.match(rb"outs:[^\S\n]*\n\s*- ", head):
        return _dvc_pointer(glance)
    if re.match(rb"(?i)<!doctype html|<html|<head|<body", head):
        return _html(glance)
    if head.startswith(b"<?xml") or re.match(rb"<(Error|error)\b", head):
        return _html(glance) if b"<html" in head.lower() else _xml(head)
    if head.startswith((b"{", b"[")):
        return _json(glance)
    if re.match(rb"HTTP/\d(\.\d)? \d{3}", head):
        return _downloaded(
            "http-answer",
            "a server's answer with its headers",
            f'A server\'s answer together with its headers: "{_first_line(head)}"',
            "Download it again without `-i` or `--save-headers`",
        )
    if re.match(rb'model_checkpoint_path: "', head):
        return Recognised(
            kind="tensorflow",
            called="the index of a TensorFlow checkpoint",
            problem="The list of a folder's TensorFlow checkpoints, not one of torch",
            advice="Load it with tf.train.load_checkpoint",
        )
    return Recognised(
        kind="text",
        called="a text file",
        problem=f'Text and no checkpoint: it begins "{_first_line(head)}"',
        advice="If it came from a server, that is the server's answer instead of the file: download it again",
    )


def _is_text(head: bytes) -> bool:
    if not head or b"\0" in head:
        return False
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        # The head may end within a character.
        if error.start < len(head) - 3 or error.reason != "unexpected end of data":
            return False
        text = head[: error.start].decode()
    return all(character.isprintable() or character in "\t\n\r\f\x1b" for character in text)


def _first_line(text: bytes) -> str:
    return printable(text.split(b"\n", 1)[0])


def _downloaded(kind: str, called: str, problem: str, advice: str) -> Recognised:
    return Recognised(kind=kind, called=called, problem=problem, advice=advice)


def _tree_of(path: Path) -> tuple[Path | None, str]:
    """The git work tree that the file lies in, and its name there."""
    absolute = path.absolute()
    tree = next((folder for folder in absolute.parents if mode_of(folder / ".git")), None)
    return tree, str(absolute.relative_to(tree)) if tree else path.name


def _lfs_pointer(glance: FileHead) -> Recognised:
    found = _LFS_SIZE.search(glance.head)
    size = int(found[1]) if found else 0
    meant = f"the file itself, {human(size)}," if size else "the file itself"
    tree, name = _tree_of(glance.path)
    return Recognised(
        kind="git-lfs-pointer",
        called="a Git LFS pointer",
        problem=f"A Git LFS pointer of {glance.size} bytes: {meant} was never fetched",
        advice="Fetch it with Git LFS"
        if tree
        else "Download the file itself: Git LFS can fetch it only into a clone of its repository",
        remedies=(remedy("lfs-install"), remedy("lfs-pull", tree, name)) if tree else (),
    )


def _annex_pointer(glance: FileHead) -> Recognised:
    return Recognised(
        kind="git-annex-pointer",
        called="a git-annex pointer",
        problem="A git-annex pointer: the file itself was never fetched",
        advice="Fetch it with git-annex",
        remedies=(remedy("git-annex-get", glance.path.parent, glance.path.name),),
    )


def _dvc_pointer(glance: FileHead) -> Recognised:
    return Recognised(
        kind="dvc-pointer",
        called="a DVC pointer",
        problem="A DVC pointer, which stands for the file but doesn't hold it",
        advice="Fetch the file with DVC, then name it without .dvc",
        remedies=(remedy("dvc-pull", glance.path),),
    )


def _html(glance: FileHead) -> Recognised:
    page = glance.read(0, 1 << 18)
    found = _TITLE.search(page)
    title = ""
    if found:
        import html

        title = printable(html.unescape(found[1].decode("utf-8", "replace")))
    return _downloaded(
        "html",
        "a web page",
        f'A web page titled "{title}", saved in place of the file'
        if title
        else "A web page, saved in place of the file",
        _instead_of_page(title),
    )


def _instead_of_page(title: str) -> str:
    """Where the file may really be had, by the page that came instead."""
    lower = title.lower()
    if "google drive" in lower:
        return "Download it again with gdown, which answers Google Drive's question about large files"
    if "hugging face" in lower:
        return "Download it again from the address with /resolve/ in place of /blob/, or with `hf download`"
    if "github" in lower:
        return "Download it again from the address with /raw/ in place of /blob/"
    if any(word in lower for word in ("jupyter", "login", "log in", "sign in", "sso")):
        return "Log in again, then download it again: the page asks for a login"
    return "Download it again, with `curl -fL` so that an error is not saved as the file"


def _xml(head: bytes) -> Recognised:
    said = ": ".join(printable(text) for _, text in _XML_MESSAGE.findall(head))
    if said or head.startswith(b"<Error"):
        return _downloaded(
            "xml",
            "an XML error message",
            f'An error message from a storage server, saved in place of the file: "{said or _first_line(head)}"',
            "Download it again once the address or the access rights are right, with `curl -fL`",
        )
    return _downloaded("xml", "an XML file", "An XML file, not a checkpoint", "")


def _json(glance: FileHead) -> Recognised:
    try:
        content: Any = msgspec.json.decode(glance.read(0, _LARGEST_JSON))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        line = _first_line(glance.head)
        return _downloaded("text", "a text file", f'Text and no checkpoint: it begins "{line}"', "")
    if isinstance(content, dict):
        weight_map = content.get("weight_map")
        if isinstance(weight_map, dict):
            return _index(weight_map)
        if "nbformat" in content and "cells" in content:
            return _downloaded("notebook", "a Jupyter notebook", "A Jupyter notebook, not a checkpoint", "")
        for key in ("error", "message", "detail", "errors"):
            if content.get(key):
                said = content[key] if isinstance(content[key], str) else msgspec.json.encode(content[key]).decode()
                return _downloaded(
                    "json-error",
                    "a server's error message",
                    f'A server\'s error message, saved in place of the file: "{printable(said)}"',
                    "Download it again once the address or the access rights are right, with `curl -fL`",
                )
    keys = (
        f" ({listed((printable(str(key), 30) for key in content), 4)})" if isinstance(content, dict) and content else ""
    )
    return _downloaded("json", "a JSON file", f"A JSON file{keys}, not a checkpoint", "")


def _index(weight_map: dict[str, Any]) -> Recognised:
    from ddpdoctor.checkpoints.index_files import leads_out

    shards = sorted({name for name in weight_map.values() if isinstance(name, str)})
    outside = [name for name in shards if leads_out(name)]
    problem = "" if shards else "The index of a model in shards that names no shard"
    if outside:
        problem = f'The index of a model in shards that leads out of its folder, to "{printable(outside[0])}": it is not followed'
    return Recognised(
        kind="sharded-index",
        called=f"the index of a model in {plural(len(shards), 'shard')}",
        problem=problem,
        advice="Download the model again, or name its files one by one" if problem else "",
    )
