"""Events of a response in pieces, in the order of the Open Responses specification.

created, in_progress; with the first piece the item and its part, then the pieces; at the end the citations, the text,
the part and the item as they are, the response; [DONE]. Every event is named by its type and numbered.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ragbandit.router.api.openai.chunks import DONE
from ragbandit.router.api.openai.responses.replies import item_id, message, response, text_part
from ragbandit.router.api.streaming import PING, event_of
from ragbandit.shared.types import Decision, Outcome, StatusNote, TextPiece


class ResponseStream:
    """The events of one response. base: URL of this service."""

    def __init__(self, decision: Decision, *, base: str) -> None:
        self._decision, self._base = decision, base
        self._number = 0
        #: pieces that were sent; None: the item has not begun
        self._text: str | None = None

    def begin(self) -> list[bytes]:
        """The first events, before there is an answer."""
        reply = response(self._decision, None, base=self._base)
        return [self._event("created", response=reply), self._event("in_progress", response=reply)]

    def of(self, event: TextPiece | StatusNote | None) -> list[bytes]:
        """The events for this one of the answer; None: nothing has come for a while."""
        if event is None:
            return [PING]
        if isinstance(event, StatusNote):
            return []
        begun = self._begun()
        self._text = (self._text or "") + event.text
        return [*begun, self._in_part("output_text.delta", delta=event.text, logprobs=[])]

    def end(self, outcome: Outcome, *, saved: float | None) -> list[bytes]:
        """The last events of an answer that came."""
        begun = self._begun()
        if outcome.answer is None:
            outcome = replace(outcome, answer=self._text)
        reply = response(self._decision, outcome, base=self._base, saved=saved)
        (item,) = reply["output"]
        (part,) = item["content"]
        cited = [
            self._in_part("output_text.annotation.added", annotation_index=index, annotation=annotation)
            for index, annotation in enumerate(part["annotations"])
        ]
        return [
            *begun,
            *cited,
            self._in_part("output_text.done", text=part["text"], logprobs=[]),
            self._in_part("content_part.done", part=part),
            self._event("output_item.done", output_index=0, item=item),
            *self._last(reply),
        ]

    def failure(self, error: Mapping[str, Any]) -> list[bytes]:
        """The last events of an answer that failed."""
        return self._last(response(self._decision, None, base=self._base, error=error))

    def _begun(self) -> list[bytes]:
        """The events before the first piece, once."""
        if self._text is not None:
            return []
        self._text = ""
        item = message(self._decision, None, base=self._base)
        return [
            self._event("output_item.added", output_index=0, item=item),
            self._in_part("content_part.added", part=text_part("")),
        ]

    def _last(self, reply: Mapping[str, Any]) -> list[bytes]:
        return [self._event(reply["status"], response=reply), DONE]

    def _in_part(self, kind: str, **fields: Any) -> bytes:
        where = {"item_id": item_id(self._decision), "output_index": 0, "content_index": 0}
        return self._event(kind, **where, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        name, number = f"response.{kind}", self._number
        self._number += 1
        return event_of({"type": name, "sequence_number": number, **fields}, name=name)
