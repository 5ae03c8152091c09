"""Settings: their declarations, and how they are read from the file and the environment."""
