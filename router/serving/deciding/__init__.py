"""Deciding: a batch of questions becomes committed decisions of the champion and the candidates."""
