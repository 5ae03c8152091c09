"""Adapters that let LangChain, LangGraph, LlamaIndex and Haystack route with the service.

Each module needs its framework, which the extra of the same name installs; RagBandit itself imports none of them. The
framework runs the arms, so configure them in the service with `run_by: caller`.
"""
