"""Measurements that run in two revisions of this repository, side by side."""
