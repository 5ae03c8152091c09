"""Sources of feedback: who sent it, what each of them counts, and how much of what is learned one of them may make."""
