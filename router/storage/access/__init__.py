"""Access: API keys, and the audit log of what was done with them and with everything else an operator may change."""
