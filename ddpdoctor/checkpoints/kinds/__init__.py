"""Recognition of files and folders, by their content: checkpoints of all sorts, and what is none."""

__all__ = [
    "framework_folders",
]
