"""Rerankers of the hits of any retriever: a cross-encoder in the worker, or a server."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(sections={"retriever": "section:RerankSection"})
