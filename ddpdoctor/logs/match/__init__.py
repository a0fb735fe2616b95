"""Which signs of illnesses stand in a log's lines."""
