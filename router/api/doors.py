"""The doors for clients of other vendors: the endpoints of each interface, and the shapes that its callers expect."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import Scope

from ragbandit.router.api.anthropic import endpoints as anthropic
from ragbandit.router.api.anthropic.errors import anthropic_error, speaks_anthropic
from ragbandit.router.api.anthropic.models import anthropic_models
from ragbandit.router.api.openai import endpoints as openai
from ragbandit.router.api.openai.errors import openai_error, speaks_openai
from ragbandit.router.api.openai.replies import ListedModel, ModelList
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.schemas.responses import Shape


@dataclass(frozen=True, kw_only=True, slots=True)
class Door:
    endpoints: Endpoints
    #: text in /docs
    description: str
    #: whether the caller of a request expects this interface's shapes
    speaks: Callable[[Scope], bool]
    #: the shape of its errors
    error: Shape
    #: the shape of its models; None for OpenAI's
    models: Callable[[ListedModel | ModelList], Mapping[str, Any]] | None = None
    #: path that clients have in their base URL
    base: str = ""
    #: further header with the id of the request
    id_header: bytes | None = None


#: in the order of /docs
DOORS: Final = (
    Door(
        endpoints=openai.endpoints,
        description="For clients of OpenAI's interface: models, chat completions and responses.",
        speaks=speaks_openai,
        error=openai_error,
        base="/v1",
    ),
    Door(
        endpoints=anthropic.endpoints,
        description="For clients of Anthropic's Messages, such as Claude Code.",
        speaks=speaks_anthropic,
        error=anthropic_error,
        models=anthropic_models,
        id_header=b"request-id",
    ),
)


def door_of(scope: Scope) -> Door | None:
    """The door whose shapes the caller of a request expects; None for RagBandit's own."""
    for door in DOORS[::-1]:
        if door.speaks(scope):
            return door
    return None
