"""Settings: what can be set, and how it is read from the file and the environment."""
