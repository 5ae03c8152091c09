"""Schemas of the HTTP interface: requests, replies, their limits, and what is said about them."""
