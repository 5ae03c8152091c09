"""OpenAI-compatible servers: options, connections, what failures mean, chats, and the messages that servers stream.

The `openai` package speaks to them and is loaded with the first call. A generator streams and prices on top of this
(strategies.generators.openai_generator). A `ChatServer` is asked from a process without an event loop of its own, and
raises nothing for a server's sake: what goes wrong has a name.

    timeout        the deadline came first
    connection     the server cannot be reached, or hung up
    http_429 ...   it answered with this status, and again after one retry if that could help
    malformed      it answered with something that is no completion
"""

import asyncio
import functools
import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import parse_qsl

from pydantic import ConfigDict, Field, with_config

from ragbandit.shared.redaction import without_keys

if TYPE_CHECKING:
    import openai


#: the environment variable of the openai package, read if no base_url is set
BASE_URL_ENV: Final = "OPENAI_BASE_URL"
#: longest piece of a server's message that is passed on, in characters
_MESSAGE: Final = 200
#: OpenAI's code, and llama.cpp's type, of a prompt beyond the model's context; others have words alone
_TOO_LONG: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_TOO_LONG_WORDS: Final = re.compile(r"context (length|size|window)", re.IGNORECASE)
#: of a chat: attempts after the first
_RETRIES: Final = 1


class BrokenReply(Exception):
    """The reply is broken or incomplete."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy


def connect(
    *,
    base_url: str | None,
    key: str | None,
    headers: Mapping[str, str],
    timeout: "openai.Timeout | None" = None,
    retries: int = 0,
) -> "openai.AsyncOpenAI":
    """A client. base_url: None is OPENAI_BASE_URL, or OpenAI's own; its query is sent with every request, as Azure's
    deployments need it. key: None is sent as "none".
    """
    import openai

    address, _, query = (base_url or os.environ.get(BASE_URL_ENV) or "").partition("?")
    return openai.AsyncOpenAI(
        base_url=address or None,
        api_key=key or "none",
        default_headers=dict(headers),
        default_query=dict(parse_qsl(query, keep_blank_values=True)),
        max_retries=retries,
        timeout=timeout,
    )


def is_too_long(error: Exception) -> bool:
    """True if the server says that the prompt and its answer are more than the model takes."""
    if getattr(error, "status_code", None) != 400:
        return False
    named = (getattr(error, name, None) for name in ("code", "type"))
    return any(str(name) in _TOO_LONG for name in named) or _TOO_LONG_WORDS.search(str(error)) is not None


def is_unreachable(error: Exception) -> bool:
    """True if there was no connection, or it broke."""
    import openai

    if isinstance(error, openai.APITimeoutError):
        return type(error.__cause__).__name__ == "ConnectTimeout"  # of httpx, which goes by two names
    return isinstance(error, openai.APIConnectionError)


def retries_made(error: Exception) -> int:
    """Attempts that the package made after the first, before it gave up with this error."""
    request = getattr(error, "request", None)
    return int(request.headers.get("x-stainless-retry-count", 0)) if request is not None else 0


def cause_of(error: Exception, *, address: str, secrets: Iterable[str]) -> str:
    """The error in words, without the server's whole page, and without secrets.

    address: of the server, for a message. secrets: see without_keys.
    """
    import openai

    if isinstance(error, openai.APIStatusError):
        status = f"status {error.status_code}"
        message = error.message.removeprefix(f"Error code: {error.status_code}").removeprefix(" - ")
        return f"{status}: {_clipped(message, secrets=secrets)}" if message else status
    if is_unreachable(error):
        return f"{address} cannot be reached, or hung up: {_clipped(str(error.__cause__ or error), secrets=secrets)}"
    if isinstance(error, openai.APITimeoutError | TimeoutError):
        return "it was silent or slow for longer than allowed"
    if isinstance(error, BrokenReply):
        return _clipped(str(error), secrets=secrets)
    return f"the reply cannot be read: {type(error).__name__}: {_clipped(str(error), secrets=secrets)}"


def _clipped(text: str, *, secrets: Iterable[str]) -> str:
    """Without secrets first: the half of one that a cut would leave could not be found any more."""
    return without_keys(text, secrets=secrets)[:_MESSAGE]


def failure_name(error: Exception) -> str:
    """The failure in one word, for counters: see the module."""
    import openai

    if isinstance(error, openai.APIStatusError):
        return f"http_{error.status_code}"
    if isinstance(error, openai.APITimeoutError):
        return "timeout"
    return "connection" if isinstance(error, openai.APIConnectionError) else "malformed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Tokens read and written; what is known beside, of them."""

    read: int
    written: int
    #: of those read: out of the provider's cache of prompts, and written into it
    cached: int = 0
    cache_write: int = 0
    #: of those written: a reasoning model's thoughts; None: nobody tells
    reasoning: int | None = None

    @classmethod
    def of(cls, usage: Any) -> "Tokens":
        """Of the `usage` of an OpenAI-compatible reply; by Anthropic's names where a proxy passes them on."""
        read, written = int(usage.prompt_tokens), int(usage.completion_tokens or 0)
        details = getattr(usage, "prompt_tokens_details", None)
        cached = min(_first(details, "cached_tokens") or _first(usage, "cache_read_input_tokens") or 0, read)
        kept = _first(details, "cache_write_tokens", "cache_creation_tokens")
        kept = min(kept or _first(usage, "cache_creation_input_tokens") or 0, read - cached)
        thoughts = _first(getattr(usage, "completion_tokens_details", None), "reasoning_tokens")
        thoughts = thoughts if thoughts is None else min(thoughts, written)
        return cls(read=read, written=written, cached=cached, cache_write=kept, reasoning=thoughts)

    def dollars(self, prices: Sequence[float]) -> float:
        """What they cost. prices: dollars per million, input, output, then cached_input, cache_write and reasoning.

        One that is missing is that of input, or of output.
        """
        of_input, of_output, *rest = prices
        of_cached, of_write, of_thoughts = (*rest, *(of_input, of_input, of_output)[len(rest) :])
        thoughts = self.reasoning or 0
        plain = (self.read - self.cached - self.cache_write) * of_input + (self.written - thoughts) * of_output
        return (plain + self.cached * of_cached + self.cache_write * of_write + thoughts * of_thoughts) / 1e6


def _first(details: Any, *names: str) -> int | None:
    """The first of these counts that a server tells: a whole number from 0 on."""
    counts = (getattr(details, name, None) for name in names)
    return next((count for count in counts if isinstance(count, int) and count >= 0), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatReply:
    """What came of one chat."""

    #: the model's text; "" if it failed
    text: str = ""
    #: the name of the failure
    failed: str | None = None
    #: why the server ended the text, in its words: "stop", "length"
    finish: str | None = None
    #: by the server's count, where it tells it
    tokens: Tokens | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatServer:
    """An OpenAI-compatible server.

    base_url: None takes what the openai package takes, OPENAI_BASE_URL or OpenAI's own.
    api_key_env: the environment variable that holds the key; servers that want none get "none".
    headers: sent with every request.
    """

    base_url: str | None
    api_key_env: str
    headers: Mapping[str, str] = field(default_factory=dict)

    async def complete(self, fields: Mapping[str, Any]) -> ChatReply:
        """The completion that these fields of a request ask for. Call it on `event_loop`, and end it in time.

        The package asks once more where that could help.
        """
        try:
            return await self._once(fields)
        except Exception as error:  # whatever a server sends must never cost a caller the answer
            return ChatReply(failed=failure_name(error))

    async def _once(self, fields: Mapping[str, Any]) -> ChatReply:
        loop, headers = asyncio.get_running_loop(), tuple(sorted(self.headers.items()))
        client = _client(loop, self.base_url, os.environ.get(self.api_key_env), headers)
        completion: Any = await client.chat.completions.create(**fields)
        choice, usage = completion.choices[0], completion.usage
        text = choice.message.content or ""
        if not isinstance(text, str):
            return ChatReply(failed="malformed")
        return ChatReply(text=text, finish=choice.finish_reason, tokens=Tokens.of(usage) if usage else None)


@functools.cache
def _client(
    loop: asyncio.AbstractEventLoop,  # noqa: ARG001 - connections belong to one
    base_url: str | None,
    key: str | None,
    headers: tuple[tuple[str, str], ...],
) -> "openai.AsyncOpenAI":
    """The process's client for a server: connections outlive who asks for them."""
    # Without a timeout of its own: the deadline is the caller's.
    return connect(base_url=base_url, key=key, headers=dict(headers), retries=_RETRIES)


_lock = threading.Lock()


def event_loop() -> asyncio.AbstractEventLoop:
    """The event loop on which this process chats; it is made with the first call."""
    with _lock:
        return _loop_of(os.getpid())  # after a fork the thread is gone


@functools.cache
def _loop_of(process: int) -> asyncio.AbstractEventLoop:  # noqa: ARG001 - there is one of each
    """An event loop on a thread of its own: the caller may have a loop or none."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="ragbandit-llm", daemon=True).start()
    return loop


# Strict field by field: a dataclass that is strict as a whole is not read from a mapping.
_Flag = Annotated[bool, Field(strict=True)]
_Seconds = Annotated[float, Field(strict=True, gt=0)]
_Dollars = Annotated[float, Field(strict=True, ge=0)]


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
@dataclass(frozen=True, kw_only=True, slots=True)
class OpenAiOptions:
    """The OpenAI-compatible server of the generator "openai"."""

    #: None: OPENAI_BASE_URL or OpenAI's own. A query in it (?api-version=...) is sent with every request
    base_url: str | None = None
    #: the environment variable that holds the key; servers of your own that want none get "none"
    api_key_env: Annotated[str, Field(min_length=1)] = "OPENAI_API_KEY"
    #: sent with every request
    headers: Mapping[str, str] = field(default_factory=dict)
    #: ask for the reply as an event stream; false: the answer comes in one piece, and a deadline leaves nothing of it
    stream: _Flag = True
    #: where the first words of an answer go in a chat. "user": the end of the user's turn, with the words to go on from
    #: it; an answer that repeats it loses it. "assistant": a last assistant message, for servers that go on from it by
    #: themselves. "continue": the same, with the two fields by which vLLM and its kin are told to
    prefix: Literal["user", "assistant", "continue"] = "user"
    #: how the server calls the limit of tokens to write; newer models of OpenAI take the second name only
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    #: sent with every greedy request, for servers that sample reproducibly; None: none is sent
    seed: Annotated[int, Field(strict=True)] | None = None
    #: put into every request last; null takes a field out, for example {"temperature": null}
    fields: Mapping[str, Any] = field(default_factory=dict)
    #: the server returns log-probabilities
    logprobs: _Flag = False
    #: longest silence within a reply
    read_s: _Seconds = 60.0
    #: attempts after the first, by the openai package: where there is no connection, or status 408, 409, 429 or 5xx
    retries: Annotated[int, Field(strict=True, ge=0, le=20)] = 4
    #: requests under way at once, per worker
    concurrency: Annotated[int, Field(strict=True, ge=1)] = 16
    #: model -> dollars per million tokens, [input, output] or [input, output, cached_input, cache_write, reasoning]: of
    #: other models that the server answers with, and, without `generator.token_prices`, of the model itself; empty:
    #: calls cost nothing
    token_prices: Mapping[str, Annotated[Sequence[_Dollars], Field(min_length=2, max_length=5)]] = field(
        default_factory=dict
    )
    #: tokens that the server's chat template adds at most
    template_tokens: Annotated[int, Field(strict=True, ge=0)] = 64
    #: bytes of text that count as one token; 1.0 bounds every byte-level tokenizer, 3.0 suits English text and bounds
    #: nothing
    bytes_per_token: Annotated[float, Field(strict=True, ge=1)] = 1.0


#: parameters of a chat completion that a model arm passes on; of all others the service knows its own, or none
PASSED_PARAMETERS: Final = frozenset(
    {
        *("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "response_format", "logprobs"),
        *("top_logprobs", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "max_tokens", "logit_bias"),
        *("max_completion_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty", "reasoning"),
        *("reasoning_effort", "thinking", "verbosity", "prediction", "prompt_cache_key", "chat_template_kwargs"),
    }
)
#: of a message: fields that are told apart, or come by their own way
_OWN: Final = ("role", "content")
LOGPROBS: Final = "logprobs"


def delta_of(choice: Mapping[str, Any]) -> dict[str, Any]:
    """What a choice of a chunk, or of a whole completion, has beside its content; {} for nothing."""
    part = choice.get("delta") or choice.get("message") or {}
    delta = {name: value for name, value in part.items() if name not in _OWN and value not in (None, [], {})}
    if "tool_calls" in delta:  # a whole message has them without places
        delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(delta["tool_calls"])]
    return {**delta, LOGPROBS: choice[LOGPROBS]} if choice.get(LOGPROBS) else delta


class MessageParts:
    """A message that grows by deltas."""

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}

    def add(self, delta: Mapping[str, Any]) -> None:
        """Take in the next delta."""
        _merge(self._parts, _by_place(delta))

    @property
    def whole(self) -> dict[str, Any]:
        """All that came, by OpenAI's names, tool calls in their order."""
        calls = [call for _, call in sorted(self._parts.get("tool_calls", {}).items())]
        return {**self._parts, **({"tool_calls": calls} if calls else {})}

    def rest(self, whole: Mapping[str, Any]) -> dict[str, Any] | None:
        """The delta that is missing to this whole, {} for none; None where what came is no beginning of it."""
        missing = _rest(self._parts, _by_place(whole))
        if missing is not None and "tool_calls" in missing:
            missing["tool_calls"] = [{"index": place, **left} for place, left in missing["tool_calls"].items()]
        return missing


def _by_place(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message, or a delta of one, with its tool calls by their places."""
    calls: dict[int, dict[str, Any]] = {}
    for place, call in enumerate(message.get("tool_calls", ())):
        known = calls.setdefault(int(call.get("index", place)), {})
        _merge(known, {name: value for name, value in call.items() if name != "index"})
    return {
        **{name: part for name, part in message.items() if name != "tool_calls"},
        **({"tool_calls": calls} if calls else {}),
    }


def _merge(known: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Continue what is known: texts and lists grow, but names and ids, which come once."""
    for name, value in part.items():
        before = known.get(name)
        if isinstance(before, dict) and isinstance(value, Mapping):
            _merge(before, value)
        elif (isinstance(before, str) and isinstance(value, str) and name not in ("id", "type", "name")) or (
            isinstance(before, list) and isinstance(value, list)
        ):
            known[name] = before + value  # type: ignore[operator] # both are of one kind
        elif value is not None:
            known[name] = dict(value) if isinstance(value, Mapping) else value


def _rest(known: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is missing of the whole; None: what is known is no beginning of it."""
    missing: dict[str, Any] = {}
    for name, value in whole.items():
        before = known.get(name)
        if before == value:
            continue
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            left = _rest(before, value)
            if left is None:
                return None
            missing |= {name: left} if left else {}
        elif before is None:
            missing[name] = value
        elif isinstance(before, str | list) and isinstance(value, str | list) and value[: len(before)] == before:
            missing[name] = value[len(before) :]
        else:
            return None
    return missing
