"""Asks one libnccl for its version and for the address it would bootstrap on. Run as a script, in a process of its own.

`python -I -S nccl_inquiry.py LIBRARY` prints NCCL's own words and, last, a line that begins with `MARK` and goes on with
JSON: {"version": 22809, "status": 0, "id": "<256 hex digits>"}. ncclGetUniqueId opens a listening socket and needs no GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

MARK = "ddpdoctor-nccl-inquiry "
ID_BYTES = 128
END_SECONDS = 60
"""Longer than any caller waits for it."""


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * ID_BYTES),)


def ask(path: str) -> dict[str, object]:
    """Ask the library; {"error": ...} where it can't be loaded."""
    try:
        library = ctypes.CDLL(path)
        version = ctypes.c_int(0)
        library.ncclGetVersion(ctypes.byref(version))
        unique = UniqueId()
        status = library.ncclGetUniqueId(ctypes.byref(unique))
    except (OSError, AttributeError) as error:
        return {"error": str(error)}
    return {"version": version.value, "status": status, "id": bytes(unique).hex()}


if __name__ == "__main__":
    # If the caller was killed, nobody else ends what hangs here.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(END_SECONDS)
    answer = ask(sys.argv[1])
    ctypes.CDLL(None).fflush(None)  # NCCL's words wait in the C library's buffer.
    sys.stdout.write("\n" + MARK + json.dumps(answer) + "\n")
    sys.stdout.flush()
    # NCCL's bootstrap thread still waits for ranks, and would keep an ordinary exit waiting.
    os._exit(0)
