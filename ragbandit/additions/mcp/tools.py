"""MCP tools: endpoints of the service for agents, over HTTP or on pipes. The OpenAPI document has the schemas."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import httpx2
from mcp import Client, MCPError, types
from mcp.client.streamable_http import streamable_http_client
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.types.version import LATEST_MODERN_VERSION
from pydantic import TypeAdapter

from ragbandit.additions.mcp.errors import MCP_PATH
from ragbandit.client.exchange import Call, Connection, unreachable_error
from ragbandit.client.replies.decisions import PreviewReply
from ragbandit.router.api.schemas.responses import error_body
from ragbandit.shared.errors import LimitReached, RagBanditError, root_cause
from ragbandit.shared.proxies import httpx_options
from ragbandit.shared.texts.formats import did_you_mean
from ragbandit.shared.version import __version__

Context = ServerRequestContext[Any, Any]
Schema = dict[str, Any]
#: function of (context, "METHOD /path", arguments); it returns the reply, or raises the error of the endpoint
ToolCall = Callable[[Context, str, Mapping[str, Any]], Awaitable[dict[str, Any]]]

_INSTRUCTIONS: Final = """\
RagBandit answers questions over a corpus. For every question it chooses the answering pipeline ("arm") that is worth \
its cost, and it learns from what you report. Ask with `answer`. Or: `route` names an arm, you run it yourself, and \
`report_outcome` reports its cost. In both cases send `feedback` on whether the answer was right: it is what RagBandit \
learns from."""


class ToolRow(NamedTuple):
    endpoint: str
    description: str
    #: whether the reply may be a preview
    has_preview: bool = False


TOOLS: Final[Mapping[str, ToolRow]] = {
    "answer": ToolRow(
        "POST /v1/answer",
        "Answer a question from the corpus, with sources. A pipeline is chosen and run by the service. Keep "
        "`decision_id` for `feedback`. If `status` is pending, the answer takes longer than `wait_s`: call again "
        "with the same arguments and that `decision_id`. Ask one self-contained question.",
        has_preview=True,
    ),
    "route": ToolRow(
        "POST /v1/route",
        "Choose which of your own pipelines (`arm`) should answer a question; nothing is run. Run that arm yourself, "
        "then call `report_outcome` with the `decision_id`.",
        has_preview=True,
    ),
    "report_outcome": ToolRow(
        "POST /v1/outcomes",
        "Report what the arm that `route` named did: its answer, how it ended, and what it cost. Call it once for "
        "every decision of `route`, also after a failure; nothing is learned without it.",
    ),
    "feedback": ToolRow(
        "POST /v1/feedback",
        "Judge the answer of a decision: exactly one of `rating` (true, false, or a number on `scale`), "
        "`label` (the right answers) and `reward`. Judge only what you or your user checked; `source` is who "
        "checked: human, judge (a model) or code.",
    ),
    "explain": ToolRow(
        "GET /v1/decisions/{decision_id}/explanation",
        "Explain why an arm was chosen, with its probability, the steps and cost of the answer, and what was learned.",
    ),
}
#: parameters that tools leave out, because agents pay for every word of a schema in every call
_LEFT_OUT: Final = ("idempotency-key", "unit", "stream")
#: keywords of JSON Schema that an agent needs; the service itself checks all others
_KEYWORDS: Final = ("type", "description", "enum", "const", "default", "minimum", "maximum")
#: number of levels of nested objects whose fields a schema lists
_DEPTH: Final = 2


def make_mcp_server(document: Callable[[], Mapping[str, Any]], *, call: ToolCall) -> "Server[Any]":
    """The MCP server. document: returns the OpenAPI document of the service with its present arms."""

    async def list_tools(_context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        api = document()
        return types.ListToolsResult(tools=[_describe_tool(name, api=api) for name in TOOLS])

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name not in TOOLS:
            known = f"{did_you_mean(params.name, TOOLS)}tools: {', '.join(TOOLS)}"
            raise MCPError(types.INVALID_PARAMS, f"no tool is called {params.name!r:.80} ({known})")
        try:
            reply = await call(context, TOOLS[params.name].endpoint, params.arguments or {})
        except RagBanditError as error:
            body = error_body(error.code, error.message, field=error.field, remedy=error.remedy)
            if isinstance(error, LimitReached):
                body["limits"] = [*error.limits]  # as in the endpoint's reply
            return tool_result(str(error), {**body}, is_error=True)
        return tool_result(json.dumps(reply, ensure_ascii=False), reply)  # text for older clients

    return new_server(on_list_tools=list_tools, on_call_tool=call_tool)


def new_server(**handlers: Any) -> "Server[Any]":
    version = __version__
    return Server("ragbandit", title="RagBandit", version=version, instructions=_INSTRUCTIONS, **handlers)


def tool_result(text: str, structured: dict[str, Any] | None = None, *, is_error: bool = False) -> types.CallToolResult:
    content = [types.TextContent(type="text", text=text)]
    return types.CallToolResult(content=[*content], structured_content=structured, is_error=is_error)


def _describe_tool(name: str, *, api: Mapping[str, Any]) -> types.Tool:
    method, path = TOOLS[name].endpoint.split(" ")
    endpoint, reads = api["paths"][path][method.lower()], method == "GET"
    return types.Tool(
        name=name,
        title=endpoint["summary"],
        description=TOOLS[name].description,
        input_schema=_input_schema(endpoint, api=api),
        output_schema=_output_schema(endpoint, api=api, has_preview=TOOLS[name].has_preview),
        annotations=types.ToolAnnotations(
            read_only_hint=reads, destructive_hint=False, idempotent_hint=reads, open_world_hint=False
        ),
    )


def _input_schema(endpoint: Schema, *, api: Mapping[str, Any]) -> Schema:
    """The schema of a tool's arguments. It has no anyOf at its root, because some model providers refuse that."""
    parameters = endpoint.get("parameters", [])
    sent = endpoint.get("requestBody", {"content": {"application/json": {"schema": {}}}})
    body = _resolve(sent["content"]["application/json"]["schema"], api=api)
    fields = body.get("properties", {}) | {parameter["name"]: parameter["schema"] for parameter in parameters}
    required = body.get("required", []) + [parameter["name"] for parameter in parameters if parameter["required"]]
    shown = {
        name: _reduced_schema(field, api=api, depth=_DEPTH) for name, field in fields.items() if name not in _LEFT_OUT
    }
    return {"type": "object", "properties": shown, "required": required, "additionalProperties": False}


def _output_schema(endpoint: Schema, *, api: Mapping[str, Any], has_preview: bool) -> Schema:
    replies = [reply for status, reply in endpoint["responses"].items() if status.startswith("2")]
    shapes = [
        _reduced_schema(reply["content"]["application/json"]["schema"], api=api, depth=_DEPTH) for reply in replies
    ]
    if has_preview:
        preview = TypeAdapter(PreviewReply).json_schema()
        shapes.append(_reduced_schema(preview, api={"components": {"schemas": preview["$defs"]}}, depth=_DEPTH))
    return shapes[0] if all(shape == shapes[0] for shape in shapes) else {"type": "object", "anyOf": shapes}


def _resolve(schema: Schema, *, api: Mapping[str, Any]) -> Schema:
    name = schema.get("$ref") or schema.get("allOf", [{}])[0].get("$ref")
    return schema if name is None else {**api["components"]["schemas"][name.rpartition("/")[2]], **schema}


def _reduced_schema(schema: Schema, *, api: Mapping[str, Any], depth: int) -> Schema:
    """The schema without references, reduced to _KEYWORDS. depth: levels of objects whose fields are listed."""
    schema = _resolve(schema, api=api)
    plain: Schema = {key: schema[key] for key in _KEYWORDS if key in schema}
    if "anyOf" in schema:
        plain["anyOf"] = [_reduced_schema(option, api=api, depth=depth) for option in schema["anyOf"]]
    if "items" in schema:
        plain["items"] = _reduced_schema(schema["items"], api=api, depth=depth)
    if "properties" in schema and depth:
        fields = schema["properties"].items()
        plain["properties"] = {name: _reduced_schema(field, api=api, depth=depth - 1) for name, field in fields}
        plain["required"] = schema.get("required", [])
    return plain


_Reply = TypeVar("_Reply", bound=types.Result)
_CALL: Final = Call(method="POST", path=MCP_PATH)


async def serve_pipes(connection: Connection) -> None:
    """Forward every call on stdin to the service's /mcp, until the agent closes the pipe."""
    # The timeout limits silence, not a whole call: during a long call the service sends a comment every 15 seconds.
    timeout = httpx2.Timeout(connection.timeout_s, connect=connection.connect_timeout_s)
    route = httpx_options(connection.url or "")
    async with httpx2.AsyncClient(headers=connection.pool()["headers"], timeout=timeout, **route) as http:

        async def ask(request: types.Request[Any, Any], kind: type[_Reply], *, progress: Any = None) -> _Reply:
            # Each call has its own client, because a client cannot reconnect. A fixed `mode` saves the handshake.
            transport = streamable_http_client(f"{connection.url}{MCP_PATH}", http_client=http)
            try:
                async with Client(transport, mode=LATEST_MODERN_VERSION) as client:
                    return await client.session.send_request(request, kind, progress_callback=progress)
            except Exception as error:  # the SDK may raise an exception group
                cause = root_cause(error)
                if isinstance(cause, MCPError):
                    raise cause from None
                raise MCPError(
                    types.INTERNAL_ERROR, str(unreachable_error(cause, call=_CALL, connection=connection))
                ) from error

        async def list_tools(_context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
            return await ask(types.ListToolsRequest(), types.ListToolsResult)

        async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
            progress = context.session.report_progress if "progress_token" in (context.meta or {}) else None
            request = types.CallToolRequest(params=params.model_copy(update={"meta": None}))
            try:
                return await ask(request, types.CallToolResult, progress=progress)
            except MCPError as error:
                return tool_result(str(error), is_error=True)

        server = new_server(on_list_tools=list_tools, on_call_tool=call_tool)
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())
