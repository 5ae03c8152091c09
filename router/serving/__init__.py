"""Serving: the Router, the decision service, validation, micro-batching, the circuit breaker, recovery."""
