"""Doctor: what is wrong with a running installation, what it means, and what to do."""
