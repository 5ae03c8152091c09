"""Decide and learn: everything between a question and the arm that answers it, and between feedback and the policy."""
