"""Contracts of policies, arms, generators and chores; test doubles; a scripted OpenAI-compatible server."""
