"""The NVIDIA driver: module, libraries, device nodes, daemons."""
