"""Contracts of the parts that additions offer; test doubles; scripted OpenAI-compatible servers."""
