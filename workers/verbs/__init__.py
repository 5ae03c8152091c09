"""The verbs that know arms, workers and indexes: serve, validate, up, worker, index."""
