"""Wiring: settings become generators, retrievers and arms."""
