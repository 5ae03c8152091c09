"""A door: an interface over HTTP, with its endpoints and the shapes that its callers expect.

`Addition.doors` offers doors, and `doors.py` lists them all. A module with a door must not import that list.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import Request
from starlette.types import Scope

from ragbandit.router.api.openai.replies import ListedModel, ModelList
from ragbandit.router.api.request_state import ErrorShape
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.serving.router import Router


class Opened(Protocol):
    """A resource that a door keeps open on an event loop, such as a pool of connections."""

    async def close(self) -> None:
        """Called once, on the same loop, before the service ends."""


def _unchanged(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    return body, []


@dataclass(frozen=True, kw_only=True, slots=True)
class Door:
    """An interface. Only `place` and `endpoints` are required: errors then have RagBandit's shape."""

    #: position of the endpoints in /docs and docs/endpoints.md: a number that no other door has. doors.py has the
    #: core's numbers, and a test fails if two doors have the same one
    place: int
    endpoints: tuple[Endpoints, ...]
    #: text in /docs about the tag of the endpoints; "" if they have no tag, or the tag of another door
    description: str = ""
    #: modules whose classes describe requests and replies; the texts below their fields stand in /docs
    schemas: tuple[str, ...] = ()
    #: whether the caller of a request expects this interface's shapes. Called for every request, if the door has
    #: `error`. If several doors return True, the last one in the order of the places counts
    speaks: Callable[[Scope], bool] = field(default=lambda _scope: False)
    #: the shape of errors for these callers; None for RagBandit's
    error: ErrorShape | None = None
    #: the shape of models for these callers; None for OpenAI's
    models: Callable[[ListedModel | ModelList], Mapping[str, Any]] | None = None
    #: headers in lower case in which these callers send their key, besides `authorization` and `x-api-key`
    key_headers: tuple[str, ...] = ()
    #: path that these callers have in their base URL; None if they have no base URL
    base: str | None = None
    #: converts a body that came to the door of chat completions, but has this interface's form or parts of this form.
    #: Returns (the chat completion, names of what gets lost); any other body unchanged. Raises InvalidInput
    in_chat_form: Callable[[Mapping[str, Any]], tuple[Mapping[str, Any], list[str]]] = _unchanged
    #: further headers of all replies to these callers
    headers: Callable[[Scope], Sequence[tuple[bytes, bytes]]] = field(default=lambda _scope: ())
    #: pattern of the path, after the base URL, of an endpoint that is not served -> what to use instead. These patterns
    #: come before those of doors.py
    instead: Mapping[str, str] = field(default_factory=dict)
    #: opens the resource that the endpoints need, once per event loop; None if they need none. `opened_of` returns the
    #: resource. Raises ConfigError, which ends the start
    open: Callable[[Router], Opened | None] | None = None


def opened_of(request: Request, door: str) -> Any:
    """The resource that a door keeps open on this event loop (`Door.open`); None if it keeps none open."""
    return request.scope["app"].state.opened.get(door)
