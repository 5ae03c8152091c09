"""Following: this process loads new snapshots and versions from the database."""
