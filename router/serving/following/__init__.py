"""Following: new snapshots and versions are found in the database and loaded into this process."""
