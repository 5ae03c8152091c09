"""Monitoring: how far a policy has learned, what an arm is worth at its cost, and arms that change."""
