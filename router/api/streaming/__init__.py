"""Streamed answers: the events of an answer that is being written, and the reply that sends them."""
