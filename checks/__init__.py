"""The illnesses: one function an illness, one folder a family: moving a function
within its folder renames nothing.

Pure functions over facts; nothing here looks at the world.
"""

__all__ = [
    "catalogue",
]

if __name__ != "ddpdoctor.checks":
    raise ImportError("import this package as ddpdoctor.checks")
