"""The two passes over a log: its summary and the reward model, then the sums of the estimates."""
