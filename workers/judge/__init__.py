"""Judging: a model scores answers, on a worker of the queue `judge`."""
