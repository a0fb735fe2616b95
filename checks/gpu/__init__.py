"""The GPUs: enough of them, healthy, free, where they belong."""
