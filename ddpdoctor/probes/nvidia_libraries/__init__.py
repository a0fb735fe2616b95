"""Asks NVIDIA's own libraries (NVML, libcuda, NCCL), each in a process of its own, since they may hang or crash.

An `..._inquiry.py` is what runs there: standard library only, by its path, and nothing of ddpdoctor's is imported.
"""
