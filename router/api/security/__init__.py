"""Security of the HTTP service: keys, roles, whose decisions a caller may see, and requests of other web sites."""
