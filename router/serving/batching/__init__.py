"""Batching: what waits, what is refused, and how requests of one moment share a forward pass and a transaction."""
