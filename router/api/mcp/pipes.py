"""Pipes: the tools of a running service for an agent that starts us and speaks MCP on our stdin and stdout."""

from typing import Any, Final, TypeVar

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.server.stdio import stdio_server
from mcp.types import (
    INTERNAL_ERROR,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ListToolsRequest,
    ListToolsResult,
    PaginatedRequestParams,
    Request,
    Result,
)
from mcp.types.version import LATEST_MODERN_VERSION

from ragbandit.client.exchange import Call, Connection, away
from ragbandit.router.api.mcp.tools import Context, new_server, result
from ragbandit.router.api.rules import MCP
from ragbandit.shared.errors import root_cause

_Reply = TypeVar("_Reply", bound=Result)
_CALL: Final = Call(method="POST", path=MCP)


async def serve_pipes(connection: Connection) -> None:
    """Hand every call on to the service's own /mcp, until the agent closes the pipe."""
    # Of silence: in a long call the service sends a comment every 15 seconds.
    timeout = httpx2.Timeout(connection.timeout_s, connect=connection.connect_timeout_s)
    async with httpx2.AsyncClient(headers=connection.pool()["headers"], timeout=timeout) as http:

        async def ask(request: Request[Any, Any], kind: type[_Reply], *, progress: Any = None) -> _Reply:
            # A client of its own: one whose connection broke is of no more use. Without the version it would ask first.
            transport = streamable_http_client(f"{connection.url}{MCP}", http_client=http)
            try:
                async with Client(transport, mode=LATEST_MODERN_VERSION) as client:
                    return await client.session.send_request(request, kind, progress_callback=progress)
            except Exception as error:  # in groups, as the SDK's tasks raise it
                cause = root_cause(error)
                if isinstance(cause, MCPError):
                    raise cause from None
                raise MCPError(INTERNAL_ERROR, str(away(cause, call=_CALL, connection=connection))) from error

        async def list_tools(_context: Context, _params: PaginatedRequestParams | None) -> ListToolsResult:
            return await ask(ListToolsRequest(), ListToolsResult)

        async def call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
            progress = context.session.report_progress if "progress_token" in (context.meta or {}) else None
            request = CallToolRequest(params=params.model_copy(update={"meta": None}))
            try:
                return await ask(request, CallToolResult, progress=progress)
            except MCPError as error:
                return result(str(error), is_error=True)

        server = new_server(on_list_tools=list_tools, on_call_tool=call_tool)
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())
