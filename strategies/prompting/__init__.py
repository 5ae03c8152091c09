"""Prompting: templates, prompts, passages, and the parsing of what a model wrote."""
