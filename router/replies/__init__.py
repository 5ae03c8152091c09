"""Replies: values of the router as JSON, in the types of ragbandit/client/replies; HTTP and commands print the same."""
