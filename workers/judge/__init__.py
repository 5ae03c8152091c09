"""Judge: a model that scores answers, in a worker process of the queue `judge`."""
