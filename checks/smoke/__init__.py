"""What a smoke training came to."""
