"""Servers and networks that tests need: a service in a thread, proxies, clocks, OpenAI-compatible servers."""
