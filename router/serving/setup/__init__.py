"""Setup: makes databases, encoders, queues and folders of settings, and checks what must be installed."""
