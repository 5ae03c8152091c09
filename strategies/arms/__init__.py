"""Arms: ways of answering a question."""
