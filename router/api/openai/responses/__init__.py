"""Open Responses: /v1/responses in front of our decisions. A response is a decision and its outcome."""
