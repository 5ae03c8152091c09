"""An arm behind an MCP server: a tool that answers questions, asked over streamable HTTP or on the pipes of a command.

The tool gets the question and the fixed `arguments`; its text is the answer. What else it says stands in structured
content: `fields` maps what `http` reads of a reply (answer, steps, stop_reason, cost, or a part of it as cost.dollars),
and sources (a list of {"id", "title", "text", "url", "score"}, of which only `text` must be there), to dotted paths.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from pydantic import BaseModel, Field, ValidationError

from ragbandit.shared.errors import ArmFailed, ConfigError, required_module, root_cause
from ragbandit.shared.formats import did_you_mean
from ragbandit.shared.redaction import without_keys
from ragbandit.shared.retries import pause_before_retry
from ragbandit.shared.types import ArmName, CallFailed, Cost
from ragbandit.strategies.arm_parts.params import ArmParams, public_params, read_params
from ragbandit.strategies.arms.http import PipelineReply, accounted, checked_reply, secret_of
from ragbandit.strategies.base import Need, OutOfBudget, Passage, error_text, seconds_until
from ragbandit.strategies.outbound.addresses import check_address, credentials_of, shown_address
from ragbandit.strategies.run import Answer, Run

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult

#: most of the random pause before the second attempt, and before any, seconds
_PAUSE_S, _LONGEST_S = 0.5, 30.0
#: characters of a server's error that are shown
_SHOWN: Final = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class McpParams(ArmParams):
    """Settings of mcp."""

    #: of a server of streamable HTTP; or
    url: str = ""
    #: a program that every worker process starts once, and that speaks MCP on its pipes; and its arguments
    command: str = ""
    args: list[str] = field(default_factory=list)
    #: of the server
    tool: str = ""
    #: of the tool, that takes the question; left out: its only required text
    argument: str = ""
    #: its other arguments, the same for every question
    arguments: dict[str, Any] = field(default_factory=dict)
    #: part of the reply -> its path in the structured content
    fields: dict[str, str] = field(default_factory=dict)
    #: environment variable with the server's key: sent as the bearer token, or handed on to the command
    api_key_env: str = ""
    #: header -> name of the environment variable that holds its value
    headers_env: dict[str, str] = field(default_factory=dict)
    #: of one try, seconds; the budget's seconds are a limit as well
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    #: tries after the first one
    retries: Annotated[int, Field(ge=0, le=10)] = 2


class _Source(BaseModel):
    id: str | None = None
    title: str | None = None
    text: str
    url: str | None = None
    score: float | None = None


class _Reply(PipelineReply):
    sources: Annotated[tuple[_Source, ...], Field(max_length=200)] = ()


_PARTS: Final = (*_Reply.model_fields, *(f"cost.{name}" for name in Cost.__dataclass_fields__))


class Mcp:
    """Asks a tool of an MCP server; stops with what it says, "answered" if it says nothing.

    The connection serves all questions of a worker. One that breaks, or on which a call takes longer than `timeout_s`,
    is given up with all calls on it; each is tried again on a new one after a random, growing pause. What the server or
    the tool refuses is a failure at once. A question may reach the tool more than once.
    """

    needs: frozenset[Need] = frozenset()
    retrieves: ClassVar[bool] = False
    generates: ClassVar[bool] = False

    def __init__(self, *, name: str = "mcp", **params: object) -> None:
        self.name, where = ArmName(name), f"arms.{name}"
        self._params = given = read_params(McpParams, given=params, arm=self.name)
        self.params = public_params(given)
        required_module("mcp", extra="mcp", field=f"{where}.class")
        if not given.tool:
            raise ConfigError("no tool is named", field=f"{where}.tool", remedy="name the server's tool that answers")
        if bool(given.url) == bool(given.command):
            remedy = "give the url of a server, or the command that starts one"
            raise ConfigError("one of url and command is needed", field=f"{where}.url", remedy=remedy)
        if given.url:
            check_address(given.url, field=f"{where}.url", remedy="for example http://localhost:9000/mcp")
        for part in given.fields:
            if part not in _PARTS:
                remedy = f"{did_you_mean(part, _PARTS)}known: {', '.join(_PARTS)}"
                raise ConfigError(f"{part!r:.80} is no part of a reply", field=f"{where}.fields", remedy=remedy)
        variables = {f"headers_env.{header}": variable for header, variable in given.headers_env.items()}
        variables |= {"api_key_env": given.api_key_env} if given.api_key_env else {}
        values = {at: secret_of(variable, field=f"{where}.{at}") for at, variable in variables.items()}
        self._secrets = (*values.values(), *credentials_of(given.url))
        self._headers = {header: values[f"headers_env.{header}"] for header in given.headers_env}
        if given.api_key_env:
            self._headers["Authorization"] = f"Bearer {values['api_key_env']}"
        self._shown = shown_address(given.url) if given.url else given.command
        self._server: _Server | None = None

    async def answer(self, question: str, *, run: Run) -> Answer:
        """The tool's answer, its cost, steps and sources accounted for.

        Raises ArmFailed, OutOfBudget("seconds"); OutOfBudget of a cap that the reply overran, its answer the draft.
        """
        result = await self._asked(question, run=run)
        text = "\n".join(each.text for each in result.content if each.type == "text")
        if result.is_error:
            raise self._failed(f"the tool failed: {text}")
        body: dict[str, Any] = {} if "answer" in self._params.fields else {"answer": text}
        for part, path in self._params.fields.items():
            value = result.structured_content
            for name in path.split("."):
                value = value.get(name) if isinstance(value, Mapping) else None
            if value is not None:
                whole, _, detail = part.partition(".")
                body[whole] = {**body.get(whole, {}), detail: value} if detail else value
        reply = checked_reply(_Reply, body, arm=self.name, hidden=self._hidden)
        for number, each in enumerate(reply.sources, start=1):
            key = each.id or each.url or str(number)
            run.note_shown([Passage(id=key, title=each.title or "", text=each.text, url=each.url)])
            if each.score is not None:
                run.scores.setdefault(key, each.score)
        return accounted(reply, run=run)

    async def _asked(self, question: str, *, run: Run) -> "CallToolResult":
        """The result of the first try that reached the tool."""
        for attempt in range(1, self._params.retries + 2):
            began, seconds = time.monotonic(), seconds_until(run.deadline)
            if seconds == 0.0:
                raise OutOfBudget("seconds")
            timeout = self._params.timeout_s if seconds is None else min(self._params.timeout_s, seconds)
            server = self._connected()
            try:
                async with asyncio.timeout(timeout):
                    return await server.call(question)
            except Exception as error:  # in groups, as the SDK's tasks raise it
                cause = root_cause(error)
            if (refusal := _refusal(cause)) is not None:
                raise self._failed(refusal)
            server.task.cancel()
            slow = f"it took longer than {timeout:g} s (raise arms.{self.name}.timeout_s)"
            broken = slow if isinstance(cause, TimeoutError) else self._hidden(error_text(cause))
            run.trace.append(CallFailed(purpose="remote", error=broken, seconds=time.monotonic() - began))
            left_s = seconds_until(run.deadline)
            if attempt > self._params.retries and left_s != 0.0:
                raise self._failed(f"it cannot be asked: {broken}")
            pause = pause_before_retry(attempt, base_s=_PAUSE_S, longest_s=_LONGEST_S, left_s=left_s)
            if pause is None:
                raise OutOfBudget("seconds")
            await asyncio.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _connected(self) -> "_Server":
        """The connection of this event loop, or a new one."""
        server = self._server
        if (
            server is None
            or server.task.done()
            or server.task.cancelling()
            or server.loop is not asyncio.get_running_loop()
        ):
            server = self._server = _Server(self._params, headers=self._headers)
        return server

    def _failed(self, text: str) -> ArmFailed:
        return ArmFailed(f"{self._shown}: {self._hidden(text)[:_SHOWN]}", remedy="see the server's own log")

    def _hidden(self, text: str) -> str:
        return without_keys(text, secrets=self._secrets)


class _Server:
    """A connection, held by a task of its own: what the SDK opens must be closed by the task that opened it."""

    def __init__(self, params: McpParams, *, headers: Mapping[str, str]) -> None:
        self._params, self._headers, self.loop = params, headers, asyncio.get_running_loop()
        self._opened: asyncio.Future[tuple[Client, str]] = self.loop.create_future()
        self.task = self.loop.create_task(self._hold())
        self.task.add_done_callback(
            lambda task: task.cancelled() or task.exception()
        )  # that nobody waits for is no news

    async def call(self, question: str) -> "CallToolResult":
        """The tool's result. Raises what the server refuses, and whatever broke the connection, also in groups."""
        call = self.loop.create_task(self._ask(question))
        try:
            await asyncio.wait({call, self.task}, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return call.result()
            if self.task.cancelled():
                raise ConnectionError("another call over this connection failed")
            self.task.result()
            raise ConnectionError("the connection was closed")
        finally:
            call.cancel()

    async def _ask(self, question: str) -> "CallToolResult":
        from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult

        client, argument = await asyncio.shield(self._opened)
        arguments = {**self._params.arguments, argument: question}
        request = CallToolRequest(params=CallToolRequestParams(name=self._params.tool, arguments=arguments))
        return await client.session.send_request(request, CallToolResult)

    async def _hold(self) -> None:
        """Open it, and keep it until it is given up."""
        import httpx2
        from mcp import Client, StdioServerParameters
        from mcp.client.streamable_http import streamable_http_client

        params, key = self._params, self._params.api_key_env
        async with AsyncExitStack() as stack:
            if params.command:
                env = {key: os.environ[key]} if key else None
                client = Client(StdioServerParameters(command=params.command, args=params.args, env=env))
            else:
                http = await stack.enter_async_context(
                    httpx2.AsyncClient(headers=self._headers, timeout=params.timeout_s)
                )
                client = Client(streamable_http_client(params.url, http_client=http))
            await stack.enter_async_context(client)
            self._opened.set_result((client, params.argument or await _argument(client, tool=params.tool)))
            await self.loop.create_future()


def _refusal(error: Exception) -> str | None:
    """What the server has refused, in words; None where another try may go better."""
    from mcp import MCPError
    from mcp.types import CONNECTION_CLOSED, INTERNAL_ERROR

    if isinstance(error, MCPError) and error.code not in (CONNECTION_CLOSED, INTERNAL_ERROR):
        return f"the call was refused: {error}"
    if isinstance(error, ValidationError):
        return "the reply is no result of a tool"
    return error.message if isinstance(error, ArmFailed) else None


async def _argument(client: "Client", *, tool: str) -> str:
    """The tool's only required text. Raises ArmFailed where there is none, or several."""
    tools = {each.name: each.input_schema for each in (await client.list_tools()).tools}
    if tool not in tools:
        raise ArmFailed(f"it has no tool {tool!r} ({did_you_mean(tool, tools)}it has {', '.join(tools)})")
    fields = tools[tool].get("properties", {})
    texts = [name for name in tools[tool].get("required", []) if fields.get(name, {}).get("type") == "string"]
    if len(texts) != 1:
        raise ArmFailed(f"its tool {tool} requires {', '.join(texts) or 'no text'}: set the arm's param argument")
    return str(texts[0])
