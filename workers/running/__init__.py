"""What a worker process runs: answers of arms, learning, and the event loop that they share."""
