"""The state of a request over HTTP: one object in its ASGI scope, shared by all code that serves the request."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from starlette.types import Scope

from ragbandit.shared.types import Caller

if TYPE_CHECKING:
    from ragbandit.router.api.dependencies import ClientConnection
    from ragbandit.router.api.schemas.question_headers import QuestionHeaders
    from ragbandit.router.api.schemas.responses import Shape

#: ASGI scope key of the RequestState
STATE: Final = "ragbandit"
_ANYBODY: Final = Caller()


@dataclass(kw_only=True, slots=True)
class RequestState:
    #: (address, port) from which the connection comes, whatever proxy headers contain
    peer: tuple[str, int] | None = None
    #: "mcp" if a tool of MCP makes the request inside the service: rates count only the agent's own request to /mcp
    part: str | None = None
    #: the caller's id of the request, or a new one
    request_id: str = ""
    #: whose key the gate has found
    caller: Caller = _ANYBODY
    #: form of errors, and of models, that the caller's door has; None for RagBandit's, and OpenAI's
    error: "Shape | None" = None
    models: Callable[[Any], Mapping[str, Any]] | None = None
    #: headers of the request's questions; None if they say nothing
    headers: "QuestionHeaders | None" = None
    #: whether the reading thread has got the body already
    is_parsed: bool = False
    #: reads the connection once the request has waited
    connection: "ClientConnection | None" = None


def request_state(scope: Scope) -> RequestState:
    state: RequestState | None = scope.get(STATE)
    if state is None:
        state = scope[STATE] = RequestState()
    return state
