"""Retention: how long what is stored stays. Texts are made blank on request."""
