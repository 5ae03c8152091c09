"""Tools: the endpoints that agents call, their schemas from the service's own OpenAPI document, and their replies."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

import ragbandit
from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.formats import did_you_mean

Context = ServerRequestContext[Any, Any]
Schema = dict[str, Any]
#: what an endpoint replies to these arguments, given "METHOD /path" of it. Raises what it refuses them with.
Call = Callable[[Context, str, Mapping[str, Any]], Awaitable[dict[str, Any]]]

_INSTRUCTIONS: Final = """\
RagBandit answers questions over a corpus. For every question it chooses the answering pipeline ("arm") that is worth \
its cost, and it learns from what you report. Ask with `answer`. Or: `route` names an arm, you run it yourself, and \
`report_outcome` says what it took. In both cases tell by `feedback` whether the answer was right: that is what it \
learns from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A tool: its endpoint, and what is said of it to agents and to their users."""

    endpoint: str
    title: str
    description: str
    #: names of the arguments; of the endpoint's body, path and query
    takes: str
    #: it changes nothing, as its users would see it
    reads: bool = False


TOOLS: Final[Mapping[str, Row]] = {
    "answer": Row(
        endpoint="POST /v1/answer",
        title="Answer a question",
        description="Answer a question from the corpus, with sources. A pipeline is chosen and run by the service. "
        "Keep `decision_id` for `feedback`. Where `status` is pending the answer takes longer than `wait_s`: call "
        "again with the same question and that `decision_id`. Ask one self-contained question.",
        takes="question decision_id wait_s context arms budget tenant session_id messages cost_weight aim",
    ),
    "search": Row(
        endpoint="POST /v1/search",
        title="Search the corpus",
        description="Find passages of the corpus by words or meaning, best first, without writing an answer. Use it to "
        "read sources yourself; use `answer` for an answer.",
        takes="query k",
        reads=True,
    ),
    "route": Row(
        endpoint="POST /v1/route",
        title="Choose a pipeline",
        description="Choose which of your own pipelines (`arm`) should answer a question; nothing is run. Run that arm "
        "yourself, then call `report_outcome` with the `decision_id`.",
        takes="question decision_id context arms tenant session_id messages cost_weight aim",
    ),
    "report_outcome": Row(
        endpoint="POST /v1/outcomes",
        title="Report what a pipeline did",
        description="Report what the arm that `route` named did: its answer, how it ended, and what it cost. Call it "
        "once for every decision of `route`, also after a failure; nothing is learned without it.",
        takes="decision_id status answer steps cost stop_reason error",
    ),
    "feedback": Row(
        endpoint="POST /v1/feedback",
        title="Judge an answer",
        description="Say how good the answer of a decision was: exactly one of `rating` (true, false, or a number on "
        "`scale`), `label` (the right answers) and `reward`. Judge only what you or your user checked, and say by "
        "`source` who did: human, judge (a model) or code.",
        takes="decision_id feedback_id rating scale label reward event source rater retract",
    ),
    "explain": Row(
        endpoint="GET /v1/decisions/{decision_id}/explanation",
        title="Explain a decision",
        description="Why an arm was chosen for a question, with what probability, what the answer took, and what was "
        "learned from it.",
        takes="decision_id",
        reads=True,
    ),
}

#: keywords that say what an agent needs; a text that does not fit a pattern is refused with our own words
_KEPT: Final = frozenset({"type", "description", "enum", "const", "default", "minimum", "maximum"})
#: levels of objects whose fields are in the schema of a reply: what lies deeper is for people, who read /docs
_DEPTH: Final = 2


def make_server(api: Mapping[str, Any], *, call: Call) -> "Server[Any]":
    """The MCP server. api: the OpenAPI document of the service."""
    tools = [_tool(name, row, api=api) for name, row in TOOLS.items()]

    async def list_tools(_context: Context, _params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=tools)

    async def call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
        row = TOOLS.get(params.name)
        if row is None:
            known = f"{did_you_mean(params.name, TOOLS)}tools: {', '.join(TOOLS)}"
            raise MCPError(INVALID_PARAMS, f"no tool is called {params.name!r:.80} ({known})")
        try:
            reply = await call(context, row.endpoint, params.arguments or {})
        except RagBanditError as error:
            detail = {"code": error.code, "message": error.message, "field": error.field, "remedy": error.remedy}
            return failed(str(error), {"error": detail})
        text = json.dumps(reply, ensure_ascii=False)  # for clients that read no structured content
        return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=reply)

    return new_server(list_tools=list_tools, call_tool=call_tool)


def new_server(
    *,
    list_tools: Callable[[Context, PaginatedRequestParams | None], Awaitable[ListToolsResult]],
    call_tool: Callable[[Context, CallToolRequestParams], Awaitable[CallToolResult]],
) -> "Server[Any]":
    """A server that introduces itself as ours and has these handlers."""
    return Server(
        "ragbandit",
        title="RagBandit",
        version=ragbandit.__version__,
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def failed(text: str, structured: dict[str, Any] | None = None) -> CallToolResult:
    """The result of a tool that failed, which the agent reads."""
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=structured, is_error=True)


def _tool(name: str, row: Row, *, api: Mapping[str, Any]) -> Tool:
    method, path = row.endpoint.split(" ")
    endpoint = api["paths"][path][method.lower()]
    # A call may come twice: an id of the caller's own makes it one. No tool takes anything away.
    hints = ToolAnnotations(
        title=row.title,
        read_only_hint=row.reads,
        destructive_hint=False,
        idempotent_hint=row.reads,
        open_world_hint=False,
    )
    return Tool(
        name=name,
        title=row.title,
        description=row.description,
        input_schema=_input(endpoint, takes=row.takes.split(), api=api),
        output_schema=_output(endpoint, api=api),
        annotations=hints,
    )


def _input(endpoint: Schema, *, takes: list[str], api: Mapping[str, Any]) -> Schema:
    """The schema of a tool's arguments. Without combinations at its root, which some models' interfaces refuse."""
    body = endpoint.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    whole = _resolved(body, api=api)
    fields = {each["name"]: each["schema"] for each in endpoint.get("parameters", ())} | whole.get("properties", {})
    required = [each["name"] for each in endpoint.get("parameters", ()) if each["required"]] + whole.get("required", [])
    properties = {name: _plain(fields[name], api=api, depth=_DEPTH + 1) for name in takes}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _output(endpoint: Schema, *, api: Mapping[str, Any]) -> Schema:
    """The schema of a tool's reply: of every good one."""
    good = [reply for status, reply in endpoint["responses"].items() if status.startswith("2")]
    shapes = [_plain(each["content"]["application/json"]["schema"], api=api, depth=_DEPTH) for each in good]
    distinct = [shape for number, shape in enumerate(shapes) if shape not in shapes[:number]]
    return distinct[0] if len(distinct) == 1 else {"type": "object", "anyOf": distinct}


def _resolved(schema: Schema, *, api: Mapping[str, Any]) -> Schema:
    """The schema that a reference names, in place of it."""
    (other,) = schema.get("allOf", [{}])[:1]
    name = schema.get("$ref") or other.get("$ref")
    return schema if name is None else {**api["components"]["schemas"][name.rpartition("/")[2]], **schema}


def _plain(schema: Any, *, api: Mapping[str, Any], depth: int) -> Any:
    """The schema in itself: references replaced, what only validators read left out, and no deeper than so."""
    if not isinstance(schema, dict):
        return schema
    schema = _resolved(schema, api=api)
    plain: Schema = {key: value for key, value in schema.items() if key in _KEPT}
    if "anyOf" in schema:
        plain["anyOf"] = [_plain(each, api=api, depth=depth) for each in schema["anyOf"]]
    if "items" in schema:
        plain["items"] = _plain(schema["items"], api=api, depth=depth)
    if "properties" in schema and depth:
        properties = schema["properties"].items()
        plain["properties"] = {name: _plain(each, api=api, depth=depth - 1) for name, each in properties}
        if "required" in schema:
            plain["required"] = schema["required"]
    return plain
