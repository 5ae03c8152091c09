"""For tests, yours as well as ours: contracts of policies, arms and generators, doubles, an OpenAI-like server."""
