"""Reads refusals of model servers: whether a model is unable to answer the request, or the request is wrong.

A model may lack an ability that another model has (an inability), or a value may be wrong for every model. Only the
error's message distinguishes both cases, and every vendor words it differently; the patterns below match messages that
people report. Texts are cut before they are searched, and every pattern takes linear time.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from ragbandit.shared.model_servers.failures import Inability

#: a prompt is too long if it leaves fewer tokens than this for its answer; otherwise the answer is limited to the rest
_LEAST_ANSWER: Final = 1000
#: number of characters of a message that are read
_READ: Final = 1000
#: HTTP statuses whose error message is searched for a reason
_STATUSES: Final = (400, 413, 415, 422, 501)
#: codes of servers for a prompt that is too long
CONTEXT_CODES: Final = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded", "string_above_max_length"}
    | {"prompt_too_long", "input_too_long", "model_context_window_exceeded"}
)
_PARAMETER_CODES: Final = frozenset(
    {"unsupported_parameter", "unknown_parameter", "unrecognized_parameter", "unsupported_value", "extra_forbidden"}
    | {"parameter_not_supported"}
)
#: codes of servers for a model that they do not have
MODEL_CODES: Final = frozenset({"model_not_found", "model_not_available", "model_decommissioned", "DeploymentNotFound"})
#: prompts that are too long: OpenAI, Azure, vLLM, SGLang, DeepSeek, OpenRouter; Anthropic, Fireworks, Ollama; Bedrock;
#: Gemini; xAI; Groq, Cerebras; Copilot; Kimi; Mistral; MiniMax; TGI, Together; Qwen; GLM; LM Studio; Cohere; TensorRT
_CONTEXT: Final = re.compile(
    r"context[ _-](?:length|size|window|limit)"
    r"|(?:prompt|input|request|conversation|messages?) (?:is|are) too (?:long|large)"
    r"|prompt too long|input token count|maximum (?:prompt|input|model|sequence) length"
    r"|reduce the length of (?:the|your) (?:messages|prompt|input)"
    r"|token count of \d{1,9} exceeds|exceeds? max(?:imum)? length"
    r"|model token limit|range of input length|inputs`? must have less than \d{1,9} tokens"
    r"|`inputs` tokens \+ `max_new_tokens` must be|too many (?:input )?tokens|request too large for model",
    re.IGNORECASE,
)
#: names of an answer's limit
_LIMIT: Final = re.compile(
    r"max[_ ]?(?:(?:completion|output|new)[_ ]?)?tokens|(?:completion|output) tokens|maximum tokens you requested",
    re.IGNORECASE,
)
_RANGE: Final = (
    r"(?:range|between)[^.\d]{0,60}\[?\d{1,9}(?: \(inclusive\))?,? ?(?:to|and|-)? ?(\d{1,9})(?! \(exclusive\))"
)
_AT_MOST: Final = (
    r"(?:less than or equal to|<=|at most|not exceed|no more than|maximum(?: value)?(?: is| of| allowed is)?:?"
    r"|limit(?: is| of)?:?) ?[`'\"]?(\d{1,9})"
)
#: the largest allowed number of tokens of an answer: OpenAI; Anthropic; DeepSeek, Qwen; Groq, Cohere, Bedrock, others
_MOST: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"supports? (?:at most|up to|a maximum of) (\d{1,9})",
        r"\d{1,9} > (\d{1,9}), which is the maximum",
        _RANGE,
        _AT_MOST,
    )
)
#: Gemini's range, whose end is not allowed
_BELOW: Final = re.compile(r"to (\d{1,9}) \(exclusive\)", re.IGNORECASE)
#: (input tokens, requested answer, window): Anthropic's "190000 + 20000 > 200000", vLLM's "(5000 > 4096 - 3000)"
_SUM: Final = re.compile(r"(\d{1,9}) \+ (\d{1,9}) > (\d{1,9})")
_DIFFERENCE: Final = re.compile(r"\d{1,9} > (\d{1,9}) - (\d{1,9})")
#: OpenAI's and vLLM's "(8000 in the messages, 1000 in the completion)"
_IN_MESSAGES: Final = re.compile(r"(\d{1,9}) (?:tokens )?(?:in|from) the (?:input )?(?:messages|prompt)", re.IGNORECASE)
#: patterns with two numbers, and their order: tokens of the prompt, and the most that the model takes
_NUMBERS: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), order)
    for pattern, order in (
        (r"(\d{1,9})(?: tokens)? > (\d{1,9})", "tokens most"),
        (r"maximum (?:context|prompt) length(?: is|:)? (\d{1,9})[^\d]{1,120}?(\d{1,9})", "most tokens"),
        (r"(\d{1,9}) tokens[^\d]{1,80}?(?:longer|larger|greater|large|exceeds?)[^\d]{1,100}?(\d{1,9})", "tokens most"),
        (r"(?:token count|prompt token count)[^\d]{1,20}(\d{1,9})[^\d]{1,80}?(\d{1,9})", "tokens most"),
        (r"(?:too long|length):? ?\(?(?:length )?(\d{1,9})[^\d]{1,80}?(\d{1,9})", "tokens most"),
        (r"token limit: (\d{1,9})[^\d]{1,30}(\d{1,9})", "most tokens"),
        (r"length is (\d{1,9}) while limit is (\d{1,9})", "tokens most"),
        (r"must have less than (\d{1,9}) tokens\. given: (\d{1,9})", "most tokens"),
        (r"limit (\d{1,9}), requested (\d{1,9})", "most tokens"),
        (r"(?:maximum context length|context window|range of input length)[^\d]{1,60}(?:1, ?)?(\d{1,9})", "most"),
    )
)
#: words about something that a server does not support
_UNSUPPORTED: Final = re.compile(
    r"un-?supported|(?:not|n't|never|no longer) (?:\w+ )?(?:support|accept|available|enabled|implemented|recogni)"
    r"|(?:no|without) support for|not support|unrecogni[sz]ed"
    r"|(?:unknown|unexpected) (?:parameter|field|name|variant|role|argument|key|keyword|property)"
    r"|extra inputs|only supports?\b|only supported|requires --enable|must alternate|is deprecated for"
    r"|additional properties",
    re.IGNORECASE,
)
#: values that are wrong for every model, and texts that a policy refuses
_WRONG: Final = re.compile(
    r"must be (?:between|in|less|greater|at (?:most|least)|a|an|one|>|<|positive|non)|invalid (?:value|type|schema)"
    r"|expected (?:a value|an? )|input should be|out of range|malformed|not valid under|is required|missing"
    r"|policy|policies|safety|moderation",
    re.IGNORECASE,
)
#: words about a value, or about a parameter in the company of others
_VALUE: Final = re.compile(
    r"\bvalues?\b|does not support [\d'\"]|\b(?:when|if|unless|while|together|both)\b", re.IGNORECASE
)
_REPLACEMENT: Final = re.compile(r"use [`'\"]([a-z_]{2,40})[`'\"] instead", re.IGNORECASE)
_NO_MODEL: Final = re.compile(
    r"model[^.]{0,120}(?:not exist|not found|decommissioned|deprecated and|is not available|no longer available)"
    r"|invalid model\b|not a valid model|unknown model|no such model",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Facts from a server's refusal."""

    inability: Inability | None = None
    #: tokens of the prompt; None if the server does not name them
    tokens: int | None = None
    #: most tokens: of the model's context ("context"), or of an answer ("limit"); None if the server does not name them
    most_tokens: int | None = None
    #: name of the parameter that the server wants in place of the refused one
    replacement: str | None = None


def read_refusal(status: int, *, code: str | None, message: str) -> Refusal:
    """Read a refusal. status: HTTP status. code: the server's own code. message: the server's words."""
    if status not in _STATUSES:
        return Refusal()
    text = message[:_READ]
    if code in MODEL_CODES:
        return Refusal(inability="model")
    fits = _tokens_left_for_answer(text)
    if fits is not None:
        return Refusal(inability="limit", most_tokens=fits)
    if code in CONTEXT_CODES or _CONTEXT.search(text):
        tokens, most = _context_numbers(text)
        return Refusal(inability="context", tokens=tokens, most_tokens=most)
    if status == 413:
        return Refusal(inability="form")
    most = _largest_limit(text)
    if most is not None:
        return Refusal(inability="limit", most_tokens=most)
    return _read_inability(text, code=code)


def is_unsupported_parameter(message: str, *, code: str | None) -> bool:
    """Whether the server does not support a parameter at all: its value and the other parameters are not at fault."""
    if code == "unsupported_value":
        return False
    text = message[:_READ]
    is_about_value = _VALUE.search(text) or _WRONG.search(text)
    return not is_about_value and (code in _PARAMETER_CODES or _UNSUPPORTED.search(text) is not None)


def too_long_message(*, tokens: int | None, most: int | None) -> str:
    """The message by which clients recognize that they must shorten the conversation (Claude Code reads both numbers).

    tokens: tokens of the prompt; may be an estimate. most: limit of the model; None if unknown
    """
    if most is None:
        return "prompt is too long"
    least = most + 1  # the prompt is too long, so a smaller estimate is wrong
    return f"prompt is too long: {max(tokens or 0, least)} tokens > {most} maximum"


def named_field(names: Collection[str], *, param: str | None, message: str) -> str | None:
    """The field of a request that a refusal names: `param`, or the first name in its words; None if there is none."""
    first = (param or "").split(".")[0].split("[")[0]
    if first in names:
        return first
    words = re.findall(r"\w+", message[:_READ])
    return next((word for word in words if word in names), None)


def _tokens_left_for_answer(text: str) -> int | None:
    """The tokens that the prompt leaves for the answer.

    None if the message does not name the prompt's tokens and the context window, or if less than _LEAST_ANSWER is left.
    """
    by_sum, difference = _SUM.search(text), _DIFFERENCE.search(text)
    if by_sum is not None:
        left = int(by_sum[3]) - int(by_sum[1])
    elif difference is not None:
        left = int(difference[1]) - int(difference[2])
    else:
        in_messages, window = _IN_MESSAGES.search(text), re.search(r"maximum context length (?:is|of) (\d{1,9})", text)
        if in_messages is None or window is None:
            return None
        left = int(window[1]) - int(in_messages[1])
    return left if left >= _LEAST_ANSWER else None


def _largest_limit(text: str) -> int | None:
    if not _LIMIT.search(text):
        return None
    below = _BELOW.search(text)
    if below is not None:
        return int(below[1]) - 1
    found = next(filter(None, (pattern.search(text) for pattern in _MOST)), None)
    return int(found[1]) if found is not None and int(found[1]) > 1 else None


def _context_numbers(text: str) -> tuple[int | None, int | None]:
    """Returns (tokens of the prompt, maximum of the model), as far as the text names them."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    for pattern, order in _NUMBERS:
        match = pattern.search(text)
        if match is not None:
            numbers = dict(zip(order.split(), map(int, match.groups()), strict=True))
            tokens, most = numbers.get("tokens"), numbers["most"]
            return (tokens if tokens is not None and tokens > most else None), most
    return None, None


def _read_inability(text: str, *, code: str | None) -> Refusal:
    if code not in _PARAMETER_CODES:
        if _NO_MODEL.search(text):
            return Refusal(inability="model")
        if _WRONG.search(text) or not _UNSUPPORTED.search(text):
            return Refusal()
    replacement = _REPLACEMENT.search(text)
    return Refusal(inability="parameter", replacement=replacement and replacement[1])
