"""A response in pieces: the events of Open Responses for an answer while it is written."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from ragbandit.router.api.endpoints.streaming import PING, event_of
from ragbandit.router.api.openai.chats import CALL
from ragbandit.router.api.openai.replies import DONE
from ragbandit.router.api.openai.responses import (
    call_item,
    item_id,
    item_part,
    message,
    reasoning_item,
    reasoning_of,
    response,
)
from ragbandit.shared.types import Decision, DeltaPiece, Outcome, StatusNote, TextPiece


class ResponseStream:
    """The events of one response. base: URL of this service."""

    def __init__(self, decision: Decision, *, base: str) -> None:
        self.decision, self._base = decision, base
        self._number = 0
        #: text that was sent, by the type of its part, in the order in which the parts began
        self._texts: dict[str, str] = {}
        #: ids of the items that have begun; and index of a call -> the id of its item
        self._items: list[str] = []
        self._calls: dict[int, str] = {}

    @property
    def has_begun(self) -> bool:
        """Whether a piece of the answer was sent."""
        return bool(self._items)

    def _created(self) -> list[bytes]:
        """The first events, once: they name the decision that answers."""
        if self._number:
            return []
        reply = response(self.decision, None, base=self._base)
        return [self._event("created", response=reply), self._event("in_progress", response=reply)]

    def of(self, event: TextPiece | DeltaPiece | StatusNote | None) -> list[bytes]:
        """The events for this one of the answer; None: nothing has come for a while."""
        if event is None:
            return [PING]
        if isinstance(event, StatusNote):
            return []
        if isinstance(event, TextPiece):
            return self._grown("output_text", event.text)
        thoughts, refusal, calls = reasoning_of(event.delta), event.delta.get("refusal"), event.delta.get("tool_calls")
        return [
            *(self._grown("reasoning_text", thoughts) if thoughts else ()),
            *(self._grown("refusal", str(refusal)) if refusal else ()),
            *(part for call in cast(Any, calls or ()) for part in self._called(call)),
        ]

    def end(self, outcome: Outcome, *, saved: float | None) -> list[bytes]:
        """The last events of an answer that came."""
        if outcome.answer is None:
            outcome = replace(outcome, answer=self._texts.get("output_text"))
        created = self._created()
        # Every call, refusal and thought has its item by now; text has its own unless there is only one of the others.
        begun = self._begun("output_text") if outcome.answer or not (self._calls or "refusal" in self._texts) else []
        reply = response(self.decision, outcome, base=self._base, saved=saved)
        last: list[bytes] = []
        for item in reply["output"]:
            where = self._where(item["id"])
            if item["type"] == CALL:
                fields = {name: item[name] for name in ("name", "arguments")}
                last.append(self._event("function_call_arguments.done", **where, **fields))
            else:
                item["content"].sort(key=lambda part: self._content_index(part["type"]))
                last += [event for part in item["content"] for event in self._ended(part)]
            last.append(self._event("output_item.done", output_index=where["output_index"], item=item))
        reply["output"].sort(key=lambda item: self._items.index(item["id"]))
        return [*created, *begun, *last, *self._last(reply)]

    def _ended(self, part: Mapping[str, Any]) -> list[bytes]:
        """The last events of a part of a message or of reasoning."""
        kind, added = part["type"], "output_text.annotation.added"
        text = {name: value for name, value in part.items() if name not in ("type", "annotations")}
        cited = enumerate(part.get("annotations", ()))
        events = [self._in_part(added, of=kind, annotation_index=place, annotation=one) for place, one in cited]
        done = self._in_part(f"{kind}.done", of=kind, **text)
        return [*events, done, self._in_part("content_part.done", of=kind, part=part)]

    def _called(self, call: Mapping[str, Any]) -> list[bytes]:
        """The events of a piece of a call: its item, once its id is known, and its arguments."""
        index, events = int(call.get("index", 0)), list[bytes]()
        function = call.get("function") or {}
        if index not in self._calls:
            begun = {**call, "function": {**function, "arguments": ""}}
            item = call_item(self.decision, begun, place=index, status="in_progress")
            self._calls[index] = item["id"]
            events += self._added(item)
        if arguments := function.get("arguments"):
            where = self._where(self._calls[index])
            events.append(self._event("function_call_arguments.delta", **where, delta=arguments))
        return events

    def _added(self, item: Mapping[str, Any]) -> list[bytes]:
        """The events of an item that begins."""
        self._items.append(item["id"])
        index = len(self._items) - 1
        return [*self._created(), self._event("output_item.added", output_index=index, item=item)]

    def _where(self, item: str) -> dict[str, Any]:
        return {"item_id": item, "output_index": self._items.index(item)}

    def failure(self, error: Mapping[str, Any]) -> list[bytes]:
        """The last events of an answer that failed."""
        return [*self._created(), *self._last(response(self.decision, None, base=self._base, error=error))]

    def _grown(self, kind: str, text: str) -> list[bytes]:
        """The events of a piece of a text."""
        begun = self._begun(kind)
        self._texts[kind] += text
        more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
        return [*begun, self._in_part(f"{kind}.delta", of=kind, delta=text, **more)]

    def _begun(self, kind: str) -> list[bytes]:
        """The events before the first piece of a part, once: its item, unless that has begun, and the part."""
        if kind in self._texts:
            return []
        self._texts[kind] = ""
        events = []
        if item_id(self.decision, part=kind) not in self._items:
            is_thought = kind == "reasoning_text"
            item = reasoning_item(self.decision) if is_thought else message(self.decision, None, base=self._base)
            events += self._added(item)
        return [*events, self._in_part("content_part.added", of=kind, part=item_part(kind, ""))]

    def _content_index(self, kind: str) -> int:
        """The place of a part in its item: in the order in which its parts began."""
        own = item_id(self.decision, part=kind)
        return [each for each in self._texts if item_id(self.decision, part=each) == own].index(kind)

    def _last(self, reply: Mapping[str, Any]) -> list[bytes]:
        return [self._event(reply["status"], response=reply), DONE]

    def _in_part(self, event: str, *, of: str, **fields: Any) -> bytes:
        where = self._where(item_id(self.decision, part=of))
        return self._event(event, **where, content_index=self._content_index(of), **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        name, number = f"response.{kind}", self._number
        self._number += 1
        return event_of({"type": name, "sequence_number": number, **fields}, name=name)
