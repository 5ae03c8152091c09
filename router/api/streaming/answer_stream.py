"""Answer stream: a reply to /v1/answer as server-sent events, while the arm writes.

The events `decision`, `status`, `text`, and last `outcome` or `error`; comments while there is nothing to say.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing

from fastapi.responses import Response

from ragbandit.router.api.dependencies import CallerGone, router_of
from ragbandit.router.api.schemas.replies import answer_json, headers, pending_json, route_json
from ragbandit.router.api.schemas.responses import error_json
from ragbandit.router.api.streaming.answer_events import PendingAnswer
from ragbandit.router.api.streaming.event_stream import PING, EventStream, event_of, with_pauses
from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.types import Outcome, StatusNote, TextPiece


def streamed_answer(answer: PendingAnswer, *, seconds: float) -> Response:
    """The events of an answer. After its limit_s without an outcome the last says "pending".

    seconds: from the request to the decision.
    """
    return EventStream(_events(answer, seconds=seconds), headers=headers(answer.decision))


async def _events(answer: PendingAnswer, *, seconds: float) -> AsyncIterator[bytes]:
    decision = answer.decision
    pending = pending_json(decision, seconds=seconds)
    try:
        yield event_of(name="decision", value=route_json(decision, seconds=seconds))
        last: bytes = event_of(name="outcome", value=pending)
        async with aclosing(with_pauses(answer.events())) as events:  # type: ignore[type-var] # a generator
            async for event in events:
                match event:
                    case TextPiece(text=text):
                        yield event_of(name="text", value={"text": text})
                    case StatusNote(text=text):
                        yield event_of(name="status", value={"text": text})
                    case Outcome():
                        saved = router_of(answer.request).savings.of(event.cost)
                        last = event_of(
                            name="outcome", value=answer_json(decision, event, seconds=seconds, saved=saved)
                        )
                    case None:
                        yield PING
        yield last
    except CallerGone:
        return
    except TimeoutError:  # the service is about to end
        yield event_of(name="outcome", value=pending)
    except RagBanditError as error:
        yield event_of(name="error", value={"decision_id": decision.id, **error_json(error)})
    finally:
        answer.forget()
