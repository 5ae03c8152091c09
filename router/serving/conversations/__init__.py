"""Conversations: a list of chat messages becomes one question with what was said before it."""
