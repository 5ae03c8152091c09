"""Chunks of a completion, as server-sent events in the order that all clients of OpenAI's interface read.

The role, the pieces of the text, the end with its citations, the usage if it was asked for, [DONE]. No event has a
name: clients would take it for a piece.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

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
from ragbandit.shared.types import Decision, Outcome, StatusNote, TextPiece

#: the last event of every stream
DONE: Final = b"data: [DONE]\n\n"


class ChatStream:
    """The chunks of the answer to a decision, each as the bytes of an event. base: URL of this service.

    include_usage: the request asked for a chunk of it; then every other one says that it is not that. open_webui: the
    client shows what the arm does, and gets the sources with their texts instead of citations.
    """

    def __init__(self, decision: Decision, *, include_usage: bool, base: str, open_webui: bool) -> None:
        self._head: dict[str, Any] = {
            "id": f"{ID_PREFIX}{decision.id}",
            "object": "chat.completion.chunk",
            "created": int(decision.made_at),
            "model": model_name(decision),
            "system_fingerprint": fingerprint(decision),
        }
        self._include_usage = include_usage
        self._decision, self._base, self._open_webui = decision, base, open_webui
        self._shown: str | None = None

    def begin(self) -> list[bytes]:
        """The first events, before there is an answer."""
        return [self._chunk({"role": "assistant", "content": ""})]

    def of(self, event: TextPiece | StatusNote | None) -> list[bytes]:
        """The events for this one of the answer; None: nothing has come for a while."""
        if event is None:
            return [PING]
        if isinstance(event, TextPiece):
            return [*self._settled(), self._chunk({"content": event.text})]
        if not self._open_webui:
            return []
        self._shown = event.text
        return [self._status(event.text, done=False)]

    def end(self, outcome: Outcome, *, saved: float | None) -> list[bytes]:
        """The last events of an answer that came."""
        urls = urls_of(outcome, base=self._base)
        sources = _sources(outcome, urls=urls) if self._open_webui else []
        delta: dict[str, Any] = {}
        if urls and not self._open_webui:
            delta["annotations"] = annotations_of(outcome, urls=urls)
        facts = {"ragbandit": facts_of(self._decision, outcome, urls=urls), **citations_of(outcome, urls=urls)}
        ends = [self._chunk(delta, finish=finish_of(outcome), more=facts)]
        if self._include_usage:
            ends.append(self._event(usage=usage_of(outcome.cost, saved=saved)))
        return [*self._settled(), *(self._event(**self._no_usage(), event=each) for each in sources), *ends, DONE]

    def failure(self, error: Mapping[str, Any]) -> list[bytes]:
        """The last events of an answer that failed: clients raise what `error` says."""
        return [event_of({"error": error}, name=None), DONE]

    def _settled(self) -> list[bytes]:
        """Tell that what was shown last is done."""
        shown, self._shown = self._shown, None
        return [] if shown is None else [self._status(shown, done=True)]

    def _status(self, text: str, *, done: bool) -> bytes:
        """What Open WebUI shows above the answer while it is made; other clients take it for an empty chunk."""
        status = {"type": "status", "data": {"description": text, "done": done}}
        return self._event(**self._no_usage(), event=status)

    def _chunk(self, delta: Mapping[str, Any], *, finish: str | None = None, more: Mapping[str, Any] = {}) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return event_of({**self._head, "choices": [choice], **self._no_usage(), **more}, name=None)

    def _event(self, **more: Any) -> bytes:
        return event_of({**self._head, "choices": [], **more}, name=None)

    def _no_usage(self) -> dict[str, None]:
        return {"usage": None} if self._include_usage else {}


def _sources(outcome: Outcome, *, urls: Sequence[str]) -> list[dict[str, Any]]:
    """The passages that the answer saw, as Open WebUI lists them with their text. urls: of each."""
    return [
        {
            "type": "source",
            "data": {
                "source": {"name": source.title or source.id, "url": url},
                "document": [source.text],
                "metadata": [{"source": url, "name": source.title or source.id}],
                **({} if source.score is None else {"distances": [source.score]}),
            },
        }
        for source, url in zip(outcome.sources, urls, strict=True)
    ]
