"""Settings that nothing reads, that are rejected, or left over."""
