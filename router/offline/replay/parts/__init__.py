"""A log in several files: what is done with each part, and how what they give becomes one result."""
