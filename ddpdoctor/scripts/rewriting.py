"""Writes a script that was changed: whole or not at all, with its mode and group; never another user's, and through no link."""

from __future__ import annotations

import os
import stat

from ddpdoctor.base.ownership import access_list, user_name
from ddpdoctor.base.whole_files import write_whole
from ddpdoctor.scripts.source_text import UnreadableSource, read_source


def refusal(path: str) -> str:
    """Say why a file must not be written; "" where it may.

    Args:
        path: of the file, as the user named it.
    """
    try:
        state = os.lstat(path)
        if stat.S_ISLNK(state.st_mode):
            return f"it is a link to {os.path.realpath(path)}: name that file instead"
        if not stat.S_ISREG(state.st_mode):
            return "it is no regular file"
        if state.st_uid != os.geteuid():
            return f"it belongs to {user_name(state.st_uid)}"
        if state.st_nlink > 1:
            return "it has other hard links, which would keep the old text"
        if not state.st_mode & stat.S_IWUSR:
            return "it is read-only"
        if access_list(path):
            return "it has an access control list, which would be lost"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def rewrite(path: str, before: bytes, after: bytes) -> str:
    """Replace the text of a script, if it is what was judged.

    Args:
        path: of the file.
        before: what is in it.
        after: what is to be in it.

    Returns:
        Why it was not written; "" where it was.
    """
    if why := refusal(path):
        return why
    try:
        if read_source(path) != before:
            return "it was changed meanwhile"
        state = os.lstat(path)
        write_whole(path, after, stat.S_IMODE(state.st_mode), state.st_gid)
    except UnreadableSource as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)
    return ""
