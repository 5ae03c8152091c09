"""Services with keys."""

from tests.integration.api.security.conftest import keyed

__all__ = ["keyed"]
