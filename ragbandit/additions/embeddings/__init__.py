"""Embeddings: `POST /v1/embeddings` is passed on to one configured server."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(
    doors={"embeddings": "endpoints:DOOR"}, sections={"": "settings:EmbeddingsSection"}, pages=("embeddings.md",)
)
