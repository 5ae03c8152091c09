"""Errors on the path of MCP, as JSON-RPC."""

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import Scope

from ragbandit.client.replies.decisions import ErrorDetail
from ragbandit.router.api.schemas.responses import JsonReply

MCP_PATH: Final = "/mcp"


def speaks_mcp(scope: Scope) -> bool:
    """Whether the caller of a request expects MCP's shapes."""
    return bool(scope["path"] == MCP_PATH)


def mcp_error(_scope: Scope, status: int, error: ErrorDetail, headers: Mapping[str, str] | None) -> Response:
    message = f"{error['message']} ({error['remedy']})" if error["remedy"] else error["message"]
    shape = {"code": -32050, "message": message, "data": error}  # a JSON-RPC code that MCP itself does not use
    return JsonReply({"jsonrpc": "2.0", "id": None, "error": shape}, status, headers)
