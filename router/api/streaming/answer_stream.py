"""Answer stream: a reply to /v1/answer as server-sent events, while the arm writes.

The events `decision`, `status`, `text`, and last `outcome` or `error`; comments while there is nothing to say.
"""

import json
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from ragbandit.router.api.dependencies import CallerGone, router_of
from ragbandit.router.api.schemas.replies import answer_json, headers, pending_json, route_json
from ragbandit.router.api.schemas.responses import error_json, plain
from ragbandit.router.api.streaming.answer_events import answer_events
from ragbandit.router.api.streaming.event_stream import PING, EventStream, with_pauses
from ragbandit.router.errors import RagBanditError
from ragbandit.router.types import Decision, Outcome, StatusNote, TextPiece

__all__ = ["streamed_answer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    request: Request
    decision: Decision
    waiting: "Future[Outcome]"
    #: from the request to the decision
    seconds: float
    limit_s: float


def streamed_answer(
    request: Request, decision: Decision, waiting: "Future[Outcome]", *, seconds: float, limit_s: float
) -> Response:
    """The events of this decision's answer. After limit_s seconds without an outcome the last says "pending"."""
    asked = _Asked(request=request, decision=decision, waiting=waiting, seconds=seconds, limit_s=limit_s)
    return EventStream(_events(asked), headers=headers(decision))


async def _events(asked: _Asked) -> AsyncIterator[bytes]:
    decision = asked.decision
    pending = pending_json(decision, seconds=asked.seconds)
    events = answer_events(asked.request, decision, asked.waiting, limit_s=asked.limit_s)
    try:
        yield _event("decision", route_json(decision, seconds=asked.seconds))
        last: bytes = _event("outcome", pending)
        async with aclosing(with_pauses(events)) as timed:  # type: ignore[type-var] # a generator
            async for event in timed:
                match event:
                    case TextPiece(text=text):
                        yield _event("text", {"text": text})
                    case StatusNote(text=text):
                        yield _event("status", {"text": text})
                    case Outcome():
                        last = _event("outcome", answer_json(decision, event, seconds=asked.seconds))
                    case None:
                        yield PING
        yield last
    except CallerGone:
        return
    except TimeoutError:  # the service is about to end
        yield _event("outcome", pending)
    except RagBanditError as error:
        yield _event("error", {"decision_id": decision.id, **error_json(error)})
    finally:
        router_of(asked.request).forget(decision.id, asked.waiting)


def _event(name: str, value: Any) -> bytes:
    body = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"event: {name}\ndata: {body}\n\n".encode("utf-8", "replace")
