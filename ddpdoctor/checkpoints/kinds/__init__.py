"""What a file or folder is that may not be a checkpoint, told from its content."""
