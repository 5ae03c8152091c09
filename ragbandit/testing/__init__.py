"""For your tests and ours: contracts of policies, arms and generators, test doubles, an OpenAI-compatible server."""
