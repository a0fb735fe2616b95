"""What `check --fix` changes: each fix is shown first, asked for, applied, and proved. Nothing else here changes anything."""
