"""HTTP: the application, its endpoints, requests, responses and metrics."""
