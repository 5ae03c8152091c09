"""Chunks of a completion, as server-sent events in the order that all clients of OpenAI's interface read.

The role, the pieces of the text, the end with its citations, the usage if it was asked for, [DONE]. No event has a
name: clients would take it for a piece.
"""

from collections.abc import Mapping
from typing import Any, Final

from ragbandit.router.api.openai.open_webui import source_events, status_event
from ragbandit.router.api.openai.replies import (
    ID_PREFIX,
    annotations_of,
    citations_of,
    facts_of,
    fingerprint,
    finish_of,
    model_name,
    urls_of,
    usage_of,
)
from ragbandit.router.api.streaming import PING, event_of
from ragbandit.shared.types import Cost, Decision, Outcome, StatusNote, TextPiece

#: the last event of every stream
DONE: Final = b"data: [DONE]\n\n"


class Chunks:
    """Chunks of one completion, each as the bytes of an event.

    include_usage: the request asked for a chunk of it; then every other one says that it is not that.
    """

    def __init__(self, key: str, *, created: int, model: str, include_usage: bool, fingerprint: str | None) -> None:
        self._head: dict[str, Any] = {
            "id": key,
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }
        if fingerprint is not None:
            self._head["system_fingerprint"] = fingerprint
        self._include_usage = include_usage

    def role(self) -> bytes:
        """The first chunk."""
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, text: str) -> bytes:
        """The next piece of the answer."""
        return self._chunk({"content": text})

    def event(self, event: Mapping[str, Any]) -> bytes:
        """An event of Open WebUI; other clients take it for an empty chunk."""
        return event_of({**self._head, "choices": [], **self._no_usage(), "event": event}, name=None)

    def usage(self, cost: Cost, *, saved: float | None = None) -> list[bytes]:
        """The chunk of the usage, where it was asked for."""
        usage = usage_of(cost, saved=saved)
        return [event_of({**self._head, "choices": [], "usage": usage}, name=None)] if self._include_usage else []

    def whole(self, text: str) -> list[bytes]:
        """A stream of an answer that is there at once, and that no decision is behind."""
        return [self.role(), self.piece(text), self._chunk({}, finish="stop"), *self.usage(Cost()), DONE]

    def status(self, text: str, *, done: bool) -> bytes:
        """What Open WebUI shows while the answer is made."""
        return self.event(status_event(text, done=done))

    def _chunk(self, delta: Mapping[str, Any], *, finish: str | None = None, more: Mapping[str, Any] = {}) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return event_of({**self._head, "choices": [choice], **self._no_usage(), **more}, name=None)

    def _no_usage(self) -> dict[str, None]:
        return {"usage": None} if self._include_usage else {}


class ChatStream(Chunks):
    """The chunks of the answer to a decision. base: URL of this service.

    open_webui: the client shows what the arm does, and gets the sources with their texts instead of citations.
    """

    def __init__(self, decision: Decision, *, include_usage: bool, base: str, open_webui: bool) -> None:
        super().__init__(
            f"{ID_PREFIX}{decision.id}",
            created=int(decision.made_at),
            model=model_name(decision),
            include_usage=include_usage,
            fingerprint=fingerprint(decision),
        )
        self._decision, self._base, self._open_webui = decision, base, open_webui
        self._shown: str | None = None

    def begin(self) -> list[bytes]:
        """The first events, before there is an answer."""
        return [self.role()]

    def of(self, event: TextPiece | StatusNote | None) -> list[bytes]:
        """The events for this one of the answer; None: nothing has come for a while."""
        if event is None:
            return [PING]
        if isinstance(event, TextPiece):
            return [*self._settled(), self.piece(event.text)]
        if not self._open_webui:
            return []
        self._shown = event.text
        return [self.status(event.text, done=False)]

    def end(self, outcome: Outcome, *, saved: float | None) -> list[bytes]:
        """The last events of an answer that came."""
        urls = urls_of(outcome, base=self._base)
        sources = source_events(outcome, urls=urls) if self._open_webui else []
        delta: dict[str, Any] = {}
        if urls and not self._open_webui:
            delta["annotations"] = annotations_of(outcome, urls=urls)
        facts = {"ragbandit": facts_of(self._decision, outcome, urls=urls), **citations_of(outcome, urls=urls)}
        finish = self._chunk(delta, finish=finish_of(outcome), more=facts)
        return [*self._settled(), *map(self.event, sources), finish, *self.usage(outcome.cost, saved=saved), DONE]

    def failure(self, error: Mapping[str, Any]) -> list[bytes]:
        """The last events of an answer that failed: clients raise what `error` says."""
        return [event_of({"error": error}, name=None), DONE]

    def _settled(self) -> list[bytes]:
        """Tell that what was shown last is done."""
        shown, self._shown = self._shown, None
        return [] if shown is None else [self.status(shown, done=True)]
