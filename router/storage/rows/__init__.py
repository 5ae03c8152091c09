"""Rows: values of the domain to columns and back; features and texts packed into bytes."""
