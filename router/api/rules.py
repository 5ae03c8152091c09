"""Rules of the endpoints: who may call each, what its requests wait for, how large they may be, and on which port.

A line for every route of the app; a test walks the app and fails on one that is missing. What stands in no line is
refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from starlette.datastructures import State
from starlette.routing import compile_path
from starlette.types import Scope

from ragbandit.router.serving.router import Queue
from ragbandit.shared.types import Role

#: no key is needed
EVERYBODY: Final = "everybody"
#: what probes and scrapers ask all the time
OPERATOR_PATHS: Final = frozenset({"/health", "/ready", "/metrics"})
#: who only operates the service, and neither asks nor judges
_OPERATORS: Final = frozenset({"reader", "operator", "admin"})
#: where tools are called
MCP: Final = "/mcp"
#: key of an ASGI scope: this request is a part of another one, which was counted; its value is the surface
PART: Final = "ragbandit.part"
#: on both ports
_DOCS: Final = ("/docs", "/openapi.json")


@dataclass(frozen=True, slots=True)
class Rule:
    """What holds for an endpoint before it runs."""

    #: names of the roles that may call it (a test reads them), or EVERYBODY; admin may call everything
    text: str
    #: it tells of all tenants: a key of one tenant may not call it, whatever its role
    all_tenants: bool = False
    #: in which its requests wait
    queue: Queue | None = None
    #: the setting of `server` that says how large a body may be
    largest: Literal["max_body_bytes", "max_batch_bytes", "max_chat_bytes"] = "max_body_bytes"

    @property
    def roles(self) -> frozenset[Role] | None:
        """The roles that may call it; empty: nobody, it is in no line; None: everybody, also without a key."""
        return _ROLES[self.text]


_ALL: Final = "reader app rater worker operator"
_OPERATE: Final = Rule("reader operator", all_tenants=True)
_COMMAND: Final = Rule("operator", all_tenants=True)
_READ: Final = Rule("reader operator")

#: method and path, as the app has them -> the rule
RULES: Final[Mapping[str, Rule]] = {
    "GET /": Rule(EVERYBODY),
    "GET /health": Rule(EVERYBODY),
    "GET /ready": Rule(EVERYBODY),
    "POST /v1/route": Rule("app", queue="questions"),
    "POST /v1/route/batch": Rule("app", queue="questions", largest="max_batch_bytes"),
    "POST /v1/answer": Rule("app", queue="questions"),
    "POST /v1/chat/completions": Rule("app", queue="questions", largest="max_chat_bytes"),
    "POST /v1/responses": Rule("app", queue="questions", largest="max_chat_bytes"),
    "GET /v1/responses/{response_id}": Rule("app"),
    "POST /v1/responses/{response_id}/cancel": Rule("app"),
    "DELETE /v1/responses/{response_id}": Rule("app"),
    "POST /v1/completions": Rule("app"),
    f"POST {MCP}": Rule(_ALL),
    "GET /v1/models": Rule("app"),
    "GET /v1/models/{model:path}": Rule("app"),
    "POST /v1/outcomes": Rule("app worker", queue="outcomes"),
    "GET /v1/decisions/{decision_id}": Rule(_ALL),
    "GET /v1/decisions/{decision_id}/explanation": Rule(_ALL),
    "POST /v1/decisions/{decision_id}/cancel": Rule("app operator"),
    "POST /v1/feedback": Rule("app rater", queue="feedback"),
    "POST /v1/feedback/batch": Rule("app rater", queue="feedback", largest="max_batch_bytes"),
    "GET /v1/policies": _OPERATE,
    "GET /v1/policies/{name}": _OPERATE,
    "POST /v1/policies/kill": _COMMAND,
    "POST /v1/policies/unkill": _COMMAND,
    "POST /v1/policies/{name}/{verb}": _COMMAND,
    "POST /v1/arms/{arm}/changed": _COMMAND,
    "GET /v1/status": _OPERATE,
    "GET /v1/overview": _OPERATE,
    "GET /v1/report": _OPERATE,
    "GET /metrics": _OPERATE,
    "GET /ui": _OPERATE,
    "GET /ui/arms": _OPERATE,
    "GET /ui/decisions": _READ,
    "GET /ui/decisions/{decision_id}": _READ,
    "POST /ui/decisions/{decision_id}/cancel": Rule("operator"),
    "GET /ui/policies": _OPERATE,
    "GET /ui/policies/{name}": _OPERATE,
    "POST /ui/policies/{name}/{verb}": _COMMAND,
    "POST /ui/switch": _COMMAND,
    "GET /ui/feedback": _OPERATE,
    "POST /ui/feedback/release": _COMMAND,
    "GET /ui/queues": _OPERATE,
    "GET /ui/login": Rule(EVERYBODY),
    "POST /ui/login": Rule(EVERYBODY),
    "POST /ui/logout": _READ,
    "GET /ui/static/{path:path}": Rule(EVERYBODY),
    "HEAD /ui/static/{path:path}": Rule(EVERYBODY),
    "GET /docs": Rule(_ALL),
    "GET /openapi.json": Rule(_ALL),
    "HEAD /openapi.json": Rule(_ALL),
    "GET /docs/assets/{path:path}": Rule(_ALL),
    "HEAD /docs/assets/{path:path}": Rule(_ALL),
}
#: of what stands in no line
NOBODY: Final = Rule("")
_ROLES: Final[Mapping[str, frozenset[Role] | None]] = {
    **{rule.text: frozenset({*cast(list[Role], rule.text.split()), "admin"}) for rule in RULES.values()},
    NOBODY.text: frozenset(),
    EVERYBODY: None,
}
_PATTERNS: Final = [
    (method, compile_path(path)[0], RULES[f"{method} {path}"])
    for method, path in (endpoint.split(" ", 1) for endpoint in RULES if "{" in endpoint)
]


def rule_of(method: str, path: str) -> Rule:
    """The rule of a request; NOBODY where no line has it."""
    rule = RULES.get(f"{method} {path}")
    if rule is not None:
        return rule
    return next((rule for of, pattern, rule in _PATTERNS if of == method and pattern.match(path)), NOBODY)


def route_path(scope: Scope) -> str:
    """The path that the app's routes are matched with, as Starlette sees it."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and path.startswith(root) and path[len(root) : len(root) + 1] in ("", "/"):
        return path[len(root) :]
    return path


def is_page(path: str) -> bool:
    """Whether a path is one of the dashboard's."""
    return path == "/ui" or path.startswith("/ui/")


def is_for_operators(path: str) -> bool:
    """Whether this path is served on server.admin_port: probes, metrics, pages, and what only operators may call."""
    if path in OPERATOR_PATHS or is_page(path):
        return True
    known = [roles for method in ("GET", "POST", "PUT", "DELETE") if (roles := rule_of(method, path).roles)]
    return bool(known) and all(roles <= _OPERATORS for roles in known)


def has_path(path: str, *, state: State) -> bool:
    """Whether the app has this path: on the port that it serves, and pages only where they are wanted."""
    if path == "/":
        return True
    if state.port != "all" and not path.startswith(_DOCS) and (state.port == "operators") != is_for_operators(path):
        return False
    return not is_page(path) or state.router.settings.server.dashboard
