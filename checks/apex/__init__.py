"""NVIDIA Apex: what is installed against this torch, and how it is built."""
