"""Redis: the job queue, notifications, streams of answers, who is there, the private server."""
