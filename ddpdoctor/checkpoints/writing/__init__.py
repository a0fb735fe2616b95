"""Writing: in place under an undo file, as a changed copy, record by record, or as safetensors."""

__all__ = [
    "journal",
]
