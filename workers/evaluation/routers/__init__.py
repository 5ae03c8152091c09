"""Rows of routers: policies on a table with the outcome of every arm."""
