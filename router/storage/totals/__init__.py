"""Hourly totals of the arms: each row of decisions, outcomes and ledgers is read once; pages and metrics count none."""
