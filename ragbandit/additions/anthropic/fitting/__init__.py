"""Requests for Anthropic's Messages as its servers take them: ids, names, order, texts and schemas."""
