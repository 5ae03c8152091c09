"""Offline: reads logs and tables, replays policies on logged traffic, and trains policies on tables."""
