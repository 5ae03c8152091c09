"""Routers on a table with the outcome of every arm: simulated passes, and rows of results as papers print them."""
