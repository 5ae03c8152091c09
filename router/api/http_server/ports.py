"""Ports: which endpoints the public port has, and which the operators' own, where there is one."""

from typing import Final

from starlette.datastructures import State
from starlette.types import Scope

from ragbandit.router.api.http_server.protocol import OPERATOR_PATHS
from ragbandit.router.api.security.page_sessions import is_page
from ragbandit.router.api.security.roles import allowed_roles

__all__ = ["has_path", "is_for_operators", "is_on_this_port"]

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
    """Whether the service has this path: on the port that the request came to, and pages only where they are wanted."""
    admin_port: int | None = state.admin_port
    if admin_port is not None and not is_on_this_port(scope, admin_port=admin_port):
        return False
    return not is_page(scope["path"]) or state.router.settings.server.dashboard


def is_on_this_port(scope: Scope, *, admin_port: int) -> bool:
    """Whether the port that this request came to serves its path."""
    path = scope["path"]
    if path.startswith(_DOCS):
        return True
    came_to = scope["server"][1] if scope.get("server") else None
    return (came_to == admin_port) is is_for_operators(path)
