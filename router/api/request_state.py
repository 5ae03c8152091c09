"""The state of a request over HTTP: one object in its ASGI scope, shared by all code that serves the request."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi import Request
from fastapi.responses import Response
from starlette.types import Receive, Scope

from ragbandit.client.replies.decisions import ErrorDetail
from ragbandit.router.config.context_schema import ContextSchema
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ArmName, Caller, DecisionUnit, Json

#: ASGI scope key of the RequestState
STATE: Final = "ragbandit"
_ANYBODY: Final = Caller()
#: makes the reply to an error, in the shape of a door
ErrorShape = Callable[[Scope, int, ErrorDetail, Mapping[str, str] | None], Response]


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionHeaders:
    """Facts about the questions of a request, from its headers."""

    #: context keys that headers set, with their values
    context: Mapping[str, Json] = field(default_factory=dict)
    session: str | None = None
    agent: str | None = None
    #: id that the client gives the answer, by which a rating finds the decision
    message: str | None = None
    unit: DecisionUnit | None = None
    #: the arm that the caller has chosen
    arm: ArmName | None = None
    #: whether the request is only previewed
    is_preview: bool = False

    def merge_context(self, context: Mapping[str, Json], *, schema: ContextSchema) -> dict[str, Json]:
        """The caller's context with the keys that headers set. Raises InvalidInput if the caller sets such a key."""
        for key, declared in schema.items():
            if declared.header is not None and context.get(key) is not None:
                remedy = f"leave it out, or send the header {declared.header}"
                raise InvalidInput(f"context.{key} comes from a header", field=f"context.{key}", remedy=remedy)
        return {**context, **self.context}


class ClientConnection:
    """Reads the connection after the body of a request, until the caller closes it."""

    def __init__(self, request: Request) -> None:
        self.is_closed = False
        #: why the connection cannot be read; None if its caller has closed it
        self.error: Exception | None = None
        #: called when the connection ends
        self.on_close: Callable[[], None] | None = None
        self.reading = asyncio.get_running_loop().create_task(self._read(request.receive))

    async def _read(self, receive: Receive) -> None:
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        except Exception as error:  # the endpoint did not read the body, and it is too large or malformed
            self.error = error
        finally:
            self.is_closed = True
            if self.on_close is not None:
                self.on_close()


@dataclass(kw_only=True, slots=True)
class RequestState:
    #: (address, port) from which the connection comes, whatever proxy headers contain
    peer: tuple[str, int] | None = None
    #: "mcp" if a tool of MCP makes the request inside the service: rates count only the agent's own request to /mcp
    part: str | None = None
    #: the caller's id of the request, or a new one
    request_id: str = ""
    #: the caller whose key the gate has found
    caller: Caller = _ANYBODY
    #: shape of errors at the caller's door; None for RagBandit's
    error: ErrorShape | None = None
    #: shape of models at the caller's door; None for OpenAI's
    models: Callable[[Any], Mapping[str, Any]] | None = None
    #: facts about the request's questions from its headers; None if there are none
    headers: QuestionHeaders | None = None
    #: whether the reading thread has parsed the large body already
    is_parsed: bool = False
    #: reads the rest of the connection; None until the request waits for the first time
    connection: ClientConnection | None = None


def request_state(scope: Scope) -> RequestState:
    state: RequestState | None = scope.get(STATE)
    if state is None:
        state = scope[STATE] = RequestState()
    return state
