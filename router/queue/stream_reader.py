"""Reads streams of answers for the callers of a process, from Redis or from an arm on the same event loop."""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any, Final

import redis

from ragbandit.router.queue.outage import Outage, redis_call
from ragbandit.router.queue.refusals import CHANNEL
from ragbandit.router.queue.streams import (
    DELTA,
    LINK,
    MAX_ENTRIES,
    NOTE,
    STREAM_NEWS,
    TEXT,
    WANTED_S,
    StreamEvent,
    stream_key,
    wanted_key,
)
from ragbandit.router.storage.rows.outcome_rows import storable
from ragbandit.router.telemetry.routines import Routine
from ragbandit.shared.dialects.chat.message_parts import MessageParts, split_thoughts
from ragbandit.shared.errors import QueueError, RagBanditError
from ragbandit.shared.texts.growing_text import AnswerText
from ragbandit.shared.types import DecisionId, DeltaPiece, Json, Outcome, StatusNote, TextPiece, written_answer

log = logging.getLogger("ragbandit.jobs")

#: maximum number of streams that a process reads at once; further callers get the whole answer at its end
MAX_STREAMS: Final = 1000
#: maximum number of unread entries per caller; with more the stream ends, and the caller gets the whole answer
MAX_HELD: Final = MAX_ENTRIES
#: milliseconds that a read blocks until entries come; streams that are added meanwhile are read by the next read
WAIT_MS: Final = 50
#: maximum number of entries of each stream per read
MOST: Final = 64
#: seconds between a failed read and the next one
PAUSE_S: Final = 0.5


class AnswerChanged(RagBanditError, code="ANSWER_CHANGED"):
    """The answer differs from the part that was sent already."""


class ReadStream:
    """An answer that a caller reads while it is written.

    The thread of StreamReader calls `put`; a run on the same event loop calls `text`, `delta` and `note`, without
    Redis. The caller calls `read`, and `finish` at the end.
    """

    reading: Final = True

    def __init__(self, decision_id: DecisionId, *, wake: Callable[[], None] = lambda: None) -> None:
        self.decision_id = decision_id
        self._wake = wake
        #: unread entries as (attempt, event)
        self._entries: deque[tuple[int, StreamEvent]] = deque()
        #: (attempt, number) of the last entry
        self.last = (0, 0)
        #: the decision that answers instead of a failed one; None until that decision has sent a piece
        self.linked: DecisionId | None = None
        #: whether the stream has ended early: an entry was missed, too many are unread, or Redis cannot be reached
        self.lost = False
        #: whether a run on this event loop has written a piece of the answer
        self.has_content = False
        #: what the caller has read: text, other fields of the model's message, and number of the run that wrote them
        self._text, self._message, self._attempt = AnswerText(), MessageParts(), 1

    def attach(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        wake()

    def put(self, entry_id: tuple[int, int], event: StreamEvent) -> None:
        """Append an entry; ignore a repeated id. A gap or too many unread entries end the stream."""
        if self.lost or entry_id <= self.last:
            return
        follows = entry_id == (self.last[0], self.last[1] + 1) or (entry_id[0] > self.last[0] and entry_id[1] == 1)
        if not follows or len(self._entries) >= MAX_HELD:
            self.end_early()
            return
        self.last = entry_id
        self._entries.append((entry_id[0], event))
        self._wake()

    async def text(self, piece: str) -> None:
        self.has_content = True
        self._write(TextPiece(text=storable(piece) or ""))

    async def delta(self, delta: Mapping[str, Json]) -> None:
        self.has_content = True
        self._write(DeltaPiece(delta=dict(delta)))

    def note(self, text: str) -> None:
        self._write(StatusNote(text=text))

    def _write(self, event: StreamEvent) -> None:
        self.put((1, self.last[1] + 1), event)

    def end_early(self) -> None:
        """End the stream before its answer is complete; the caller then gets the whole answer."""
        self.lost = True
        self._wake()

    def read(self) -> list[StreamEvent]:
        """The unread pieces and notes, without the text that a second run repeats. Raises AnswerChanged."""
        events: list[StreamEvent] = []
        while self._entries:
            attempt, event = self._entries.popleft()
            if attempt != self._attempt:
                if self._message.has_fields:
                    raise self._changed()
                self._attempt = attempt
                self._text.restart()
            if isinstance(event, DeltaPiece):
                self._message.add(event.delta)
            elif isinstance(event, TextPiece):
                new = self._text.take(event.text)
                if new is None:
                    raise self._changed()
                if not new:
                    continue
                event = event if new == event.text else TextPiece(text=new)
            events.append(event)
        return events

    def finish(self, outcome: Outcome) -> list[StreamEvent | Outcome]:
        """The missing part of the answer as events, with the outcome last. If the arm ended without failure and without
        an answer, the streamed text is its answer. Raises AnswerChanged.
        """
        events: list[StreamEvent | Outcome] = []
        if outcome.answer is None and outcome.status != "failed" and self._text.size:
            outcome = replace(outcome, answer=str(self._text))
        written = written_answer(outcome)
        text = "" if written is None else self._text.continue_to(written)
        message = outcome.reply.get("message")
        rest = self._message.rest(message if isinstance(message, Mapping) else {})
        if text is None or rest is None:
            raise self._changed()
        thoughts, delta = split_thoughts(rest)
        if thoughts:
            events.append(DeltaPiece(delta=thoughts))
        if text:
            events.append(TextPiece(text=text))
        if delta:
            events.append(DeltaPiece(delta=delta))
        return [*events, outcome]

    def _changed(self) -> AnswerChanged:
        return AnswerChanged(
            f"the answer to decision {self.decision_id} was written again in other words, since a part of the service "
            "failed while it was written; what was sent before does not stand",
            remedy="ask again with the same id to get the whole answer",
        )


class StreamReader:
    """Reads streams for the callers of a process, in a thread that starts with the first stream. Thread-safe."""

    def __init__(self, client: "redis.Redis", *, outage: Outage) -> None:
        self._client = client
        self._outage = outage
        self._streams: dict[DecisionId, list[ReadStream]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._routine: Routine | None = None

    def request_stream(self, decision_id: DecisionId) -> None:
        """Request the stream of an answer, before its run is queued, so that no piece is missed. Blocks until Redis
        replies.
        """
        if not self._outage.paused:
            with suppress(QueueError), redis_call(self._outage):
                self._client.set(wanted_key(decision_id), 1, ex=WANTED_S)

    def subscribe(self, decision_id: DecisionId, *, wake: Callable[[], None]) -> ReadStream | None:
        """Read the stream of an answer from its beginning; call `leave` after use. Blocks until Redis replies.

        Returns None if Redis is down or MAX_STREAMS streams are read already. wake: called by the reading thread for
        every new entry.
        """
        if self._outage.paused or len(self._streams) >= MAX_STREAMS:
            return None
        stream = ReadStream(decision_id, wake=wake)
        with self._lock:
            if self._closed:
                return None
            self._streams.setdefault(decision_id, []).append(stream)
            if self._routine is None:
                # While there are streams, `_read_next` runs again at once. Without streams it sleeps for at most 60 s.
                self._routine = Routine("read streams", self._read_next, every_s=60.0).start()
        self._routine.wake()
        try:
            with redis_call(self._outage), self._client.pipeline(transaction=False) as pipeline:
                pipeline.set(wanted_key(decision_id), 1, ex=WANTED_S)
                pipeline.publish(CHANNEL, f"{STREAM_NEWS}:{decision_id}")
                pipeline.execute()
        except QueueError:
            self.leave(stream)
            return None
        return stream

    def leave(self, stream: ReadStream) -> None:
        with self._lock:
            others = [other for other in self._streams.pop(stream.decision_id, []) if other is not stream]
            if others:
                self._streams[stream.decision_id] = others

    def close(self) -> None:
        with self._lock:
            self._closed = True
        if self._routine is not None:
            self._routine.close()

    def _read_next(self) -> float | None:
        """Read the next entries. Returns the seconds until the next call; None if no caller reads a stream."""
        streams: dict[DecisionId, list[ReadStream]] = {}
        with self._lock:
            has_readers = bool(self._streams)
            for stream in chain.from_iterable(self._streams.values()):
                if not stream.lost:
                    streams.setdefault(stream.decision_id, []).append(stream)
        if not streams:
            return PAUSE_S if has_readers else None
        try:
            with redis_call(self._outage):
                self._read(streams)
        except Exception as error:
            if not isinstance(error, QueueError):
                log.exception("answers cannot be streamed; callers get them as a whole", extra={"action": "stream"})
            for stream in chain.from_iterable(streams.values()):
                stream.end_early()
            return PAUSE_S
        return 0.0

    def _read(self, streams: dict[DecisionId, list[ReadStream]]) -> None:
        after: dict[Any, Any] = {}
        for key, group in streams.items():
            attempt, number = min(stream.last for stream in group)
            after[stream_key(key)] = f"{attempt}-{number}"
        reply = self._client.xread(after, count=MOST, block=WAIT_MS)
        for name, entries in _items(reply):
            decision_id = DecisionId(name.decode().removeprefix(stream_key("")))
            for entry_id, fields in entries:
                attempt, number = map(int, entry_id.split(b"-"))
                piece = _event(fields)
                for stream in streams[decision_id]:
                    if LINK in fields:
                        stream.linked = DecisionId(fields[LINK].decode())
                    stream.put((attempt, number), piece)


def _event(fields: Mapping[bytes, bytes]) -> StreamEvent:
    if DELTA in fields:
        return DeltaPiece(delta=json.loads(fields[DELTA]))
    return TextPiece(text=fields[TEXT].decode()) if TEXT in fields else StatusNote(text=fields[NOTE].decode())


def _items(reply: Any) -> Iterable[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
    """Yield (key, entries) of a reply to XREAD. redis-py returns the reply as a list, or under protocol 3 as a dict."""
    if isinstance(reply, dict):
        return ((key, list(chain.from_iterable(parts))) for key, parts in reply.items())
    return ((key, entries) for key, entries in reply or ())
