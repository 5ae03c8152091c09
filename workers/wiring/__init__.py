"""Makes generators, retrievers and arms from settings."""
