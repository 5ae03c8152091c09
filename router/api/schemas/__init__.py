"""Schemas of the HTTP interface: requests, replies, limits and descriptions."""
