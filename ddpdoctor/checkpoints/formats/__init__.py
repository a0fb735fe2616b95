"""The file formats: where the pickles and the bytes of the storages lie."""
