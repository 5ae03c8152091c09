"""Following: what the database says, snapshots and versions, is loaded and decides here."""
