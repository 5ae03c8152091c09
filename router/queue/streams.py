"""Streams: pieces of an answer on their way from a worker to its readers, through Redis.

A decision that somebody reads along has three keys: that it is wanted, how many runs have begun to write, and the
stream. An entry has the id <attempt>-<number>: attempts are the runs of the arm, one after another where a worker has
died, and numbers are without a gap, so that a reader sees what it has missed. Nothing here is needed for
the answer: the outcome in SQL has it.

The writer is one thread of a worker process that writes what all its runs give out.

Writing never fails a run and never holds one up. Where Redis cannot be reached the stream of the run ends, and its
readers find the whole outcome in the database.
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

#: pieces that come within that long after one was written are written together, seconds
BATCH_S: Final = 0.015
#: entries of a stream, and characters of each: a stream has MAX_ENTRIES * MAX_PIECE characters at most
MAX_ENTRIES: Final = 256
MAX_PIECE: Final = 4096
#: a stream is kept that long after its last entry, seconds
KEEP_S: Final = 60
#: time for which a reader's request is stored, seconds
WANTED_S: Final = 3600

#: fields of an entry
TEXT: Final = b"t"
NOTE: Final = b"n"
DELTA: Final = b"d"
LINK: Final = b"l"


def stream_key(decision_id: str) -> str:
    """The stream of a decision's answer."""
    return f"ragbandit:stream:{decision_id}"


def wanted_key(decision_id: str) -> str:
    """Key that exists while there is a reader."""
    return f"ragbandit:stream-wanted:{decision_id}"


def attempt_key(decision_id: str) -> str:
    """How many runs have begun to write."""
    return f"ragbandit:stream-attempt:{decision_id}"


log = logging.getLogger("ragbandit.jobs")

StreamEvent = TextPiece | DeltaPiece | StatusNote


class AnswerWriter:
    """The stream of one run; a reader as `strategies.answer_stream.AnswerReader` describes it. Made by `open`.

    A piece is taken at once, and written a moment later.
    """

    def __init__(
        self,
        decision_id: DecisionId,
        *,
        take: "Callable[[AnswerWriter, bytes, str], None]",
        linked: DecisionId | None = None,
    ) -> None:
        self.decision_id = decision_id
        #: the decision that answers in place of this one; None: it answers itself
        self.linked = linked
        #: whether a piece of the answer was given out
        self.has_content = False
        #: number of this run among those that have written; 0 while there is no reader
        self.attempt = 0
        self.broken = False
        #: entries written
        self.written = 0
        self._take = take

    @property
    def reading(self) -> bool:
        """Whether there is a reader."""
        return self.attempt > 0 and not self.broken

    def note(self, text: str) -> None:
        """Take a note."""
        self._take(self, NOTE, text)

    async def text(self, piece: str) -> None:
        """Take a piece."""
        self._take(self, TEXT, piece)

    async def delta(self, delta: Mapping[str, Json]) -> None:
        """Add a piece of the message other than text."""
        self._take(self, DELTA, json.dumps(delta))


class StreamWriter:
    """The thread, started with the first run that has a reader. Thread-safe."""

    def __init__(self, client: "redis.Redis", *, outage: Outage) -> None:
        self._client = client
        self._outage = outage
        self._open: dict[DecisionId, AnswerWriter] = {}
        self._lock = threading.Lock()
        #: pieces in order; None ends the thread
        self._taken: SimpleQueue[tuple[AnswerWriter, bytes, str] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def open(self, decision_id: DecisionId, *, linked: DecisionId | None = None) -> AnswerWriter:
        """The stream of a run that begins now; to be given to `end` after it.

        linked: the decision that is run, if it answers in place of the one that is read along.
        """
        writer = self._open[decision_id] = AnswerWriter(decision_id, take=self._take, linked=linked)
        if not self._outage.paused:
            with suppress(QueueError), reaching(self._outage):
                if self._client.exists(wanted_key(decision_id)):
                    self.wanted(decision_id)
        return writer

    def wanted(self, decision_id: DecisionId) -> None:
        """Somebody wants to read along; its run writes from now on, if it is here."""
        writer = self._open.get(decision_id)
        if writer is None or writer.attempt:
            return
        try:
            with reaching(self._outage), self._client.pipeline(transaction=False) as pipeline:
                pipeline.incr(attempt_key(decision_id))
                pipeline.expire(attempt_key(decision_id), WANTED_S)
                attempt, _ = pipeline.execute()
        except QueueError:  # the answer comes whole
            return
        with self._lock:
            writer.attempt = writer.attempt or int(attempt)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ragbandit-streams", daemon=True)
                self._thread.start()

    def end(self, writer: AnswerWriter) -> None:
        """The run has ended; what is left is written by the thread. Another run of the decision may have begun."""
        with self._lock:
            if self._open.get(writer.decision_id) is writer:
                del self._open[writer.decision_id]

    def close(self) -> None:
        """Write the remaining pieces and end the thread; waits at most 2 s."""
        self._taken.put(None)
        if self._thread is not None:
            self._thread.join(2)

    def _take(self, writer: AnswerWriter, kind: bytes, text: str) -> None:
        if writer.reading:
            writer.has_content = writer.has_content or kind != NOTE
            # As it is stored: a reader compares what it has with the outcome.
            self._taken.put((writer, kind, storable(text) or ""))

    def _run(self) -> None:
        ends = False
        while not ends:
            pieces = [self._taken.get()]
            while not self._taken.empty():
                pieces.append(self._taken.get())
            ends = None in pieces
            batches: dict[AnswerWriter, list[tuple[bytes, str]]] = {}
            for writer, kind, text in filter(None, pieces):
                if not writer.broken:
                    _append(batches.setdefault(writer, []), kind, text)
            try:
                self._write(batches)
            except Exception:  # the next answers are to be given out all the same
                log.exception("answers cannot be given out; they come whole", extra={"action": "stream"})
                for writer in batches:
                    writer.broken = True
            time.sleep(0 if ends else BATCH_S)

    def _write(self, batches: dict[AnswerWriter, list[tuple[bytes, str]]]) -> None:
        """Write all of them in one turn."""
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
            own, replies = replies[: len(entries) + 1], replies[len(entries) + 1 :]
            writer.written += len(entries)
            writer.broken = not own or any(isinstance(one, Exception) for one in own)


def _append(entries: list[tuple[bytes, str]], kind: bytes, text: str) -> None:
    """Add a piece to the entries to write: pieces that follow each other as one, none longer than MAX_PIECE."""
    if entries and kind == entries[-1][0] == TEXT and len(entries[-1][1]) + len(text) <= MAX_PIECE:
        entries[-1] = (TEXT, entries[-1][1] + text)
    elif kind == DELTA:  # JSON is whole or nothing
        entries.append((kind, text))
    else:
        entries += [(kind, text[at : at + MAX_PIECE]) for at in range(0, len(text), MAX_PIECE)]


#: answers that a process reads along at once; further ones come whole
MAX_STREAMS: Final = 1000
#: entries that are held for a caller who is slower than the arm; one further behind gets the rest whole
MAX_HELD: Final = MAX_ENTRIES
#: prefix of the notification about a reader; the decision's id follows
STREAM_NEWS: Final = "stream"
#: longest wait for new entries, and most of them that are read at once; a stream that comes is read after the wait
WAIT_MS: Final = 50
MOST: Final = 64
#: pause after Redis could not be reached, and how often the thread looks unasked, seconds
PAUSE_S: Final = 0.5
IDLE_S: Final = 60.0


class ReadStream:
    """One answer that is read along. `take` is the caller's; the thread fills it and calls `wake`."""

    def __init__(self, decision_id: DecisionId, *, wake: Callable[[], None]) -> None:
        self.decision_id = decision_id
        self._wake = wake
        self._entries: deque[tuple[int, StreamEvent]] = deque()
        #: position of the last entry that came
        self.last = (0, 0)
        #: the decision that answers in place of the failed one, once it has given out a piece
        self.linked: DecisionId | None = None
        #: entries were missed, or Redis cannot be reached: nothing more will come
        self.lost = False

    def attach(self, wake: Callable[[], None]) -> None:
        """Call `wake` from now on if there is something to take, and once at once."""
        self._wake = wake
        wake()

    def take(self) -> tuple[int, StreamEvent] | None:
        """(attempt, the next piece or note), or None if there is none now."""
        return self._entries.popleft() if self._entries else None

    def put(self, at: tuple[int, int], piece: StreamEvent) -> None:
        """Append an entry. An entry out of order ends the stream."""
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
        """Nothing more comes."""
        self.lost = True
        self._wake()


class LocalWriter:
    """Gives the pieces of a run to a reader in the same process and on the same event loop, without Redis."""

    reading: Final = True

    def __init__(self, stream: ReadStream) -> None:
        self._stream, self._number = stream, 0
        #: the decision that is read along
        self.decision_id = stream.decision_id
        #: whether a piece of the answer was given out
        self.has_content = False

    def link(self, decision_id: DecisionId) -> None:
        """The pieces from now on are of this decision, which answers in place of the failed one."""
        self._stream.linked = decision_id

    def note(self, text: str) -> None:
        """Take a note."""
        self._put(StatusNote(text=text))

    async def text(self, piece: str) -> None:
        """Take a piece."""
        self.has_content = True
        self._put(TextPiece(text=storable(piece) or ""))

    async def delta(self, delta: Mapping[str, Json]) -> None:
        """Take what a message has in addition to its text."""
        self.has_content = True
        self._put(DeltaPiece(delta=json.loads(storable(json.dumps(delta)) or "{}")))

    def _put(self, event: StreamEvent) -> None:
        self._number += 1
        self._stream.put((1, self._number), event)


class StreamReader:
    """The thread, started with the first answer that is read along. Safe to use from several threads."""

    def __init__(self, client: "redis.Redis", *, outage: Outage) -> None:
        self._client = client
        self._outage = outage
        self._streams: dict[DecisionId, list[ReadStream]] = {}
        self._lock = threading.Lock()
        self._closed = False
        #: None: nobody has read along yet
        self._routine: Routine | None = None

    def want(self, decision_id: DecisionId) -> None:
        """Have its run give this answer out; before the run is asked for, so that nothing is written unread.

        It waits for Redis. Where that fails the answer comes whole.
        """
        if not self._outage.paused:
            with suppress(QueueError), reaching(self._outage):
                self._client.set(wanted_key(decision_id), 1, ex=WANTED_S)

    def subscribe(self, decision_id: DecisionId, *, wake: Callable[[], None]) -> ReadStream | None:
        """Read this answer along, from its first word if it has not begun; None: it comes whole. It waits for Redis.

        wake: called in the reading thread when there is something to take. To be given to `leave` after use.
        """
        if self._outage.paused or len(self._streams) >= MAX_STREAMS:
            return None
        stream = ReadStream(decision_id, wake=wake)
        with self._lock:
            if self._closed:
                return None
            self._streams.setdefault(decision_id, []).append(stream)
            if self._routine is None:
                self._routine = Routine("read answers along", self._read_next, every_s=IDLE_S).start()
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
        """Read it along no more."""
        with self._lock:
            left = [each for each in self._streams.pop(stream.decision_id, []) if each is not stream]
            if left:
                self._streams[stream.decision_id] = left

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._closed = True
        if self._routine is not None:
            self._routine.close()

    def _read_next(self) -> float | None:
        """Read the entries that come next; seconds until the next time, None where nobody reads along."""
        with self._lock:
            groups = {key: [each for each in group if not each.lost] for key, group in self._streams.items()}
        streams = {key: group for key, group in groups.items() if group}
        if not streams:
            return PAUSE_S if groups else None
        try:
            with reaching(self._outage):
                self._read(streams)
        except Exception as error:
            if not isinstance(error, QueueError):
                log.exception("answers cannot be read along; they come whole", extra={"action": "stream"})
            for stream in chain.from_iterable(streams.values()):
                stream.lose()
            return PAUSE_S
        return 0.0

    def _read(self, streams: dict[DecisionId, list[ReadStream]]) -> None:
        """Wait for entries, and hand them to their readers."""
        after: dict[Any, Any] = {}
        for key, group in streams.items():
            attempt, number = min(each.last for each in group)
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
    """The event of an entry's fields."""
    if DELTA in fields:
        return DeltaPiece(delta=json.loads(fields[DELTA]))
    return TextPiece(text=fields[TEXT].decode()) if TEXT in fields else StatusNote(text=fields[NOTE].decode())


def _items(reply: Any) -> Iterable[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
    """(key, entries) of a reply to XREAD; redis-py gives a list, or a mapping under protocol 3."""
    if isinstance(reply, dict):
        return ((key, [entry for part in parts for entry in part]) for key, parts in reply.items())
    return ((key, entries) for key, entries in reply or ())
