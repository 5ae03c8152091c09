"""The body of a response at the door of chat completions, as Cursor and some proxies send it."""

from collections.abc import Mapping
from typing import Any, Final

from ragbandit.additions.responses.items import asks_for_summary, chat_of_items
from ragbandit.router.api.openai.errors import Unsupported

#: parameters of responses that need their own endpoint
_STORED: Final = ("previous_response_id", "conversation", "prompt", "background")


def completion_of_response(body: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]] | None:
    """Returns (the body of a chat completion, names of what it lacks); None for a body that is not in the form of a
    response. Raises Unsupported, and InvalidInput for wrong values of a response.
    """
    sent = body.get("input")
    if "messages" in body or not (isinstance(sent, str) or (isinstance(sent, list) and all(map(_is_object, sent)))):
        return None
    for name in _STORED:
        if body.get(name):
            message = f"{name} belongs to responses, and this endpoint has chat completions"
            raise Unsupported(message, field=name, remedy="POST /v1/responses")
    if asks_for_summary(sent):
        message = "an item compaction is no answer of a chat completion"
        raise Unsupported(message, field="input", remedy="POST /v1/responses")
    return chat_of_items(body)


def _is_object(value: object) -> bool:
    return isinstance(value, dict)
