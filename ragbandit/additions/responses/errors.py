"""Errors on the paths of responses, with the names of their parameters."""

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import Scope

from ragbandit.additions.responses.models import asks_for_codex_models
from ragbandit.client.replies.decisions import ErrorDetail
from ragbandit.router.api.openai.errors import PARAMS, openai_error
from ragbandit.shared.errors import LimitReached, RagBanditError

RESPONSES: Final = "/v1/responses"
#: RagBandit's name of a field -> its name in a request for a response
_PARAMS: Final = {
    **PARAMS,
    "question": "input",
    "messages": "input",
    "response_format": "text.format",
    "logprobs": "include",
}


class WebSocketUnsupported(RagBanditError, code="WEBSOCKET_UNSUPPORTED", status=426):
    """The service has no WebSockets."""


def speaks_responses(scope: Scope) -> bool:
    """Whether the caller of a request expects the shapes of responses."""
    path: str = scope["path"]
    if asks_for_codex_models(scope):
        return True
    return path == RESPONSES or path.startswith(f"{RESPONSES}/")


def response_error(scope: Scope, status: int, error: ErrorDetail, headers: Mapping[str, str] | None) -> Response:
    """The reply to an error on a path of responses. If the scope has no path, a model's server sent the error, and its
    names of parameters are kept.

    A reached limit is a 400 here: Codex shows the message of a 400 and sends no second request. After a 429 it prints
    "exceeded retry limit" instead.
    """
    status = 400 if error["code"] == LimitReached.code else status
    params = _PARAMS if scope["path"] else PARAMS
    return openai_error(scope, status, error, headers, params=params)
