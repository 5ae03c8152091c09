"""Serving: the Router, the decision service and its steps, checks of questions, batches, failover, health of arms."""
