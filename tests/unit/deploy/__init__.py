"""What deploy/ holds, by itself."""
