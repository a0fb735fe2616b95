"""Whether something is there. Unlike pathlib's methods these never raise: not where a folder on the way may not be entered,
and not for names that are too long or no names at all, all of which settings may hold."""

from os.path import exists, isdir, isfile

__all__ = ["exists", "isdir", "isfile"]
