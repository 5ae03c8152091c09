"""Rows: values of the domain to columns and back, by table; features and traces packed into bytes."""
