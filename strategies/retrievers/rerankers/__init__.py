"""Rerankers, which score the hits of any retriever for the question, and reorder them."""
