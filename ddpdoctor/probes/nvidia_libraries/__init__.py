"""Asks NVIDIA's own libraries (NVML, libcuda, NCCL), each in a process of its own, since they may hang or crash.

An `..._inquiry.py` is what runs there: standard library only, by its path, and nothing of ddpdoctor's is imported.
"""

from pathlib import Path


def inquiry(library: str) -> Path:
    """The file of that library's inquiry, which is hardly ever needed as a module."""
    return Path(__file__).with_name(f"{library}_inquiry.py")
