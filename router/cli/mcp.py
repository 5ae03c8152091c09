"""Verb `mcp`: the tools of a running service for an agent that starts this process and speaks MCP on its pipes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ragbandit.client.connection import Connection
from ragbandit.client.exchange import Call, away
from ragbandit.router.cli.calls import address_of, key_of
from ragbandit.router.cli.console import ConfigOption, KeyOption, UrlOption
from ragbandit.shared.errors import required_module, root_cause

if TYPE_CHECKING:
    import httpx2
    from mcp import ClientSession
    from mcp.server.context import ServerRequestContext
    from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams

    Context = ServerRequestContext[Any, Any]

_Value = TypeVar("_Value")

#: of the service
_PATH: Final = "/mcp"
#: longest silence of the service within a call, seconds: above the longest wait_s of /v1/answer
_SILENCE_S: Final = 630.0


def mcp(url: UrlOption = None, key_env: KeyOption = None, config: ConfigOption = None) -> None:
    """Give an agent the tools of a running service (MCP over stdin and stdout); the agent starts this command."""
    required_module("mcp", extra="mcp")
    connection = Connection(
        url=address_of(url, config=config),
        api_key=None if key_env is None else key_of(key_env),
        timeout_s=_SILENCE_S,
        connect_timeout_s=5.0,
        read_timeout_s=None,
        retries=0,
        retry_after_most_s=0.0,
        connections=100,
    )
    asyncio.run(_serve(connection))


async def _serve(connection: Connection) -> None:
    """Hand every call on to the service's own /mcp, until the agent closes the pipe."""
    import httpx2
    from mcp import MCPError
    from mcp.server.stdio import stdio_server
    from mcp.types import CallToolRequest, CallToolResult

    from ragbandit.router.api.mcp.tools import failed, new_server

    timeout = httpx2.Timeout(connection.timeout_s, connect=connection.connect_timeout_s)
    async with httpx2.AsyncClient(headers=connection.pool()["headers"], timeout=timeout) as http:

        async def list_tools(_context: "Context", _params: "PaginatedRequestParams | None") -> "ListToolsResult":
            return await _asked(http, connection, lambda service: service.list_tools())

        async def call_tool(context: "Context", params: "CallToolRequestParams") -> "CallToolResult":
            progress = context.session.report_progress if "progress_token" in (context.meta or {}) else None
            request = CallToolRequest(params=params.model_copy(update={"meta": None}))
            try:
                return await _asked(
                    http,
                    connection,
                    lambda service: service.send_request(request, CallToolResult, progress_callback=progress),
                )
            except MCPError as error:
                return failed(str(error))

        server = new_server(list_tools=list_tools, call_tool=call_tool)
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())


async def _asked(
    http: "httpx2.AsyncClient", connection: Connection, ask: "Callable[[ClientSession], Awaitable[_Value]]"
) -> _Value:
    """What the service replies, asked by a client of its own: one whose connection breaks is of no more use.

    Raises MCPError: what the service refuses, or that none answers.
    """
    from mcp import Client, MCPError
    from mcp.client.streamable_http import streamable_http_client
    from mcp.types import INTERNAL_ERROR
    from mcp.types.version import LATEST_MODERN_VERSION

    # The version is given: with "auto" each call would ask for it first.
    transport = streamable_http_client(f"{connection.url}{_PATH}", http_client=http)
    try:
        async with Client(transport, mode=LATEST_MODERN_VERSION) as client:
            return await ask(client.session)
    except Exception as error:  # in groups, as the tasks of the SDK raise it
        cause = root_cause(error)
        if isinstance(cause, MCPError):
            raise cause from None
        message = str(away(cause, call=Call(method="POST", path=_PATH), connection=connection))
        raise MCPError(INTERNAL_ERROR, message) from error
