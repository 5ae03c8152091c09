"""A browser without scripts, and services with keys."""

from tests.support.servers.visitors import visit, with_keys

__all__ = ["visit", "with_keys"]
