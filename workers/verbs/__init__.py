"""The verbs that know arms, workers and indexes: init, serve, validate, up, worker, index."""
