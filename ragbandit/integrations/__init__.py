"""Adapters: the service's choice inside LangChain, LangGraph, LlamaIndex and Haystack.

Each module needs its framework, which an extra of the same name brings, and is imported by nothing of ours. The arms
that they choose among are run by the framework: configure them in the service with `run_by: caller`.
"""
