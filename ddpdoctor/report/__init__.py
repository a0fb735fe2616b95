"""Reports tell: the same diagnosis for a terminal, as JSON and as Markdown."""
