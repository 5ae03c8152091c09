"""Requests again: without the parameter that a server refused, or within the limit that it named."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ragbandit.shared.model_servers.failures import failure_of_error, server_message
from ragbandit.shared.model_servers.refusals import named_field, read_refusal, says_unsupported
from ragbandit.shared.model_servers.token_usage import TOKEN_LIMITS
from ragbandit.shared.reading.fields import object_in

#: maximum number of times that a request is sent again, each time because of another parameter
MOST_REPEATS: Final = 3
#: parameters that are never left out, since the answer depends on them
_DEMANDED: Final = frozenset(
    {"model", "messages", "system", "prompt", "input", "stream", "tools", "tool_choice", "functions", "function_call"}
    | {"response_format", "output_config", "modalities", "audio", "logprobs", "top_logprobs", "n", "stop"}
    | {"stop_sequences", "mcp_servers", "container", "web_search_options", *TOKEN_LIMITS}
)
#: parameters that are also usual words of messages, so they count only if the server names them as its `param`
_WORDS: Final = frozenset({"user", "store", "metadata", "prediction"})
#: smallest budget of thinking tokens that Anthropic takes
_LEAST_THINKING: Final = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class FewerFields:
    """A request to send again. field: the parameter that was left out, renamed or reduced."""

    body: dict[str, Any]
    field: str
    #: whether the server does not support the parameter, whatever its value and the other parameters are
    is_unsupported: bool = False


def fewer_fields(body: Mapping[str, Any], *, error: Exception) -> FewerFields | None:
    """The request without what this error refuses, or within the limit that it names; None if that cannot help."""
    failure, message = failure_of_error(error), server_message(getattr(error, "body", None))
    if failure.inability == "limit" and failure.most_tokens is not None:
        return _within(body, most=failure.most_tokens)
    if failure.inability != "parameter" or failure.status is None:
        return None
    refusal = read_refusal(failure.status, code=failure.code, message=message)
    if refusal.replacement is not None and refusal.replacement not in body:
        renamed = named_field([name for name in body if name in TOKEN_LIMITS], param=failure.param, message=message)
        if renamed is not None:
            fields = {refusal.replacement if name == renamed else name: value for name, value in body.items()}
            return FewerFields(body=fields, field=renamed)
    free = [name for name in body if name not in _DEMANDED]
    words = message if failure.param is None else ""
    field = named_field(
        [name for name in free if failure.param or name not in _WORDS], param=failure.param, message=words
    )
    if field is None:
        return None
    fields = {name: value for name, value in body.items() if name != field}
    others = [name for name in fields if name not in ("model", *_WORDS)]
    is_alone = named_field(others, param=None, message=message) is None
    return FewerFields(
        body=fields, field=field, is_unsupported=is_alone and says_unsupported(message, code=failure.code)
    )


def _within(body: Mapping[str, Any], *, most: int) -> FewerFields | None:
    """The request with a limit of at most `most` tokens for its answer; Anthropic's thinking counts in the limit."""
    names = [name for name in TOKEN_LIMITS if isinstance(body.get(name), int) and body[name] > most]
    if not names:
        return None
    fields = {**body, **dict.fromkeys(names, most)}
    thinking = object_in(fields, "thinking")
    budget = thinking.get("budget_tokens")
    if isinstance(budget, int) and budget >= most:
        fields["thinking"] = {**thinking, "budget_tokens": max(_LEAST_THINKING, most // 2)}
    return FewerFields(body=fields, field=names[0])
