"""The illnesses: one file a family, one function an illness. Pure functions over facts; nothing here looks at the world."""

if __name__ != "ddpdoctor.checks":
    raise ImportError("import this package as ddpdoctor.checks")
