"""The fixtures of the integration tests serve the tests of additions too."""

from tests.integration.api.conftest import http
from tests.integration.conftest import serve, service, store

__all__ = ["http", "serve", "service", "store"]
