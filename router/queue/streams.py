"""Streams: pieces of answers, sent through Redis from workers to readers while the arm still runs.

The id of an entry is <attempt>-<number>. `attempt` counts the runs of a decision, since a second run begins if a worker
dies. `number` counts the entries of a run without gaps, so a reader notices a missed entry. Writing never delays a run
or makes it fail. If Redis is not reachable, the stream ends, and readers get the answer from the stored outcome.
"""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import chain
from queue import SimpleQueue
from typing import Any, Final

import redis

from ragbandit.router.queue.jobs import CHANNEL, reaching
from ragbandit.router.queue.redis_server import Outage
from ragbandit.router.storage.rows.outcome_rows import storable
from ragbandit.router.telemetry.routines import Routine
from ragbandit.shared.errors import QueueError
from ragbandit.shared.types import DecisionId, DeltaPiece, Json, StatusNote, TextPiece

#: pause between two writes, seconds; pieces that come during the pause are written together
BATCH_S: Final = 0.015
#: maximum number of entries that a stream keeps, and of characters of an entry
MAX_ENTRIES: Final = 256
MAX_PIECE: Final = 4096
#: time for which a stream is kept after its last entry, seconds
KEEP_S: Final = 60
#: seconds after which the keys of `wanted_key` and `attempt_key` expire
WANTED_S: Final = 3600

#: fields of an entry: piece of text; note; piece of a message as JSON; id of the decision that answers after a failover
TEXT: Final = b"t"
NOTE: Final = b"n"
DELTA: Final = b"d"
LINK: Final = b"l"


def stream_key(decision_id: str) -> str:
    return f"ragbandit:stream:{decision_id}"


def wanted_key(decision_id: str) -> str:
    """Redis key that exists if a caller wants to read the answer's stream."""
    return f"ragbandit:stream-wanted:{decision_id}"


def attempt_key(decision_id: str) -> str:
    """Redis key that counts the runs that have written to the answer's stream."""
    return f"ragbandit:stream-attempt:{decision_id}"


log = logging.getLogger("ragbandit.jobs")

StreamEvent = TextPiece | DeltaPiece | StatusNote


class AnswerWriter:
    """The `AnswerReader` of one run, made by `StreamWriter.open`. Passes the run's pieces to the writing thread."""

    def __init__(self, decision_id: DecisionId, *, pieces: SimpleQueue[Any], linked: DecisionId | None = None) -> None:
        self.decision_id = decision_id
        #: the decision that runs now, if `decision_id` failed; None without a failover
        self.linked = linked
        #: whether a reader was sent a piece of the answer
        self.has_content = False
        #: number of this run: 1 for the first run of the decision that writes; 0 while no reader waits
        self.attempt = 0
        #: whether writing has failed, which ends the stream
        self.broken = False
        self.written = 0
        self._pieces = pieces

    @property
    def reading(self) -> bool:
        return self.attempt > 0 and not self.broken

    def note(self, text: str) -> None:
        self._put(NOTE, text)

    async def text(self, piece: str) -> None:
        self._put(TEXT, piece)

    async def delta(self, delta: Mapping[str, Json]) -> None:
        self._put(DELTA, json.dumps(delta))

    def _put(self, kind: bytes, text: str) -> None:
        if self.reading:
            self.has_content = self.has_content or kind != NOTE
            # Made storable like the outcome, since readers compare the pieces with the stored answer.
            self._pieces.put((self, kind, storable(text) or ""))


class StreamWriter:
    """Writes the streams of a worker process, in a thread that starts when the first reader comes. Thread-safe."""

    def __init__(self, client: "redis.Redis", *, outage: Outage) -> None:
        self._client = client
        self._outage = outage
        self._open: dict[DecisionId, AnswerWriter] = {}
        self._lock = threading.Lock()
        #: pieces in order, as (writer of the run, field of the entry, text); None ends the thread
        self._pieces: SimpleQueue[tuple[AnswerWriter, bytes, str] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def open(self, decision_id: DecisionId, *, linked: DecisionId | None = None) -> AnswerWriter:
        """Begin the stream of a run; call `end` after it. linked: the decision that runs instead of `decision_id`."""
        writer = self._open[decision_id] = AnswerWriter(decision_id, pieces=self._pieces, linked=linked)
        if not self._outage.paused:
            with suppress(QueueError), reaching(self._outage):
                if self._client.exists(wanted_key(decision_id)):
                    self.wanted(decision_id)
        return writer

    def wanted(self, decision_id: DecisionId) -> None:
        """Write the decision's pieces from now on, because a reader exists. Does nothing if it runs elsewhere."""
        writer = self._open.get(decision_id)
        if writer is None or writer.attempt:
            return
        try:
            with reaching(self._outage), self._client.pipeline(transaction=False) as pipeline:
                pipeline.incr(attempt_key(decision_id))
                pipeline.expire(attempt_key(decision_id), WANTED_S)
                attempt, _ = pipeline.execute()
        except QueueError:  # readers get the whole answer at the end
            return
        with self._lock:
            writer.attempt = writer.attempt or int(attempt)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ragbandit-streams", daemon=True)
                self._thread.start()

    def end(self, writer: AnswerWriter) -> None:
        """Forget a run that has ended. The thread still writes the last pieces of the run."""
        with self._lock:
            if self._open.get(writer.decision_id) is writer:
                del self._open[writer.decision_id]

    def close(self) -> None:
        """Write the remaining pieces, for at most 2 s."""
        self._pieces.put(None)
        if self._thread is not None:
            self._thread.join(2)

    def _run(self) -> None:
        ends = False
        while not ends:
            pieces = [self._pieces.get()]
            while not self._pieces.empty():
                pieces.append(self._pieces.get())
            ends = None in pieces
            batches: dict[AnswerWriter, list[tuple[bytes, str]]] = {}
            for writer, kind, text in filter(None, pieces):
                if not writer.broken:
                    _append(batches.setdefault(writer, []), kind, text)
            try:
                self._write(batches)
            except Exception:  # the thread must go on for other answers
                log.exception("answers cannot be streamed; callers get them as a whole", extra={"action": "stream"})
                for writer in batches:
                    writer.broken = True
            time.sleep(0 if ends else BATCH_S)

    def _write(self, batches: dict[AnswerWriter, list[tuple[bytes, str]]]) -> None:
        replies: list[Any] = []
        with suppress(QueueError), reaching(self._outage), self._client.pipeline(transaction=False) as pipeline:
            for writer, entries in batches.items():
                key = stream_key(writer.decision_id)
                for number, (kind, text) in enumerate(entries, start=writer.written + 1):
                    entry = f"{writer.attempt}-{number}"
                    fields: dict[Any, Any] = {kind: text.encode()} | ({LINK: writer.linked} if writer.linked else {})
                    pipeline.xadd(key, fields, id=entry, maxlen=MAX_ENTRIES, approximate=False)
                pipeline.expire(key, KEEP_S)
            replies = pipeline.execute(raise_on_error=False)
        for writer, entries in batches.items():
            batch_replies, replies = replies[: len(entries) + 1], replies[len(entries) + 1 :]
            writer.written += len(entries)
            writer.broken = not batch_replies or any(isinstance(reply, Exception) for reply in batch_replies)


def _append(entries: list[tuple[bytes, str]], kind: bytes, text: str) -> None:
    """Add a piece. Consecutive texts become one entry of at most MAX_PIECE characters. Longer texts are split."""
    if entries and kind == entries[-1][0] == TEXT and len(entries[-1][1]) + len(text) <= MAX_PIECE:
        entries[-1] = (TEXT, entries[-1][1] + text)
    elif kind == DELTA:  # JSON cannot be split
        entries.append((kind, text))
    else:
        entries += [(kind, text[at : at + MAX_PIECE]) for at in range(0, len(text), MAX_PIECE)]


#: maximum number of streams that a process reads at once; further callers get the whole answer at its end
MAX_STREAMS: Final = 1000
#: maximum number of unread entries per caller; if more wait, the stream ends, and the caller gets the whole answer
MAX_HELD: Final = MAX_ENTRIES
#: prefix of the notification that a caller reads the answer; the decision's id follows
STREAM_NEWS: Final = "stream"
#: milliseconds that a read waits for new entries; streams that are added meanwhile are read after this wait
WAIT_MS: Final = 50
#: maximum number of entries of each stream per read
MOST: Final = 64
#: seconds between a failed read and the next one
PAUSE_S: Final = 0.5


class ReadStream:
    """An answer that a caller reads. The reading thread appends entries and calls `wake`; the caller calls `take`."""

    def __init__(self, decision_id: DecisionId, *, wake: Callable[[], None]) -> None:
        self.decision_id = decision_id
        self._wake = wake
        self._entries: deque[tuple[int, StreamEvent]] = deque()
        #: (attempt, number) of the last entry
        self.last = (0, 0)
        #: the decision that answers instead of a failed one; None until that decision has sent a piece
        self.linked: DecisionId | None = None
        #: whether the stream has ended early, because an entry was missed or Redis cannot be reached
        self.lost = False

    def attach(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        wake()

    def take(self) -> tuple[int, StreamEvent] | None:
        """Returns (attempt, next piece or note); None if there is no unread entry."""
        return self._entries.popleft() if self._entries else None

    def put(self, at: tuple[int, int], piece: StreamEvent) -> None:
        """Append an entry. An entry out of order ends the stream. at: (attempt, number)."""
        if self.lost or at <= self.last:
            return
        follows = at == (self.last[0], self.last[1] + 1) or (at[0] > self.last[0] and at[1] == 1)
        if not follows or len(self._entries) >= MAX_HELD:
            self.lose()
            return
        self.last = at
        self._entries.append((at[0], piece))
        self._wake()

    def lose(self) -> None:
        self.lost = True
        self._wake()


class LocalWriter:
    """Sends the pieces of a run to a reader on the same event loop, without Redis."""

    reading: Final = True

    def __init__(self, stream: ReadStream) -> None:
        self._stream, self._number = stream, 0
        self.decision_id = stream.decision_id
        #: whether the reader was sent a piece of the answer
        self.has_content = False

    def link(self, decision_id: DecisionId) -> None:
        """Call this when `decision_id` begins to answer instead of the failed decision."""
        self._stream.linked = decision_id

    def note(self, text: str) -> None:
        self._put(StatusNote(text=text))

    async def text(self, piece: str) -> None:
        self.has_content = True
        self._put(TextPiece(text=storable(piece) or ""))

    async def delta(self, delta: Mapping[str, Json]) -> None:
        self.has_content = True
        self._put(DeltaPiece(delta=json.loads(storable(json.dumps(delta)) or "{}")))

    def _put(self, event: StreamEvent) -> None:
        self._number += 1
        self._stream.put((1, self._number), event)


class StreamReader:
    """Reads streams for the callers of a process, in a thread that starts with the first stream. Thread-safe."""

    def __init__(self, client: "redis.Redis", *, outage: Outage) -> None:
        self._client = client
        self._outage = outage
        self._streams: dict[DecisionId, list[ReadStream]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._routine: Routine | None = None

    def want(self, decision_id: DecisionId) -> None:
        """Request the stream of an answer, before its run is queued, so that no piece is missed. Waits for Redis."""
        if not self._outage.paused:
            with suppress(QueueError), reaching(self._outage):
                self._client.set(wanted_key(decision_id), 1, ex=WANTED_S)

    def subscribe(self, decision_id: DecisionId, *, wake: Callable[[], None]) -> ReadStream | None:
        """Read the stream of an answer from its beginning; call `leave` after use. Waits until Redis replies.

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
                # While there are streams, _read_next runs again at once. 60 s is the longest sleep without streams.
                self._routine = Routine("read streams", self._read_next, every_s=60.0).start()
        self._routine.wake()
        try:
            with reaching(self._outage), self._client.pipeline(transaction=False) as pipeline:
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
            with reaching(self._outage):
                self._read(streams)
        except Exception as error:
            if not isinstance(error, QueueError):
                log.exception("answers cannot be streamed; callers get them as a whole", extra={"action": "stream"})
            for stream in chain.from_iterable(streams.values()):
                stream.lose()
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
