"""docs/endpoints.md: every endpoint with the roles that may call it."""

from typing import Final

from docs.generate.schemas import table
from ragbandit.router.api.app import ENDPOINTS
from ragbandit.router.api.security.rules import AccessRule

_HEAD: Final = """# Endpoints

Written by `make docs` from the access rules of the code. Which roles there are: [security.md](security.md#roles).
Fields, replies and errors: `/docs` and `/openapi.json` of a running service.
"""


def endpoints_page() -> str:
    """The page."""
    rows = [
        [
            f"`{endpoint.method} {endpoint.path}`",
            _roles(endpoint.rule),
            f"`server.{endpoint.rule.size_limit}`" if endpoint.method == "POST" else "",
        ]
        for endpoint in ENDPOINTS
    ]
    return f"{_HEAD}\n{table(['endpoint', 'roles', 'largest body'], rows)}\n"


def _roles(rule: AccessRule) -> str:
    if rule.roles is None:
        return "everybody, without a key"
    roles = ", ".join(f"`{role}`" for role in sorted(rule.roles))
    return f"{roles}; no key of one tenant" if rule.all_tenants else roles
