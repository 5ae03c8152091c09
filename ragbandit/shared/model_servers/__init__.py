"""Calls to model servers: connections, options, replies, failures."""
