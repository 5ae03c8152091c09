"""What a policy with features makes of the context that callers send with their questions."""
