"""Setup: from settings to databases, encoders, queues and folders; what must be installed."""
