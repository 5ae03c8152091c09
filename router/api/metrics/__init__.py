"""Metrics in the text format of Prometheus: of this process, of all processes, and of what they share."""
