"""What runs in a worker process: consumers, jobs, threads, and the supervisor."""
