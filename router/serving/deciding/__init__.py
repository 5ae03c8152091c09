"""Deciding: a batch of questions becomes committed decisions, by the champion and by candidates beside it."""
