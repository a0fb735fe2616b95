"""The host: cores, memory, disks, limits, shared memory."""
