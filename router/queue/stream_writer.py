"""Streams: answers on their way from the worker that writes them to whoever reads them, through Redis.

A decision that somebody reads along has three keys: that it is wanted, how many runs have begun to write, and the
stream. An entry has the id <attempt>-<number>: attempts are the runs of the arm, one after another where a worker has
died, and numbers are without a gap, so that a reader sees what it has missed. Nothing here is needed for
the answer: the outcome in SQL has it.

The writer is one thread of a worker process that writes what all its runs give out.

Writing never fails a run and never holds one up. Where Redis cannot be reached the stream of the run ends, and its
readers find the whole outcome in the database.
"""

import logging
import threading
import time
from typing import Any, Final

import redis
from redis.exceptions import RedisError

from ragbandit.router.queue.redis_server import Outage
from ragbandit.router.storage.rows.outcome_rows import storable
from ragbandit.shared.types import DecisionId

#: pieces that come within that long after one was written are written together, seconds
BATCH_S: Final = 0.015
#: entries of a stream, and characters of each: a stream has MAX_ENTRIES * MAX_PIECE characters at most
MAX_ENTRIES: Final = 256
MAX_PIECE: Final = 4096
#: a stream is kept that long after its last entry, seconds
KEEP_S: Final = 60
#: that somebody wants to read along is known that long, seconds
WANTED_S: Final = 3600

#: fields of an entry
TEXT: Final = b"t"
NOTE: Final = b"n"


def stream_key(decision_id: str) -> str:
    """The stream of a decision's answer."""
    return f"ragbandit:stream:{decision_id}"


def wanted_key(decision_id: str) -> str:
    """It is there if somebody wants to read along."""
    return f"ragbandit:stream-wanted:{decision_id}"


def attempt_key(decision_id: str) -> str:
    """How many runs have begun to write."""
    return f"ragbandit:stream-attempt:{decision_id}"


def position(entry_id: bytes | str) -> tuple[int, int]:
    """(attempt, number) of an entry."""
    text = entry_id.decode() if isinstance(entry_id, bytes) else entry_id
    attempt, _, number = text.partition("-")
    return int(attempt), int(number)


log = logging.getLogger("ragbandit.jobs")


class AnswerWriter:
    """The stream of one run; a reader as `strategies.answer_stream.AnswerReader` describes it. Made by `open`.

    A piece is taken at once, and written a moment later.
    """

    def __init__(self, owner: "StreamWriter", decision_id: DecisionId) -> None:
        self.decision_id = decision_id
        #: number of this run among those that have written; 0: nobody reads along yet
        self.attempt = 0
        self.broken = False
        self.ended = False
        self.pending: list[tuple[bytes, str]] = []
        #: entries written
        self.written = 0
        #: when the next batch may be written (time.monotonic)
        self.due = 0.0
        self._owner = owner

    @property
    def reading(self) -> bool:
        """True if somebody reads along."""
        return self.attempt > 0 and not self.broken

    def note(self, text: str) -> None:
        """Take a note."""
        self._owner.take(self, NOTE, text)

    async def text(self, piece: str) -> None:
        """Take a piece."""
        self._owner.take(self, TEXT, piece)

    def batch(self) -> list[tuple[bytes, str]]:
        """The entries to write now: pieces that follow each other as one, none longer than MAX_PIECE."""
        pieces, self.pending = self.pending, []
        entries: list[tuple[bytes, str]] = []
        for kind, text in pieces:
            if entries and kind == entries[-1][0] == TEXT and len(entries[-1][1]) + len(text) <= MAX_PIECE:
                entries[-1] = (TEXT, entries[-1][1] + text)
            else:
                entries += [(kind, text[at : at + MAX_PIECE]) for at in range(0, len(text), MAX_PIECE)]
        return entries


class StreamWriter:
    """The thread, started with the first run that somebody reads along. Safe to use from several threads."""

    def __init__(self, client: "redis.Redis", *, outage: Outage) -> None:
        self._client = client
        self._outage = outage
        self._open: dict[DecisionId, AnswerWriter] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def open(self, decision_id: DecisionId) -> AnswerWriter:
        """The stream of a run that begins now; to be given to `end` after it."""
        writer = AnswerWriter(self, decision_id)
        with self._changed:
            self._open[decision_id] = writer
        if not self._outage.paused:
            try:
                if self._client.exists(wanted_key(decision_id)):
                    self.wanted(decision_id)
            except (RedisError, OSError) as error:
                self._outage.failed(error)
        return writer

    def wanted(self, decision_id: DecisionId) -> None:
        """Somebody wants to read along; its run writes from now on, if it is here."""
        writer = self._open.get(decision_id)
        if writer is None or writer.attempt:
            return
        try:
            with self._client.pipeline(transaction=False) as pipeline:
                pipeline.incr(attempt_key(decision_id))
                pipeline.expire(attempt_key(decision_id), WANTED_S)
                attempt, _ = pipeline.execute()
        except (RedisError, OSError) as error:
            self._outage.failed(error)  # the answer comes whole
            return
        with self._changed:
            if not writer.attempt:
                writer.attempt = int(attempt)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="ragbandit-streams", daemon=True)
                    self._thread.start()

    def end(self, writer: AnswerWriter) -> None:
        """The run has ended; what is left is written by the thread."""
        with self._changed:
            writer.ended = True
            self._forget_written(writer)

    def take(self, writer: AnswerWriter, kind: bytes, text: str) -> None:
        """Take a piece or a note, for the thread to write."""
        if not writer.reading:
            return
        with self._changed:
            # As it is stored: a reader compares what it has with the outcome.
            writer.pending.append((kind, storable(text) or ""))
            self._changed.notify()

    def close(self) -> None:
        """Write what was taken, and end the thread; waits for at most 2 s."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(2)

    def _forget_written(self, writer: AnswerWriter) -> None:
        """Called under the lock. Another run of the same decision may have begun meanwhile."""
        done = writer.ended and not (writer.pending and writer.reading)
        if done and self._open.get(writer.decision_id) is writer:
            del self._open[writer.decision_id]

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                waiting = [each for each in self._open.values() if each.pending]
                due = [each for each in waiting if each.due <= now or self._closed]
                if not due:
                    if self._closed:
                        return
                    self._changed.wait(min((each.due for each in waiting), default=now + 60.0) - now)
                    continue
                batches = [(each, each.batch()) for each in due]
            try:
                self._write(batches)
            except Exception:  # the next answers are to be given out all the same
                log.exception("answers cannot be given out; they come whole", extra={"action": "stream"})
                for writer, _ in batches:
                    self._wrote(writer, failed=True)

    def _write(self, batches: list[tuple[AnswerWriter, list[tuple[bytes, str]]]]) -> None:
        """Write all of them in one turn."""
        replies: list[Any] = []
        try:
            with self._client.pipeline(transaction=False) as pipeline:
                for writer, entries in batches:
                    self._add(pipeline, writer, entries)
                replies = pipeline.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            self._outage.failed(error)
        for writer, entries in batches:
            own, replies = replies[: len(entries) + 1], replies[len(entries) + 1 :]
            self._wrote(writer, entries=len(entries), failed=not own or any(isinstance(one, Exception) for one in own))

    def _add(self, pipeline: Any, writer: AnswerWriter, entries: list[tuple[bytes, str]]) -> None:
        key = stream_key(writer.decision_id)
        for number, (kind, text) in enumerate(entries, start=writer.written + 1):
            entry_id = f"{writer.attempt}-{number}"
            pipeline.xadd(key, {kind: text.encode()}, id=entry_id, maxlen=MAX_ENTRIES, approximate=False)
        pipeline.expire(key, KEEP_S)

    def _wrote(self, writer: AnswerWriter, *, entries: int = 0, failed: bool) -> None:
        with self._changed:
            writer.due = time.monotonic() + BATCH_S
            writer.written += entries
            if failed:
                writer.broken, writer.pending = True, []
            self._forget_written(writer)
