"""OpenAI-compatible servers: connections, what their failures mean, and chats; the one client of all that ask them.

The `openai` package speaks to them and is loaded with the first call. A generator streams and prices on top of this
(strategies.generators.openai_generator). A `ChatServer` is asked
from a process without an event loop of its own, and raises nothing for a server's sake: what goes wrong has a name.

    timeout        the deadline came first
    connection     the server cannot be reached, or hung up
    http_429 ...   it answered with this status, and again after one retry if that could help
    malformed      it answered with something that is no completion
"""

import asyncio
import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ragbandit.shared.redaction import without_keys

if TYPE_CHECKING:
    import openai

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
    """A client. base_url: None is OPENAI_BASE_URL, or OpenAI's own. key: None is sent as "none"."""
    import openai

    return openai.AsyncOpenAI(
        base_url=base_url, api_key=key or "none", default_headers=dict(headers), max_retries=retries, timeout=timeout
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
    told = (getattr(details, name, None) for name in names)
    return next((count for count in told if isinstance(count, int) and count >= 0), None)


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
        completion: Any = await self._client().chat.completions.create(**fields)
        choice, usage = completion.choices[0], completion.usage
        text = choice.message.content or ""
        if not isinstance(text, str):
            return ChatReply(failed="malformed")
        return ChatReply(
            text=text,
            finish=choice.finish_reason,
            tokens=Tokens.of(usage) if usage else None,
        )

    def _client(self) -> "openai.AsyncOpenAI":
        """The process's client for this server: connections outlive who asks for them."""
        clients, key = _running_loop().clients, os.environ.get(self.api_key_env) or "none"
        known = (self.base_url, key, tuple(sorted(self.headers.items())))
        if known not in clients:  # without a timeout of its own: the deadline is the caller's
            clients[known] = connect(base_url=self.base_url, key=key, headers=self.headers, retries=_RETRIES)
        return clients[known]


@dataclass(kw_only=True)
class _Loop:
    """The event loop of this process's chats, on a thread of its own: the caller may have a loop or none."""

    loop: asyncio.AbstractEventLoop
    thread: threading.Thread
    clients: "dict[tuple[str | None, str, tuple[tuple[str, str], ...]], openai.AsyncOpenAI]" = field(
        default_factory=dict
    )


_lock = threading.Lock()
_running: _Loop | None = None


def event_loop() -> asyncio.AbstractEventLoop:
    """The event loop on which this process chats; it is made with the first call."""
    return _running_loop().loop


def _running_loop() -> _Loop:
    global _running
    with _lock:
        if _running is None or not _running.thread.is_alive():  # after a fork the thread is gone
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="ragbandit-llm", daemon=True)
            thread.start()
            _running = _Loop(loop=loop, thread=thread)
        return _running
