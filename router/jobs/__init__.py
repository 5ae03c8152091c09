"""Redis: the job queue, notifications, the private server, child processes."""
