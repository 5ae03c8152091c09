"""Rerankers: they score the hits of any retriever with the question, and reorder them."""
