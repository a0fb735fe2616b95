"""The GPU kit: `python -m tests.gpu` shows on a real GPU what of ddpdoctor holds and what doesn't.

It needs this repository, a Python with a CUDA build of torch (2.5 or later) and ddpdoctor's own dependencies; no network, no
pytest, and root only where a part says so. Each part is a process with a deadline of its own. One JSON file tells what ran,
what was seen and what differs from what was expected; it is complete on disk after every part.
"""
