"""Requests for Anthropic's Messages in the form that its servers accept: ids, names, order, texts and schemas."""
