"""Checks of input, shared by the library, HTTP and the command line. Errors name the field and the remedy."""
