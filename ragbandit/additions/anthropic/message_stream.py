"""Replies of Anthropic's interface, whole and as events."""

import json
import time
from collections.abc import Mapping
from typing import Any, Final

from ragbandit.additions.anthropic.errors import error_event
from ragbandit.additions.anthropic.messages.replies import DETAILS, call_block, content_of, stop_of, whole_blocks
from ragbandit.additions.anthropic.messages.requests import MESSAGE_PREFIX
from ragbandit.router.api.endpoints.streaming import PING, PING_S, event_bytes
from ragbandit.router.api.openai import replies
from ragbandit.shared.dialects.chat.message_parts import thoughts_of
from ragbandit.shared.model_servers.token_usage import count_of
from ragbandit.shared.reading.fields import flat_text, objects_in
from ragbandit.shared.types import Decision, DeltaPiece, Outcome, StatusNote, TextPiece, spoken_answer

#: field of a block -> type of the deltas with pieces of the field's text
_DELTAS: Final = {"text": "text_delta", "thinking": "thinking_delta", "signature": "signature_delta"}


def _message_fields(decision: Decision) -> dict[str, Any]:
    name = replies.answering_model(decision)
    return {"id": f"{MESSAGE_PREFIX}{decision.id}", "type": "message", "role": "assistant", "model": name}


def _final_fields(
    decision: Decision, outcome: Outcome, *, base: str, saved: float | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns (why the answer ended, usage and the facts about the decision)."""
    cost, choice = outcome.cost, replies.further_fields(outcome, "choice")
    reason, sequence = stop_of(choice, finish=replies.finish_reason_of(outcome))
    details: dict[str, Any] = {name: choice[name] for name in DETAILS if name in choice}
    usage = replies.further_fields(outcome, "usage") | {
        "input_tokens": cost.prompt_tokens - cost.cached_tokens - cost.cache_write_tokens,
        "cache_creation_input_tokens": cost.cache_write_tokens,
        "cache_read_input_tokens": cost.cached_tokens,
        "output_tokens": cost.completion_tokens,
        **({} if saved is None else {"saved": saved}),
    }
    facts = replies.reply_facts(decision, outcome, base=base)
    edits = {"context_management": details.pop("context_management")} if "context_management" in details else {}
    return {"stop_reason": reason, "stop_sequence": sequence, **details}, {"usage": usage, "ragbandit": facts, **edits}


def message_reply(decision: Decision, outcome: Outcome, *, base: str, saved: float | None) -> dict[str, Any]:
    """The whole reply. base: URL of this service. saved: dollars that the answer saved; None if unknown."""
    stop, facts = _final_fields(decision, outcome, base=base, saved=saved)
    content = content_of(replies.message_of(outcome), text=outcome.answer or "")
    return {**replies.further_fields(outcome), **_message_fields(decision), "content": content, **stop, **facts}


class MessageStream:
    """Makes the events of one streamed reply, as bytes. It has the methods of ChatStream.

    Blocks are sent one after the other. Pieces of several tool calls may arrive interleaved, so calls are sent last.
    """

    def __init__(self, decision: Decision, *, base: str) -> None:
        self.decision, self._base = decision, base
        #: number of blocks so far, and type of the block that has not ended; "" if there is none
        self._blocks, self._kind, self._is_started = 0, "", False
        self._ping_at = time.monotonic() + PING_S
        #: blocks that wait for the text before them, and number of characters of text sent so far
        self._pending, self._shown = list[Mapping[str, Any]](), 0

    @property
    def has_begun(self) -> bool:
        return self._blocks > 0

    def events_for(self, event: TextPiece | DeltaPiece | StatusNote | None) -> list[bytes]:
        """The events to send for one event of the answer. event: None if nothing has come for PING_S seconds."""
        if event is None:
            return [_event("ping")] if self._is_started else [PING]
        if isinstance(event, StatusNote):
            return []
        if isinstance(event, TextPiece):
            return self._text_events(event.text)
        delta, blocks = event.delta, whole_blocks(event.delta)
        thoughts = thoughts_of(delta)
        if self._kind != "thinking" and any(block.get("thinking") for block in blocks):
            thoughts = ""  # a whole reply repeats its thoughts in its blocks
        self._pending += blocks
        events = [
            *self._piece_events("thinking", thoughts),
            *self._text_events(),
            *self._text_events(flat_text(delta.get("refusal"))),
        ]
        if not events and time.monotonic() > self._ping_at:  # the events of a long tool call are sent at the end
            self._ping_at = time.monotonic() + PING_S
            return [*self._start_events(), _event("ping")]
        return events

    def _text_events(self, text: str = "", *, is_end: bool = False) -> list[bytes]:
        """The events for text, and for the pending blocks between its parts. is_end: whether no more text follows."""
        events = list[bytes]()
        while self._pending:
            size = max(0, (count_of(self._pending[0].get("at")) or 0) - self._shown)
            if size > len(text) and not is_end:
                break
            events += [*self._piece_events("text", text[:size]), *self._block_events(self._pending.pop(0))]
            self._shown, text = self._shown + len(text[:size]), text[size:]
        self._shown += len(text)
        return events + self._piece_events("text", text)

    def end(self, outcome: Outcome, *, saved: float | None) -> list[bytes]:
        calls = map(call_block, objects_in(replies.message_of(outcome).get("tool_calls") or []))
        events = [
            *self._start_events(),
            *self._text_events(spoken_answer(outcome), is_end=True),  # Messages have no audio
            *(event for call in calls for event in self._whole_block_events(call)),
            *self._close_block(),
        ]
        stop, facts = _final_fields(self.decision, outcome, base=self._base, saved=saved)
        return [*events, _event("message_delta", delta=stop, **facts), _event("message_stop")]

    def failure(self, error: Mapping[str, Any]) -> list[bytes]:
        return [event_bytes(error_event(error), name="error")]

    def _start_events(self) -> list[bytes]:
        if self._is_started:
            return []
        self._is_started, usage = True, {"input_tokens": 0, "output_tokens": 0}
        message = {
            **_message_fields(self.decision),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        return [_event("message_start", message=message)]

    def _begin_block(self, block: Mapping[str, Any]) -> list[bytes]:
        events = [*self._start_events(), *self._close_block()]
        self._blocks, self._kind = self._blocks + 1, str(block.get("type"))
        return [*events, _event("content_block_start", index=self._blocks - 1, content_block=block)]

    def _close_block(self) -> list[bytes]:
        kind, self._kind = self._kind, ""
        return [_event("content_block_stop", index=self._blocks - 1)] if kind else []

    def _delta_event(self, kind: str, **fields: Any) -> list[bytes]:
        return [_event("content_block_delta", index=self._blocks - 1, delta={"type": kind, **fields})]

    def _piece_events(self, kind: str, text: str) -> list[bytes]:
        if not text:
            return []
        more = {"signature": ""} if kind == "thinking" else {}
        events = [] if self._kind == kind else self._begin_block({"type": kind, kind: "", **more})
        return events + self._delta_event(_DELTAS[kind], **{kind: text})

    def _whole_block_events(self, block: Mapping[str, Any]) -> list[bytes]:
        """The events of a block whose content comes at once."""
        empty: dict[str, Any] = {name: "" for name in _DELTAS if name in block}
        events = self._begin_block({**block, **empty, **({"input": {}} if "input" in block else {})})
        for name, kind in _DELTAS.items():
            events += self._delta_event(kind, **{name: block[name]}) if block.get(name) else []
        if block.get("input"):
            events += self._delta_event("input_json_delta", partial_json=json.dumps(block["input"]))
        return events + self._close_block()

    def _block_events(self, sent: Mapping[str, Any]) -> list[bytes]:
        """The events for a whole block, which ends the open block if its text came in pieces."""
        block = {name: value for name, value in sent.items() if name not in ("at", "index")}
        kind, events = block.get("type"), list[bytes]()
        if kind == "citations":
            for citation in block.get("citations") or () if self._kind == "text" else ():
                events += self._delta_event("citations_delta", citation=citation)
        elif kind == "thinking" == self._kind:
            events = self._delta_event("signature_delta", signature=block.get("signature"))
        else:
            return self._whole_block_events(block)
        return events + self._close_block()


def _event(kind: str, **fields: Any) -> bytes:
    return event_bytes({"type": kind, **fields}, name=kind)
