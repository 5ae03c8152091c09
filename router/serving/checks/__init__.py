"""Checks of input: the library, HTTP and the command line refuse the same, naming the field and the remedy."""
