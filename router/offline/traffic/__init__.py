"""Logs of other tools: their questions, and facts about their models."""
