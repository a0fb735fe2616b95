"""What `check --fix` changes: each treatment is shown first, asked for, applied, and proved. Nothing else here changes anything."""
