"""Access rules of the endpoints: the roles that may call them, the limit of the body, the queue of the requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from starlette.datastructures import State
from starlette.routing import compile_path

from ragbandit.router.serving.router import Queue
from ragbandit.shared.types import Role


@dataclass(frozen=True, slots=True)
class Rule:
    #: roles that may call the endpoint; None if no API key is needed
    roles: frozenset[Role] | None
    #: whether the reply shows data of all tenants, so that keys of one tenant are refused
    all_tenants: bool = False
    #: queue of the requests; None if they are handled at once
    queue: Queue | None = None
    #: setting of `server` that limits the size of the body
    size_limit: Literal["max_body_bytes", "max_batch_bytes", "max_chat_bytes"] = "max_body_bytes"


def _roles(*roles: Role) -> frozenset[Role]:
    return frozenset({*roles, "admin"})  # admin may call everything


MCP_PATH: Final = "/mcp"
#: paths that probes and scrapers poll; they have no rate limit, and accept any query parameter
OPERATOR_PATHS: Final = frozenset({"/health", "/ready", "/metrics"})
#: roles that operate the service, but send neither questions nor feedback
_OPERATORS: Final = _roles("reader", "operator")

_EVERYBODY: Final = Rule(None)
_ANY_ROLE: Final = Rule(_roles("reader", "app", "rater", "worker", "operator"))
_APP: Final = Rule(_roles("app"))
_CHAT: Final = Rule(_roles("app"), queue="questions", size_limit="max_chat_bytes")
_READ: Final = Rule(_OPERATORS)
_READ_ALL: Final = Rule(_OPERATORS, all_tenants=True)
_COMMAND: Final = Rule(_roles("operator"), all_tenants=True)
_LABEL: Final = Rule(_roles("rater", "operator"))
_PERSON: Final = Rule(_roles("reader", "rater", "operator"))

RULES: Final[Mapping[str, Rule]] = {
    "GET /": _EVERYBODY,
    "GET /health": _EVERYBODY,
    "GET /ready": _EVERYBODY,
    "POST /v1/route": Rule(_roles("app"), queue="questions"),
    "POST /v1/route/batch": Rule(_roles("app"), queue="questions", size_limit="max_batch_bytes"),
    "POST /v1/answer": Rule(_roles("app"), queue="questions"),
    "POST /v1/chat/completions": _CHAT,
    "POST /v1/responses": _CHAT,
    "GET /v1/responses/{response_id}": _APP,
    "POST /v1/responses/{response_id}/cancel": _APP,
    "POST /v1/completions": _APP,
    f"POST {MCP_PATH}": _ANY_ROLE,
    "GET /v1/models": _APP,
    "GET /v1/models/{model:path}": _APP,
    "POST /v1/outcomes": Rule(_roles("app", "worker"), queue="outcomes"),
    "GET /v1/decisions/{decision_id}": _ANY_ROLE,
    "GET /v1/decisions/{decision_id}/explanation": _ANY_ROLE,
    "POST /v1/decisions/{decision_id}/cancel": Rule(_roles("app", "operator")),
    "GET /v1/label-queue": _LABEL,
    "POST /v1/feedback": Rule(_roles("app", "rater"), queue="feedback"),
    "POST /v1/feedback/batch": Rule(_roles("app", "rater"), queue="feedback", size_limit="max_batch_bytes"),
    "GET /v1/policies": _READ_ALL,
    "GET /v1/policies/{name}": _READ_ALL,
    "POST /v1/policies/kill": _COMMAND,
    "POST /v1/policies/unkill": _COMMAND,
    "POST /v1/policies/{name}/{verb}": _COMMAND,
    "POST /v1/arms/{arm}/changed": _COMMAND,
    "GET /v1/status": _READ_ALL,
    "GET /v1/overview": _READ_ALL,
    "GET /v1/report": _READ_ALL,
    "GET /metrics": _READ_ALL,
    "GET /ui": _READ_ALL,
    "GET /ui/arms": _READ_ALL,
    "GET /ui/decisions": _READ,
    "GET /ui/decisions/{decision_id}": _READ,
    "POST /ui/decisions/{decision_id}/cancel": Rule(_roles("operator")),
    "POST /ui/decisions/{decision_id}/rating": _LABEL,
    "GET /ui/policies": _READ_ALL,
    "GET /ui/policies/{name}": _READ_ALL,
    "POST /ui/policies/{name}/{verb}": _COMMAND,
    "POST /ui/switch": _COMMAND,
    "GET /ui/feedback": _READ_ALL,
    "GET /ui/labels": _PERSON,
    "POST /ui/labels": _LABEL,
    "GET /ui/queues": _READ_ALL,
    "GET /ui/login": _EVERYBODY,
    "POST /ui/login": _EVERYBODY,
    "POST /ui/logout": _PERSON,
    "GET /ui/static/{path:path}": _EVERYBODY,
    "HEAD /ui/static/{path:path}": _EVERYBODY,
    "GET /docs": _ANY_ROLE,
    "GET /openapi.json": _ANY_ROLE,
    "HEAD /openapi.json": _ANY_ROLE,
    "GET /docs/assets/{path:path}": _ANY_ROLE,
    "HEAD /docs/assets/{path:path}": _ANY_ROLE,
}
#: rule of requests without an entry in RULES
NOBODY: Final = Rule(frozenset())
_PATTERNS: Final = [
    (method, compile_path(path)[0], RULES[f"{method} {path}"])
    for method, path in (endpoint.split(" ", 1) for endpoint in RULES if "{" in endpoint)
]


def rule_of(method: str, path: str) -> Rule:
    rule = RULES.get(f"{method} {path}")
    if rule is not None:
        return rule
    return next((rule for verb, pattern, rule in _PATTERNS if verb == method and pattern.match(path)), NOBODY)


def is_page(path: str) -> bool:
    return path == "/ui" or path.startswith("/ui/")


def is_for_operators(path: str) -> bool:
    """Whether server.admin_port serves the path: probes, metrics, dashboard, and endpoints for operators only."""
    if path in OPERATOR_PATHS or is_page(path):
        return True
    rules = [rule_of(method, path) for method in ("GET", "POST", "PUT", "DELETE")]
    allowed = [rule.roles for rule in rules if rule.roles]
    return bool(allowed) and all(roles <= _OPERATORS for roles in allowed)


def has_path(path: str, *, state: State) -> bool:
    """Whether this app's port serves the path. Pages need the setting `server.dashboard`."""
    if path == "/" or path.startswith(("/docs", "/openapi.json")):
        return True
    if state.port != "all" and (state.port == "operators") != is_for_operators(path):
        return False
    return not is_page(path) or state.router.settings.server.dashboard
