"""Errors as MCP's clients read them, where a request is refused before any tool is called: those of JSON-RPC."""

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import Scope

from ragbandit.client.replies.errors import ErrorDetail
from ragbandit.router.api.schemas.responses import JsonReply

#: where tools are called
PATH: Final = "/mcp"
#: JSON-RPC's code for an error of the server's own; ours is in `data`
_CODE: Final = -32000


def mcp_error(_scope: Scope, status: int, error: ErrorDetail, headers: Mapping[str, str] | None) -> Response:
    """The reply of an error on the path of MCP."""
    message, remedy = error["message"], error["remedy"]
    told = {"code": _CODE, "message": f"{message} ({remedy})" if remedy else message, "data": error}
    return JsonReply({"jsonrpc": "2.0", "id": None, "error": told}, status, headers)
