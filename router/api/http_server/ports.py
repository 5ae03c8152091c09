"""Ports: which endpoints the public port has, and which the operators' own, where there is one."""

from typing import Final

from starlette.datastructures import State
from starlette.types import Scope

from ragbandit.router.api.http_server.connections import OPERATOR_PATHS
from ragbandit.router.api.security.page_sessions import is_page
from ragbandit.router.api.security.roles import allowed_roles

#: who only operates the service, and neither asks nor judges
_OPERATORS: Final = frozenset({"reader", "operator", "admin"})
#: on both ports
_DOCS: Final = ("/docs", "/openapi.json")


def is_for_operators(path: str) -> bool:
    """Whether this path is served on server.admin_port: probes, metrics, pages, and what only operators may call."""
    if path in OPERATOR_PATHS or is_page(path):
        return True
    known = [roles for method in ("GET", "POST", "PUT", "DELETE") if (roles := allowed_roles(method, path))]
    return bool(known) and all(roles <= _OPERATORS for roles in known)


def has_path(scope: Scope, *, state: State) -> bool:
    """Whether the app has this path: on the port that it serves, and pages only where they are wanted."""
    path = scope["path"]
    if state.port != "all" and not path.startswith(_DOCS) and (state.port == "operators") != is_for_operators(path):
        return False
    return not is_page(path) or state.router.settings.server.dashboard
