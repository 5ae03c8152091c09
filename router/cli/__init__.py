"""Code that the verbs of `ragbandit` share: options, the console, tables, the opened store."""
