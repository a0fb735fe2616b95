"""The command line. Before anything of it is imported, the library's modules are put before a user's of the same name."""

import os
import sys


def library_first() -> None:
    """A random.py on PYTHONPATH would be ours, too, instead of the illness that is to be found: folders with such files come
    last on our own path. The settings stay as they are, so that the target Python finds what training finds."""
    library = os.path.dirname(os.__file__)  # noqa: PTH120 (pathlib imports what a user's file may hide)
    if library not in sys.path:
        return
    place = sys.path.index(library)
    last = [folder for folder in sys.path[:place] if _hides_modules(folder)]
    sys.path[:] = [folder for folder in sys.path if folder not in last] + last


def _hides_modules(folder: str) -> bool:
    try:
        names = os.listdir(folder or ".")  # noqa: PTH208
    except OSError:
        return False
    for name in names:
        module, _, ending = name.partition(".")
        package = not ending and os.path.isfile(os.path.join(folder, name, "__init__.py"))  # noqa: PTH113, PTH118
        if module in sys.stdlib_module_names and (package or ending in ("py", "pyc") or ending.endswith("so")):
            return True
    return False


library_first()
