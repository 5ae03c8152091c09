"""OpenAI-compatible servers: options, connections, failures and chats.

The `openai` package gives address and headers, and aiohttp makes the connections; both are imported at the first call.
The generator "openai" adds streaming and prices (strategies.generators.openai_generator). `ChatServer` is for processes
without an event loop. It raises no errors, but returns the name of a failure: `Failure.name`, or "timeout" if the
deadline passed.
"""

import asyncio
import base64
import functools
import io
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
    import aiohttp

#: environment variable of the openai package, used if no base_url is set
BASE_URL_ENV: Final = "OPENAI_BASE_URL"
#: most characters of a server's message that are passed on
_MESSAGE: Final = 500
#: OpenAI's code, and llama.cpp's type, for a prompt beyond the model's context; other servers only describe it
_TOO_LONG: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_TOO_LONG_WORDS: Final = re.compile(r"context (length|size|window)", re.IGNORECASE)
#: longest wait for the end of a body after its last value, seconds
_CLOSING_S: Final = 0.1
#: most bytes of an error's body that are read
_MOST_ERROR: Final = 1_000_000
#: seconds after which an idle connection is closed. Many servers close after 5, and would lose a request
_IDLE_S: Final = 4.0
#: bytes of a body above which aiohttp wants a file, which it sends in parts
_LARGE: Final = 1_000_000
#: most attempts of a chat after the first; longest random pause before the second attempt, and longest pause, seconds
_RETRIES: Final = 1
_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 8.0
# Shared, since `json.dumps` with options would make an encoder for every request.
_BODY: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class ModelServer:
    """Connections to a server, used on one event loop. aiohttp takes half the processor time of the openai package.

    connect_s, read_s: longest wait for a connection, and for the next part of a reply. None: no limit
    """

    def __init__(
        self, url: str, *, headers: Mapping[str, str], connect_s: float | None = None, read_s: float | None = None
    ) -> None:
        self._session: aiohttp.ClientSession | None = None
        import yarl

        self.url, self._headers = url, dict(headers)
        address = yarl.URL(url, encoded=True)
        if address.user is not None:  # credentials in the address are sent in place of the key
            credentials = base64.b64encode(f"{address.user}:{address.password or ''}".encode()).decode()
            self._headers["Authorization"] = f"Basic {credentials}"
        self._address = address.with_user(None)
        self._connect_s, self._read_s = connect_s, read_s

    def __del__(self) -> None:
        # Connections that nobody can use any more are closed. Else aiohttp would print a warning about each.
        if self._session is not None and self._session.connector is not None:
            self._session.connector._close()  # noqa: SLF001 - `close` is a coroutine

    async def post(self, body: bytes) -> "aiohttp.ClientResponse":
        """Send a JSON document. The body of the reply is not read yet; close the reply."""
        if self._session is None:
            self._session = self._new_session()
        return await self._session.post(self._address, data=body if len(body) < _LARGE else io.BytesIO(body))

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _new_session(self) -> "aiohttp.ClientSession":
        import aiohttp
        import httpx

        # Certificates are those of httpx: images often have none of their own.
        certificates = httpx.create_ssl_context() if self.url.startswith("https:") else True
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S, ssl=certificates),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s, sock_read=self._read_s),
            trust_env=True,
        )


class RefusedRequest(Exception):
    """The server replied with a status other than 2xx."""

    def __init__(self, response: "aiohttp.ClientResponse", body: bytes) -> None:
        self.response = response
        self.status_code = response.status
        self.body = body.decode("utf-8", "replace")
        with suppress(ValueError, RecursionError):
            self.body = json.loads(body)
        super().__init__(f"status {response.status}: {self.body}")


def connect(
    *,
    base_url: str | None,
    key: str | None,
    headers: Mapping[str, str],
    connect_s: float | None = None,
    read_s: float | None = None,
) -> ModelServer:
    """Prepare the connections to a server.

    base_url: None: $OPENAI_BASE_URL, else OpenAI; a query in the URL is sent with every request
    key: None: "none" is sent
    connect_s, read_s: see ModelServer
    """
    import openai

    key = key or "none"
    address, mark, query = (base_url or os.environ.get(BASE_URL_ENV) or "").partition("?")
    client = openai.AsyncOpenAI(base_url=address or None, api_key=key, default_headers=dict(headers))
    all_headers = {"Authorization": f"Bearer {key}", **client.default_headers}
    # Other values mark headers that are not sent.
    sent = {name: value for name, value in all_headers.items() if isinstance(value, str)}
    url = f"{client.base_url}chat/completions{mark}{query}"
    return ModelServer(url, headers=sent, connect_s=connect_s, read_s=read_s)


async def reply_values(server: ModelServer, fields: Mapping[str, Any]) -> AsyncIterator[Any]:
    """Send a chat and yield the JSON values of the reply, see EventReader.

    Close the iterator (contextlib.aclosing), which closes the connection. Raises BrokenReply, RefusedRequest and
    aiohttp's errors.
    """
    reply = await server.post(_BODY.encode(fields).encode())
    is_success, reader = 200 <= reply.status < 300, EventReader()
    try:
        chunks = _chunks(reply)
        refusal = b""
        async for data in chunks:
            if not is_success:
                refusal = (refusal + data)[:_MOST_ERROR]
                continue
            for value in reader.feed(data):
                yield value
                if value == DONE:
                    await _drain(chunks)
                    return
        if not is_success:
            raise RefusedRequest(reply, refusal)
        for value in reader.end():
            yield value
    finally:
        reply.close()


async def _chunks(reply: "aiohttp.ClientResponse") -> AsyncIterator[bytes]:
    """The body as it arrives. What arrived before an error is yielded before the error is raised."""
    import aiohttp

    try:
        async for data in reply.content.iter_any():
            yield data
    except aiohttp.ClientError:
        # If a connection breaks with the last bytes, aiohttp raises the error in place of these bytes.
        yield reply.content._read_nowait(-1)  # noqa: SLF001 - `read_nowait` raises the error, too
        raise


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Wait shortly for the end of a body, since its connection can then be used again."""
    with suppress(Exception):
        async with asyncio.timeout(_CLOSING_S):
            async for _ in chunks:
                pass


def is_too_long(error: Exception, *, failure: Failure) -> bool:
    """Whether the prompt and its answer exceed the model's context. failure: `failure_of_error(error)`."""
    has_words = _TOO_LONG_WORDS.search(str(error)) is not None
    return failure.status == 400 and (failure.code in _TOO_LONG or has_words)


def cause_of(error: Exception, *, address: str, secrets: Iterable[str]) -> str:
    """Describe an error by its text, cut to _MESSAGE characters. secrets: removed by `without_keys`."""
    failure = failure_of_error(error)
    text = str(error)
    begin = f"the reply cannot be read: {type(error).__name__}: "
    if isinstance(error, BrokenReply):
        begin = ""
    elif failure.status is not None:
        begin, text = f"status {failure.status}: ", server_message(getattr(error, "body", None))
    elif failure.kind in ("unreachable", "broken"):
        begin, text = f"{address} cannot be reached, or hung up: ", str(error.__cause__ or error)
    elif failure.kind == "timeout":
        begin, text = "it was silent or slow for longer than allowed", ""
    # Secrets are removed before the text is cut, since half a secret would not be recognized.
    return f"{begin}{without_keys(text, secrets=secrets)[:_MESSAGE]}".removesuffix(": ")


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatReply:
    """The model's text, or the failure of one chat."""

    text: str = ""
    #: name of the failure; None if the server answered
    failed: str | None = None
    #: OpenAI's finish reason, for example "stop" or "length"
    finish: str | None = None
    #: token counts; None if the server did not report them
    tokens: Tokens | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatServer:
    """An OpenAI-compatible server."""

    #: None: $OPENAI_BASE_URL, else OpenAI
    base_url: str | None
    #: environment variable with the API key
    api_key_env: str
    headers: Mapping[str, str] = field(default_factory=dict)

    async def complete(self, fields: Mapping[str, Any]) -> ChatReply:
        """Complete a chat in at most two attempts. Call it on `event_loop`, with a deadline. fields: the request."""
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
            except Exception as error:  # an error of this server must not fail the caller's question
                failure = failure_of_error(error)
            asked_s = failure.retry_after_s or 0.0
            pause = pause_before_retry(attempt, base_s=_PAUSE_S, longest_s=_LONGEST_PAUSE_S, asked_s=asked_s)
            if attempt > _RETRIES or pause is None or not failure.may_pass:
                return ChatReply(failed=failure.name)
            await asyncio.sleep(pause)
        return ChatReply(text=reply.text, finish=reply.finish, tokens=tokens_of(reply.usage))


@functools.cache
def _server(
    loop: asyncio.AbstractEventLoop,  # noqa: ARG001 - a connection works only in its event loop
    base_url: str | None,
    key: str | None,
    headers: tuple[tuple[str, str], ...],
) -> ModelServer:
    """The process's connections to a server, without a time limit: the caller has a deadline."""
    return connect(base_url=base_url, key=key, headers=dict(headers))


_lock = threading.Lock()


def event_loop() -> asyncio.AbstractEventLoop:
    """The event loop for the chats of this process; the first call starts it."""
    with _lock:
        return _loop_of(os.getpid())  # a forked process needs its own, since threads do not survive a fork


@functools.cache
def _loop_of(process: int) -> asyncio.AbstractEventLoop:  # noqa: ARG001 - key of the cache
    """Start an event loop on a new thread, so that callers with and without a loop can use it."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="ragbandit-llm", daemon=True).start()
    return loop


# Every field is strict; pydantic would not read a dataclass that is strict as a whole from a mapping.
_Flag = Annotated[bool, Field(strict=True)]
_Seconds = Annotated[float, Field(strict=True, gt=0)]
_Dollars = Annotated[float, Field(strict=True, ge=0)]


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
@dataclass(frozen=True, kw_only=True, slots=True)
class OpenAiOptions:
    """Options of the generator "openai" for its OpenAI-compatible server."""

    #: address of the server; None: $OPENAI_BASE_URL, else OpenAI. A query (?api-version=...) is sent with every request
    base_url: str | None = None
    #: environment variable with the API key; your own servers get the key "none" if it is not set
    api_key_env: Annotated[str, Field(min_length=1)] = "OPENAI_API_KEY"
    #: headers sent with every request
    headers: Mapping[str, str] = field(default_factory=dict)
    #: request the reply as an event stream; false: the answer comes in one piece, and is lost at a deadline
    stream: _Flag = True
    #: place of an answer's given beginning. "user": at the end of the user's message, with the request to continue it;
    #: if the answer repeats it, the repetition is removed. "assistant": in a last assistant message, for servers that
    #: continue such a message. "continue": the same, with the two fields by which vLLM and similar servers do so
    prefix: Literal["user", "assistant", "continue"] = "user"
    #: the server's name for the limit of completion tokens; newer models of OpenAI accept only max_completion_tokens
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    #: seed of every greedy request, for servers that sample reproducibly; None: no seed is sent
    seed: Annotated[int, Field(strict=True)] | None = None
    #: fields that are set in every request last; null removes a field, for example {"temperature": null}
    fields: Mapping[str, Any] = field(default_factory=dict)
    #: whether the server returns log-probabilities
    logprobs: _Flag = False
    #: longest silence within a reply, seconds
    read_s: _Seconds = 60.0
    #: longest silence before the first piece of an answer, seconds; the arm then fails without another attempt. None:
    #: read_s, and half of the question's time if another arm can answer and the reply is streamed
    first_piece_s: _Seconds | None = None
    #: most attempts after the first, made without a connection and after status 408, 409, 425, 429 or 5xx; 0 if another
    #: arm can answer (server.failover)
    retries: Annotated[int, Field(strict=True, ge=0, le=20)] = 4
    #: most simultaneous requests per worker
    concurrency: Annotated[int, Field(strict=True, ge=1)] = 16
    #: model -> dollars per million tokens, [input, output] or [input, output, cached_input, cache_write, reasoning]. It
    #: is for other models that the server may answer with, and for the configured model if `generator.token_prices` is
    #: not set. Without prices calls cost nothing
    token_prices: Mapping[str, Annotated[Sequence[_Dollars], Field(min_length=2, max_length=5)]] = field(
        default_factory=dict
    )
    #: most tokens that the server's chat template adds
    template_tokens: Annotated[int, Field(strict=True, ge=0)] = 64
    #: bytes of text that count as one token. With 1.0 no byte-level tokenizer makes more tokens than are counted; 3.0
    #: fits English text, but may count too few
    bytes_per_token: Annotated[float, Field(strict=True, ge=1)] = 1.0


#: parameters of a chat completion that arms of the class `model` pass on
PASSED_PARAMETERS: Final = frozenset(
    {
        *("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "response_format", "logprobs"),
        *("top_logprobs", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "max_tokens", "logit_bias"),
        *("max_completion_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty", "reasoning"),
        *("reasoning_effort", "thinking", "verbosity", "prediction", "prompt_cache_key", "chat_template_kwargs"),
    }
)
