"""What a process runs: arms on an event loop, and learning."""
