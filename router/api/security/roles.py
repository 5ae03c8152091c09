"""Roles: which of them may call which endpoint. What stands in no line here is refused.

A line for every route of the app; a test walks the app and fails on one that is missing.
"""

from collections.abc import Mapping
from typing import Final

from starlette.routing import compile_path

from ragbandit.shared.types import Role

#: no key is needed
EVERYBODY: Final = "everybody"

#: method and path, as the app has them -> the roles that may call it, and EVERYBODY; admin may call everything
ROLES_OF: Final[Mapping[str, str]] = {
    "GET /health": EVERYBODY,
    "GET /ready": EVERYBODY,
    "POST /v1/route": "app",
    "POST /v1/route/batch": "app",
    "POST /v1/answer": "app",
    "POST /v1/chat/completions": "app",
    "POST /v1/completions": "app",
    "GET /v1/models": "app",
    "GET /v1/models/{model:path}": "app",
    "POST /v1/outcomes": "app worker",
    "GET /v1/decisions/{decision_id}": "reader app rater worker operator",
    "GET /v1/decisions/{decision_id}/explanation": "reader app rater worker operator",
    "POST /v1/decisions/{decision_id}/cancel": "app operator",
    "GET /v1/sessions/{session_id:path}": "reader app rater worker operator",
    "POST /v1/feedback": "app rater",
    "POST /v1/feedback/batch": "app rater",
    "POST /v1/feedback/token": "app",
    "POST /v1/feedback/browser": EVERYBODY,
    "OPTIONS /v1/feedback/browser": EVERYBODY,
    "GET /v1/policies": "reader operator",
    "GET /v1/policies/{name}": "reader operator",
    "POST /v1/policies/kill": "operator",
    "POST /v1/policies/unkill": "operator",
    "POST /v1/policies/{name}/{verb}": "operator",
    "GET /v1/status": "reader operator",
    "GET /v1/overview": "reader operator",
    "GET /metrics": "reader operator",
    "GET /ui": "reader operator",
    "GET /ui/arms": "reader operator",
    "GET /ui/decisions": "reader operator",
    "GET /ui/decisions/{decision_id}": "reader operator",
    "POST /ui/decisions/{decision_id}/cancel": "operator",
    "GET /ui/policies": "reader operator",
    "GET /ui/policies/{name}": "reader operator",
    "POST /ui/policies/{name}/{verb}": "operator",
    "POST /ui/switch": "operator",
    "GET /ui/feedback": "reader operator",
    "POST /ui/feedback/release": "operator",
    "GET /ui/queues": "reader operator",
    "GET /ui/login": EVERYBODY,
    "POST /ui/login": EVERYBODY,
    "POST /ui/logout": "reader operator",
    "GET /ui/static/{path:path}": EVERYBODY,
    "HEAD /ui/static/{path:path}": EVERYBODY,
    "GET /docs": "reader app rater worker operator",
    "GET /openapi.json": "reader app rater worker operator",
    "HEAD /openapi.json": "reader app rater worker operator",
    "GET /docs/assets/{path:path}": "reader app rater worker operator",
    "HEAD /docs/assets/{path:path}": "reader app rater worker operator",
}


#: endpoints that tell of all tenants: a key of one tenant may not call them, whatever its role
OF_THE_SERVICE: Final = frozenset(
    {
        "GET /v1/policies",
        "GET /v1/policies/{name}",
        "POST /v1/policies/kill",
        "POST /v1/policies/unkill",
        "POST /v1/policies/{name}/{verb}",
        "GET /v1/status",
        "GET /v1/overview",
        "GET /metrics",
        "GET /ui",
        "GET /ui/arms",
        "GET /ui/policies",
        "GET /ui/policies/{name}",
        "POST /ui/policies/{name}/{verb}",
        "POST /ui/switch",
        "GET /ui/feedback",
        "POST /ui/feedback/release",
        "GET /ui/queues",
    }
)


def _parsed(roles: str) -> frozenset[Role] | None:
    return None if roles == EVERYBODY else frozenset({*roles.split(), "admin"})  # type: ignore[arg-type] # a test reads them


_EXACT: Final[Mapping[str, frozenset[Role] | None]] = {
    endpoint: _parsed(roles) for endpoint, roles in ROLES_OF.items() if "{" not in endpoint
}
_PATTERNS: Final = [
    (method, compile_path(path)[0], _parsed(ROLES_OF[f"{method} {path}"]))
    for method, path in (endpoint.split(" ", 1) for endpoint in ROLES_OF if "{" in endpoint)
]
_PATTERNS_OF_THE_SERVICE: Final = [
    (method, compile_path(path)[0])
    for method, path in (endpoint.split(" ", 1) for endpoint in OF_THE_SERVICE if "{" in endpoint)
]


def allowed_roles(method: str, path: str) -> frozenset[Role] | None:
    """The roles that may call this; empty: nobody, it is in no line; None: everybody, also without a key."""
    endpoint = f"{method} {path}"
    if endpoint in _EXACT:
        return _EXACT[endpoint]
    for of, pattern, roles in _PATTERNS:
        if of == method and pattern.match(path):
            return roles
    return frozenset()


def is_of_the_service(method: str, path: str) -> bool:
    """Whether this tells of all tenants."""
    if f"{method} {path}" in OF_THE_SERVICE:
        return True
    return any(of == method and pattern.match(path) for of, pattern in _PATTERNS_OF_THE_SERVICE)
