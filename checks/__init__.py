"""The illnesses: one function an illness, one file a family (a large one has several: host_memory.py, host_disks.py).

Pure functions over facts; nothing here looks at the world.
"""

if __name__ != "ddpdoctor.checks":
    raise ImportError("import this package as ddpdoctor.checks")
