"""Redis: the job queue, notifications, streams of answers, the list of processes, the private server."""
