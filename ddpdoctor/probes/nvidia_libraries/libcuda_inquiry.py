"""Loads libcuda and calls cuInit, in a process of its own, since both may hang or crash.

Prints one JSON object a line as it goes: {"error": why it didn't load} or {"path": ...}, {"version": 13000}, {"init": 0}.
cuInit creates no context, so it takes no memory on any GPU and works beside a job in exclusive mode.
"""

from __future__ import annotations

import ctypes
import json
import signal

END_SECONDS = 60
"""Longer than any caller waits for it."""


def tell(what: str, value: object) -> None:
    print(json.dumps({what: value}), flush=True)


def main() -> None:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        tell("error", str(error))
        return
    with open("/proc/self/maps") as maps:  # noqa: PTH123 (pathlib would be this process's slowest import)
        tell("path", next((line.split(None, 5)[5].strip() for line in maps if "libcuda" in line), None))
    version = ctypes.c_int()
    try:
        tell("version", version.value if library.cuDriverGetVersion(ctypes.byref(version)) == 0 else None)
        tell("init", library.cuInit(0))
    except AttributeError as missing:
        tell("error", str(missing))


if __name__ == "__main__":
    # If the caller was killed, nobody else ends what hangs here.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(END_SECONDS)
    main()
