"""Looking at files that anybody may have made. Unlike pathlib's, `exists`, `isdir` and `isfile` never raise: not where a folder on
the way may not be entered, and not for names that are too long or no names at all, all of which settings may hold."""

from os.path import exists, isdir, isfile

from ddpdoctor.base.regular_files import NotRegularError, open_regular, read_start

__all__ = ["NotRegularError", "exists", "isdir", "isfile", "open_regular", "read_start"]
