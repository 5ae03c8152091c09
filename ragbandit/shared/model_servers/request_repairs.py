"""Repairs refused requests: they are sent again without the refused field, or within the limit that the server named.

A server may refuse a parameter, a field inside one, a value of a header, or the beginning of an answer.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ragbandit.shared.model_servers.error_replies import failure_of_error, refused_places, server_message
from ragbandit.shared.model_servers.failures import Failure
from ragbandit.shared.model_servers.field_paths import Place, has_plain_keys, paths_in, without_paths
from ragbandit.shared.model_servers.refusals import is_unsupported_parameter, named_field, read_refusal
from ragbandit.shared.model_servers.token_usage import TOKEN_LIMITS
from ragbandit.shared.reading.fields import object_in

#: maximum number of repairs of a request
MOST_REPEATS: Final = 8
#: parameters that are never left out, since the answer depends on them
_DEMANDED: Final = frozenset(
    {"model", "messages", "system", "prompt", "input", "stream", "tools", "tool_choice", "functions", "function_call"}
    | {"response_format", "output_config", "modalities", "audio", "logprobs", "top_logprobs", "n", "stop"}
    | {"stop_sequences", "mcp_servers", "container", "web_search_options", *TOKEN_LIMITS}
)
#: parameters that are also usual words: a message that has them refuses them only if they are the error's `param`
_WORDS: Final = frozenset({"user", "store", "metadata", "prediction"})
#: smallest budget of thinking tokens that Anthropic takes
_LEAST_THINKING: Final = 1024
#: refusal of a chat that ends with the beginning of an answer
_BEGINNING: Final = re.compile(
    r"prefill|must end with an? user (?:message|turn)|last message must (?:be|have)[^.]{0,40}user", re.IGNORECASE
)
#: text of the user's turn that is added for a model that cannot continue the beginning of an answer
GO_ON: Final = "Go on exactly where your last message ends, without repeating it."
#: refusal of a header for betas that does not name it
_BETA: Final = re.compile(r"\bbetas?\b", re.IGNORECASE)
#: words of a refusal because a header, or a value of a header, is missing: then no header is left out
_NEEDED: Final = re.compile(r"\b(?:requires?|required|needs?|missing|must (?:include|have|send|set))\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairedRequest:
    """A repaired request. field: the field that was left out, renamed, reduced or changed."""

    body: dict[str, Any]
    field: str
    #: places of fields that later requests should leave out too, if this request succeeds: the server refuses them
    #: whatever their values and the other parameters are
    lasting: tuple[Place, ...] = ()
    #: the client's headers to send; None if they do not change
    headers: Mapping[str, str] | None = None


#: (body of a request, message of the refusal) -> the repaired request; None if the repair does not apply
Repair = Callable[[Mapping[str, Any], str], RepairedRequest | None]


def repair_request(
    body: Mapping[str, Any],
    *,
    error: Exception,
    headers: Mapping[str, str] | None = None,
    repairs: Sequence[Repair] = (),
) -> RepairedRequest | None:
    """The request without the refused field, or within the limit that the error names; None if no repair applies.

    headers: the client's headers. repairs: repairs of the server's dialect, which are tried first
    """
    failure, message = failure_of_error(error), server_message(getattr(error, "body", None))
    if failure.inability == "limit" and failure.most_tokens is not None:
        return _lower_limits(body, most=failure.most_tokens)
    if failure.kind != "refused" or failure.status is None:
        return None
    own: tuple[Repair, ...] = (_end_with_user_turn, partial(_drop_header_values, headers=headers or {}))
    for repair in (*repairs, *own):
        repaired = repair(body, message)
        if repaired is not None:
            return repaired
    if failure.inability != "parameter":
        return None
    paths = paths_in(f"{failure.param or ''} {message}", places=refused_places(getattr(error, "body", None)))
    fewer, places, certain = without_paths(body, paths)
    if places:
        lasting = tuple(certain) if is_unsupported_parameter(message, code=failure.code) else ()
        return RepairedRequest(body=fewer, field=", ".join(map(".".join, places)), lasting=lasting)
    return _drop_parameter(body, failure=failure, message=message)


def _drop_parameter(body: Mapping[str, Any], *, failure: Failure, message: str) -> RepairedRequest | None:
    refusal = read_refusal(failure.status or 0, code=failure.code, message=message)
    if refusal.replacement is not None and refusal.replacement not in body:
        renamed = named_field([name for name in body if name in TOKEN_LIMITS], param=failure.param, message=message)
        if renamed is not None:
            fields = {refusal.replacement if name == renamed else name: value for name, value in body.items()}
            return RepairedRequest(body=fields, field=renamed)
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
    is_named = failure.param in (None, field) and _is_certain(field, body=body, message=message)
    is_lasting = is_alone and is_named and is_unsupported_parameter(message, code=failure.code)
    return RepairedRequest(body=fields, field=field, lasting=((field,),) if is_lasting else ())


def _is_certain(field: str, *, body: Mapping[str, Any], message: str) -> bool:
    """Whether a message is about this parameter, and not about a field inside it or a parameter with a longer name."""
    if not (has_plain_keys(body) and has_plain_keys(object_in(body, field))):
        return False
    whole = rf"(?<![\w$./\[\]-]){re.escape(field)}(?![\w$/\[-]|[.:]\S)"
    return len(re.findall(whole, message)) == len(re.findall(rf"\b{re.escape(field)}\b", message))


def _end_with_user_turn(body: Mapping[str, Any], message: str) -> RepairedRequest | None:
    """The chat with a user's turn after a refused beginning of the answer; None if something else is refused."""
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not (isinstance(last, Mapping) and last.get("role") == "assistant" and _BEGINNING.search(message)):
        return None
    return RepairedRequest(
        body={**body, "messages": [*body["messages"], {"role": "user", "content": GO_ON}]}, field="prefill"
    )


def _drop_header_values(body: Mapping[str, Any], message: str, *, headers: Mapping[str, str]) -> RepairedRequest | None:
    """The request without the header, or values of a header, that the message refuses; None if it refuses no header."""
    if _NEEDED.search(message):
        return None
    text, words = message.lower().replace("_", "-"), {*re.findall(r"[\w.:-]+", message)}
    for name, sent in headers.items():
        if name.lower() not in text and not (name.lower().endswith("-beta") and _BETA.search(message)):
            continue
        values = [value.strip() for value in sent.split(",") if value.strip()]
        kept = [value for value in values if value not in words]
        fewer = {other: value for other, value in headers.items() if other != name}
        fewer |= {name: ",".join(kept)} if 0 < len(kept) < len(values) else {}
        return RepairedRequest(body=dict(body), field=name, headers=fewer)
    return None


def _lower_limits(body: Mapping[str, Any], *, most: int) -> RepairedRequest | None:
    """The request with `most` tokens for its answer, Anthropic's thinking included; None if it has no larger limit."""
    names = [name for name in TOKEN_LIMITS if isinstance(body.get(name), int) and body[name] > most]
    if not names:
        return None
    fields = {**body, **dict.fromkeys(names, most)}
    thinking = object_in(fields, "thinking")
    budget = thinking.get("budget_tokens")
    if isinstance(budget, int) and budget >= most:
        fields["thinking"] = {**thinking, "budget_tokens": max(_LEAST_THINKING, most // 2)}
    return RepairedRequest(body=fields, field=names[0])
