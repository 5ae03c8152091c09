"""Writes the streams of a worker process to Redis. See `queue.streams`."""

import json
import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final

import redis

from ragbandit.router.queue.outage import Outage, redis_call
from ragbandit.router.queue.streams import (
    DELTA,
    LINK,
    MAX_ENTRIES,
    NOTE,
    TEXT,
    WANTED_S,
    attempt_key,
    stream_key,
    wanted_key,
)
from ragbandit.router.storage.rows.outcome_rows import storable
from ragbandit.shared.errors import QueueError
from ragbandit.shared.types import DecisionId, Json

log = logging.getLogger("ragbandit.jobs")

#: pause between two writes, seconds; pieces that come during the pause are written together
BATCH_S: Final = 0.015
#: maximum number of characters of an entry
MAX_PIECE: Final = 4096
#: time for which a stream is kept after its last entry, seconds
KEEP_S: Final = 60


class AnswerWriter:
    """Passes the pieces of a run to the writing thread: the `AnswerReader` of its arm. Made by `StreamWriter.open`."""

    def __init__(self, decision_id: DecisionId, *, pieces: SimpleQueue[Any], linked: DecisionId | None = None) -> None:
        self.decision_id = decision_id
        #: the decision that runs now, if `decision_id` failed; None without a failover
        self.linked = linked
        #: whether a reader was sent a piece of the answer
        self.has_content = False
        #: number of this run among the runs that write a stream of the decision, from 1; 0 while there is no reader
        self.attempt = 0
        #: whether writing has failed, which ends the stream
        self.broken = False
        #: number of entries that were written
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
            with suppress(QueueError), redis_call(self._outage):
                if self._client.exists(wanted_key(decision_id)):
                    self.begin_writing(decision_id)
        return writer

    def begin_writing(self, decision_id: DecisionId) -> None:
        """Write the run's pieces from now on, since a reader exists. Does nothing if this process has no such run."""
        writer = self._open.get(decision_id)
        if writer is None or writer.attempt:
            return
        try:
            with redis_call(self._outage), self._client.pipeline(transaction=False) as pipeline:
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
        """End the stream of a run that has ended. The thread still writes the run's last pieces."""
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
            except Exception:  # the thread must continue for other answers
                log.exception("answers cannot be streamed; callers get them as a whole", extra={"action": "stream"})
                for writer in batches:
                    writer.broken = True
            time.sleep(0 if ends else BATCH_S)

    def _write(self, batches: dict[AnswerWriter, list[tuple[bytes, str]]]) -> None:
        replies: list[Any] = []
        with suppress(QueueError), redis_call(self._outage), self._client.pipeline(transaction=False) as pipeline:
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
