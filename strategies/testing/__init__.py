"""Testing: the contract of arms, test doubles, an OpenAI-compatible test server."""
