"""HTTP: the application, its endpoints, requests, responses, metrics, and the client."""
