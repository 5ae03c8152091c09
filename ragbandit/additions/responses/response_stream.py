from collections.abc import Mapping
from typing import Any, cast

from ragbandit.additions.responses import responses
from ragbandit.additions.responses.items import CALL, FREE_TEXT_CALL
from ragbandit.additions.responses.tools import client_name_of
from ragbandit.router.api.endpoints.streaming import PING, event_bytes
from ragbandit.router.api.openai import replies
from ragbandit.router.api.openai.replies import DONE
from ragbandit.router.serving.checks.questions import RESPONSE_PREFIX, new_id
from ragbandit.shared.dialects.chat.message_parts import CALL_TEXTS, reasoning_in, thoughts_of
from ragbandit.shared.types import Decision, DeltaPiece, Outcome, StatusNote, TextPiece, spoken_answer


class ResponseStream:
    """Makes the events of one streamed response, as bytes. It has the methods of ChatStream."""

    def __init__(self, decision: Decision, *, base: str) -> None:
        self.decision, self._base = decision, base
        self._number = 0
        #: id of an item -> types of its parts, both in the order in which they began
        self._items: dict[str, list[str]] = {}
        #: indices of the calls whose items are sent only when the call is complete
        self._whole_calls: set[int] = set()

    @property
    def has_begun(self) -> bool:
        return bool(self._items)

    def _created_events(self) -> list[bytes]:
        if self._number:
            return []
        reply = responses.response(self.decision, None, base=self._base)
        return [self._event("created", response=reply), self._event("in_progress", response=reply)]

    def events_for(self, event: TextPiece | DeltaPiece | StatusNote | None) -> list[bytes]:
        if event is None:
            return [PING]
        if isinstance(event, StatusNote):
            return []
        if self.decision.query.sent.others.get(responses.COMPACTS):  # the item of a summary needs the whole text
            return self._created_events()
        if isinstance(event, TextPiece):
            return self._text_delta("output_text", event.text)
        thoughts, refusal = thoughts_of(event.delta), event.delta.get("refusal")
        events = self._begin_reasoning(event.delta)
        if thoughts:
            events += self._text_delta("reasoning_text", thoughts)
        if refusal:
            events += self._text_delta("refusal", str(refusal))
        for call in cast(Any, event.delta.get("tool_calls") or ()):
            events += self._call_delta(call)
        return events

    def end(self, outcome: Outcome, *, saved: float | None) -> list[bytes]:
        reply, events = responses.response(self.decision, outcome, base=self._base, saved=saved), self._created_events()
        if any(item["type"] == "reasoning" for item in reply["output"]):
            events += self._begin_reasoning(replies.message_of(outcome))
        has_message = any(item["type"] == "message" for item in reply["output"])
        is_empty = not self._items.keys() - {responses.item_id(self.decision, part="reasoning_text")}
        if has_message and (outcome.answer or is_empty):
            events += self._begin_part("output_text")
        if has_message and (spoken := spoken_answer(outcome)):
            events += self._text_delta("output_text", spoken)
        for item in reply["output"]:
            if item["id"] not in self._items:  # an image, or a call that is sent whole
                events += self._begin_item(item)
            where = self._item_position(item["id"])
            if item["type"] == CALL:
                fields = {name: item[name] for name in ("name", "arguments")}
                events.append(self._event("function_call_arguments.done", **where, **fields))
            elif item["type"] == FREE_TEXT_CALL:
                events.append(self._event(f"{FREE_TEXT_CALL}_input.done", **where, input=item["input"]))
            elif "content" in item:
                begun = self._items[item["id"]]
                item["content"].sort(key=lambda part: begun.index(part["type"]))
                events += [event for part in item["content"] for event in self._end_part(part)]
            events.append(self._event("output_item.done", output_index=where["output_index"], item=item))
        reply["output"].sort(key=lambda item: self._index(item["id"]))
        return events + self._last_events(reply)

    def _begin_reasoning(self, fields: Mapping[str, Any]) -> list[bytes]:
        item = responses.reasoning_item(self.decision)
        return self._begin_item(item) if reasoning_in(fields) and item["id"] not in self._items else []

    def _end_part(self, part: Mapping[str, Any]) -> list[bytes]:
        kind = part["type"]
        events = [
            self._part_event("output_text.annotation.added", of=kind, annotation_index=index, annotation=annotation)
            for index, annotation in enumerate(part.get("annotations", ()))
        ]
        fields = {name: value for name, value in part.items() if name not in ("type", "annotations")}
        events.append(self._part_event(f"{kind}.done", of=kind, **fields))
        events.append(self._part_event("content_part.done", of=kind, part=part))
        return events

    def _call_delta(self, call: Mapping[str, Any]) -> list[bytes]:
        kind = "custom" if isinstance(call.get("custom"), Mapping) else "function"
        name, body, place = CALL_TEXTS[kind], call.get(kind) or {}, int(call.get("index", 0))
        if body.get("name") and client_name_of(self.decision.query.sent.others, str(body["name"]))[0] is not None:
            self._whole_calls.add(place)
        if place in self._whole_calls:
            return []
        first = {**call, kind: {**body, name: ""}}
        item = responses.call_item(self.decision, first, place=place, status="in_progress")
        events = [] if item["id"] in self._items else self._begin_item(item)
        if body.get(name):
            event = "function_call_arguments.delta" if kind == "function" else f"{FREE_TEXT_CALL}_input.delta"
            events.append(self._event(event, **self._item_position(item["id"]), delta=body[name]))
        return events

    def _begin_item(self, item: Mapping[str, Any]) -> list[bytes]:
        self._items[item["id"]] = []
        return [*self._created_events(), self._event("output_item.added", output_index=len(self._items) - 1, item=item)]

    def _index(self, item: str) -> int:
        return list(self._items).index(item)

    def _item_position(self, item: str) -> dict[str, Any]:
        return {"item_id": item, "output_index": self._index(item)}

    def failure(self, error: Mapping[str, Any]) -> list[bytes]:
        return [
            *self._created_events(),
            *self._last_events(responses.response(self.decision, None, base=self._base, error=error)),
        ]

    def _text_delta(self, kind: str, text: str) -> list[bytes]:
        events, fields = self._begin_part(kind), dict[str, Any]()
        if kind == "output_text":
            fields = {"logprobs": []}
        return [*events, self._part_event(f"{kind}.delta", of=kind, delta=text, **fields)]

    def _begin_part(self, kind: str) -> list[bytes]:
        """The events that begin a part, and its item if that has not begun; [] if the part has begun already."""
        key, events = responses.item_id(self.decision, part=kind), list[bytes]()
        if key not in self._items and kind == "reasoning_text":
            events = self._begin_item(responses.reasoning_item(self.decision))
        elif key not in self._items:
            events = self._begin_item(responses.message_item(self.decision, None, base=self._base))
        if kind in self._items[key]:
            return []
        self._items[key].append(kind)
        return [*events, self._part_event("content_part.added", of=kind, part=responses.item_part(kind, ""))]

    def _last_events(self, reply: Mapping[str, Any]) -> list[bytes]:
        return [self._event(reply["status"], response=reply), DONE]

    def _part_event(self, event: str, *, of: str, **fields: Any) -> bytes:
        """The event about a part of the current item, with the next sequence number."""
        key = responses.item_id(self.decision, part=of)
        return self._event(event, **self._item_position(key), content_index=self._items[key].index(of), **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        name, number = f"response.{kind}", self._number
        self._number += 1
        return event_bytes({"type": name, "sequence_number": number, **fields}, name=name)


def undecided_failure(error: Mapping[str, Any]) -> bytes:
    """The events of a response that failed before a decision was made. error: in OpenAI's form."""
    fault = {"code": error["code"], "message": error["message"]}
    reply = {
        "id": f"{RESPONSE_PREFIX}{new_id()}",
        "object": "response",
        "status": "failed",
        "error": fault,
        "output": [],
    }
    kind = "response.failed"
    return event_bytes({"type": kind, "sequence_number": 0, "response": reply}, name=kind) + DONE
