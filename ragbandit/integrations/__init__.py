"""Adapters that let LangChain, LangGraph, LlamaIndex and Haystack route with the service.

The extra with a module's name installs its framework. The framework runs the arms: configure them in the service with
`run_by: caller`.
"""
