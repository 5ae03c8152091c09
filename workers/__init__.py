"""Worker processes, which run arms, score answers and learn; the command line; the supervisor of `ragbandit up`."""
