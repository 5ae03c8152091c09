"""Chats with OpenAI-compatible servers from a process without an event loop of its own: one completion, or a failure.

The `openai` package speaks to them and is loaded with the first chat. Nothing here raises for a server's sake: whatever
goes wrong is a failure with a name.

    timeout        the deadline came first
    connection     the server cannot be reached, or hung up
    http_429 ...   it answered with this status, and again after one retry if that could help
    malformed      it answered with something that is no completion
"""

import asyncio
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ragbandit.router.retries import is_retryable, retry_after_s

if TYPE_CHECKING:
    import openai

__all__ = ["ChatReply", "ChatServer", "event_loop"]

_ATTEMPTS: Final = 2
#: before the second attempt, where the server names no time
_PAUSE_S: Final = 0.2


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
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


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

    async def complete(self, fields: Mapping[str, Any], *, give_up: float) -> ChatReply:
        """The completion that these fields of a request ask for. Call it on `event_loop`.

        give_up: a time of that loop; a second attempt is not begun where its pause would reach it. Who calls ends
        the first one there.
        """
        import openai

        failed = "connection"
        for attempt in range(_ATTEMPTS):
            try:
                return await self._once(fields)
            except openai.APIStatusError as error:
                failed, pause = f"http_{error.status_code}", _pause(error)
                retryable = is_retryable(error.status_code, code=error.code)
                late = asyncio.get_running_loop().time() + pause >= give_up
                if not retryable or late or attempt + 1 == _ATTEMPTS:
                    break
                await asyncio.sleep(pause)
            except openai.APITimeoutError:
                return ChatReply(failed="timeout")
            except openai.APIConnectionError:
                failed = "connection"
            except Exception:  # whatever a server sends must never cost a caller the answer
                return ChatReply(failed="malformed")
        return ChatReply(failed=failed)

    async def _once(self, fields: Mapping[str, Any]) -> ChatReply:
        completion: Any = await self._client().chat.completions.create(**fields)
        choice, usage = completion.choices[0], completion.usage
        text = choice.message.content or ""
        if not isinstance(text, str):
            return ChatReply(failed="malformed")
        return ChatReply(
            text=text,
            finish=choice.finish_reason,
            prompt_tokens=usage.prompt_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
        )

    def _client(self) -> "openai.AsyncOpenAI":
        """The process's client for this server: connections outlive who asks for them."""
        import openai

        clients, key = _running_loop().clients, os.environ.get(self.api_key_env) or "none"
        known = (self.base_url, key, tuple(sorted(self.headers.items())))
        if known not in clients:
            # No timeout and no retries of its own: the deadline is ours.
            clients[known] = openai.AsyncOpenAI(
                base_url=self.base_url, api_key=key, default_headers=dict(self.headers), max_retries=0, timeout=None
            )
        return clients[known]


def _pause(error: "openai.APIStatusError") -> float:
    """Seconds until the next attempt: those of the Retry-After header, or _PAUSE_S without one."""
    header = error.response.headers.get("retry-after")
    return _PAUSE_S if header is None else retry_after_s(header)


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
