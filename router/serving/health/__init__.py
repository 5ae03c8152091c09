"""Health: which arms are offered, and whether this process can serve."""
