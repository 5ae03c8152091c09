"""Judging: a model scores answers, in a worker process of the queue `judge`."""
