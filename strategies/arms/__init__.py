"""Arms: one a file, named as it is registered."""
