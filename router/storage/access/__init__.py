"""Access: API keys, spending, and the audit log."""
