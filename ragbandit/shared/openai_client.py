"""OpenAI-compatible servers: options, connections, what failures mean, and chats.

The `openai` package connects to them and is loaded with the first call. A generator streams and prices on top of this
(strategies.generators.openai_generator). A `ChatServer` serves processes without an event loop; it raises nothing, and
returns the name of a failure: `Failure.name`, or "timeout" if the deadline came first.
"""

import asyncio
import functools
import json
import os
import re
import threading
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, with_config

from ragbandit.shared.event_reader import DONE, BrokenReply, EventReader
from ragbandit.shared.failures import Failure, failure_of_error, server_message
from ragbandit.shared.model_replies import ModelReply
from ragbandit.shared.outbound import pause_before_retry
from ragbandit.shared.redaction import without_keys
from ragbandit.shared.token_usage import Tokens, tokens_of

if TYPE_CHECKING:
    import httpx
    import openai


#: the environment variable of the openai package, read if no base_url is set
BASE_URL_ENV: Final = "OPENAI_BASE_URL"
#: longest piece of a server's message that is passed on, in characters
_MESSAGE: Final = 500
#: OpenAI's code, and llama.cpp's type, of a prompt beyond the model's context; other servers only describe it
_TOO_LONG: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_TOO_LONG_WORDS: Final = re.compile(r"context (length|size|window)", re.IGNORECASE)
#: longest wait for the end of a body after its last value, seconds
_CLOSING_S: Final = 0.1
#: most bytes that are read of the body of an error
_MOST_ERROR: Final = 1_000_000
#: attempts of a chat after the first one; longest random pause before the second attempt, and longest pause, seconds
_RETRIES: Final = 1
_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 8.0
# Made once: `json.dumps` with options would make one for every request.
_BODY: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, slots=True)
class ModelServer:
    """The openai package's HTTP client, which keeps connections. Its `create` takes longer than the request itself."""

    http: "httpx.AsyncClient"
    url: str
    headers: Mapping[str, str]


class RefusedRequest(Exception):
    """The server replied with another status than 2xx."""

    def __init__(self, response: "httpx.Response", body: bytes) -> None:
        self.response, self.status_code, self.body = response, response.status_code, body.decode("utf-8", "replace")
        with suppress(ValueError, RecursionError):
            self.body = json.loads(body)
        super().__init__(f"status {response.status_code}: {self.body}")


def connect(
    *, base_url: str | None, key: str | None, headers: Mapping[str, str], timeout: "openai.Timeout | None" = None
) -> ModelServer:
    """Prepare the connections to a server.

    base_url: None is OPENAI_BASE_URL, or OpenAI's own; its query is sent with every request. key: None is sent as
    "none".
    """
    import openai

    key = key or "none"
    address, mark, query = (base_url or os.environ.get(BASE_URL_ENV) or "").partition("?")
    client = openai.AsyncOpenAI(base_url=address or None, api_key=key, default_headers=dict(headers), timeout=timeout)
    known = {"Authorization": f"Bearer {key}", **client.default_headers}
    sent = {name: value for name, value in known.items() if isinstance(value, str)}  # others mark absent headers
    return ModelServer(client._client, f"{client.base_url}chat/completions{mark}{query}", sent)  # noqa: SLF001


async def reply_values(server: ModelServer, fields: Mapping[str, Any]) -> AsyncIterator[Any]:
    """The JSON values of the reply to a chat, whole or in chunks: see EventReader.

    Close the iterator (contextlib.aclosing): it closes the connection. Raises BrokenReply, RefusedRequest and httpx's
    errors.
    """
    body = _BODY.encode(fields).encode()
    request = server.http.build_request("POST", server.url, content=body, headers=server.headers)
    reply, reader = await server.http.send(request, stream=True), EventReader()
    try:
        chunks, refusal = reply.aiter_bytes(), b""
        async for data in chunks:
            if not reply.is_success:
                refusal = (refusal + data)[:_MOST_ERROR]
                continue
            for value in reader.feed(data):
                yield value
                if value == DONE:
                    await _drain(chunks)
                    return
        if not reply.is_success:
            raise RefusedRequest(reply, refusal)
        for value in reader.end():
            yield value
    finally:
        await reply.aclose()


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read the rest of a body for a moment: its connection is then free for the next request."""
    with suppress(Exception):
        async with asyncio.timeout(_CLOSING_S):
            async for _ in chunks:
                pass


def is_too_long(error: Exception, *, failure: Failure) -> bool:
    """True if the prompt and its answer exceed the model's context. failure: the failure of this error."""
    has_words = _TOO_LONG_WORDS.search(str(error)) is not None
    return failure.status == 400 and (failure.code in _TOO_LONG or has_words)


def cause_of(error: Exception, *, address: str, secrets: Iterable[str]) -> str:
    """The error in words, shortened and without secrets (see without_keys). address: the server's, for a message."""
    failure, text = failure_of_error(error), str(error)
    begin = f"the reply cannot be read: {type(error).__name__}: "
    if isinstance(error, BrokenReply):
        begin = ""
    elif failure.status is not None:
        begin, text = f"status {failure.status}: ", server_message(getattr(error, "body", None))
    elif failure.kind in ("unreachable", "broken"):
        begin, text = f"{address} cannot be reached, or hung up: ", str(error.__cause__ or error)
    elif failure.kind == "timeout":
        begin, text = "it was silent or slow for longer than allowed", ""
    # Secrets are removed before the cut: half a secret could not be recognized any more.
    return f"{begin}{without_keys(text, secrets=secrets)[:_MESSAGE]}".removesuffix(": ")


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatReply:
    """The model's text, or the failure of one chat."""

    text: str = ""
    #: name of the failure; None if the server answered
    failed: str | None = None
    #: OpenAI's reason for the end of the text: "stop", "length"
    finish: str | None = None
    #: None if the server did not report them
    tokens: Tokens | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatServer:
    """An OpenAI-compatible server.

    base_url: None is OPENAI_BASE_URL, or OpenAI's own. api_key_env: environment variable of the key.
    """

    base_url: str | None
    api_key_env: str
    headers: Mapping[str, str] = field(default_factory=dict)

    async def complete(self, fields: Mapping[str, Any]) -> ChatReply:
        """Complete a chat with these fields, in two attempts at most. Call it on `event_loop`, with a deadline."""
        headers = tuple(sorted(self.headers.items()))
        for attempt in count(1):
            reply = ModelReply()
            try:
                server = _server(asyncio.get_running_loop(), self.base_url, os.environ.get(self.api_key_env), headers)
                async with aclosing(reply_values(server, fields)) as values:  # type: ignore[type-var] # a generator
                    async for value in values:
                        reply.take(value)
                reply.end()
                break
            except Exception as error:  # no fault of this server may fail the caller's question
                failure = failure_of_error(error)
            asked_s = failure.retry_after_s or 0.0
            pause = pause_before_retry(attempt, base_s=_PAUSE_S, longest_s=_LONGEST_PAUSE_S, asked_s=asked_s)
            if attempt > _RETRIES or pause is None or not failure.may_pass:
                return ChatReply(failed=failure.name)
            await asyncio.sleep(pause)
        return ChatReply(text=reply.text, finish=reply.finish, tokens=tokens_of(reply.usage))


@functools.cache
def _server(
    loop: asyncio.AbstractEventLoop,  # noqa: ARG001 - connections belong to one
    base_url: str | None,
    key: str | None,
    headers: tuple[tuple[str, str], ...],
) -> ModelServer:
    """The process's connections to a server. The deadline is the caller's."""
    return connect(base_url=base_url, key=key, headers=dict(headers))


_lock = threading.Lock()


def event_loop() -> asyncio.AbstractEventLoop:
    """The event loop on which this process chats; it is made with the first call."""
    with _lock:
        return _loop_of(os.getpid())  # after a fork the thread is gone


@functools.cache
def _loop_of(process: int) -> asyncio.AbstractEventLoop:  # noqa: ARG001 - there is one of each
    """An event loop on another thread: the caller may have a loop or none."""
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
    #: the server's name of the limit of tokens to write; newer models of OpenAI take only the second name
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    #: sent with every greedy request, for servers that sample reproducibly; None if no seed is sent
    seed: Annotated[int, Field(strict=True)] | None = None
    #: put into every request last; null takes a field out, for example {"temperature": null}
    fields: Mapping[str, Any] = field(default_factory=dict)
    #: the server returns log-probabilities
    logprobs: _Flag = False
    #: longest silence within a reply
    read_s: _Seconds = 60.0
    #: longest silence before the first piece of an answer, seconds; the arm then fails, and is not asked again. None:
    #: read_s, and half of the question's time if another arm can answer and the reply is streamed
    first_piece_s: _Seconds | None = None
    #: attempts after the first if there is no connection, or status 408, 409, 425, 429 or 5xx; none if another
    #: arm can answer (server.failover)
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


#: parameters of a chat completion that a model arm passes on
PASSED_PARAMETERS: Final = frozenset(
    {
        *("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "response_format", "logprobs"),
        *("top_logprobs", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "max_tokens", "logit_bias"),
        *("max_completion_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty", "reasoning"),
        *("reasoning_effort", "thinking", "verbosity", "prediction", "prompt_cache_key", "chat_template_kwargs"),
    }
)
