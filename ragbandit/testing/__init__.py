"""Tests of the contracts of policies, arms and generators; test doubles; a scripted OpenAI-compatible server."""
