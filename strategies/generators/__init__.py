"""Generators: language models behind one protocol."""
