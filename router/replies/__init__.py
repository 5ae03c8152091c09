"""Converts values of the router to the reply types of ragbandit/client/replies, for HTTP and for commands."""
