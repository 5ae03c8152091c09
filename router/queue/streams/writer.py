"""Writer of streams: one thread of a worker process that writes what all its runs give out.

Writing never fails a run and never holds up the arm's event loop. Where Redis cannot be reached the stream of the run
ends, and its readers find the whole outcome in the database.
"""

import asyncio
import contextlib
import logging
import threading
import time
from typing import Any

import redis
from redis.exceptions import RedisError

from ragbandit.router.queue.outage import Outage, is_foreign
from ragbandit.router.queue.streams.keys import (
    BATCH_S,
    KEEP_S,
    MARK,
    MAX_ENTRIES,
    MAX_PIECE,
    MAX_UNREAD,
    NOTE,
    TEXT,
    WANTED_S,
    attempt_key,
    mark_of,
    position,
    read_key,
    stream_key,
    wanted_key,
)
from ragbandit.router.storage.rows.outcome_rows import storable
from ragbandit.shared.types import DecisionId

log = logging.getLogger("ragbandit.jobs")

#: while a run waits for its reader, so often is looked how far that is, seconds
LOOK_S = 0.02


class AnswerWriter:
    """The stream of one run; a reader as `strategies.answer_stream.AnswerReader` describes it. Made by `open`.

    A piece is taken at once, and written a moment later. `text` waits while the reader is MAX_UNREAD entries behind,
    until the deadline (time.monotonic) at the latest; not where nobody reads any more.
    """

    def __init__(self, owner: "StreamWriter", decision_id: DecisionId, *, deadline: float) -> None:
        self.decision_id = decision_id
        self.deadline = deadline
        #: number of this run among those that have written; 0: nobody reads along yet
        self.attempt = 0
        self.broken = False
        self.pending: list[tuple[bytes, str]] = []
        #: entries written, and those that a reader has taken; None: there is no reader
        self.written = 0
        self.taken: int | None = None
        #: when the next batch may be written (time.monotonic)
        self.due = 0.0
        self.waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self._owner = owner

    @property
    def reading(self) -> bool:
        """True if somebody reads along."""
        return self.attempt > 0 and not self.broken

    @property
    def full(self) -> bool:
        """True if its reader is too far behind."""
        return self.taken is not None and self.written + len(self.pending) - self.taken > MAX_UNREAD

    def note(self, text: str) -> None:
        """Take a note."""
        self._owner.take(self, NOTE, text)

    async def text(self, piece: str) -> None:
        """Take a piece, then wait for room."""
        self._owner.take(self, TEXT, piece)
        if not self.full or not self.reading:
            return
        loop = asyncio.get_running_loop()
        room: asyncio.Future[None] = loop.create_future()
        self.waiter = (loop, room)
        self._owner.nudge()  # what was written just now may have made room
        await asyncio.wait({room}, timeout=max(0.0, self.deadline - time.monotonic()))
        self.waiter = None

    def free(self) -> None:
        """Let a run that waits for room go on. Called from the writing thread."""
        waiter = self.waiter
        if waiter is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                waiter[0].call_soon_threadsafe(_resolve, waiter[1])

    def batch(self) -> list[tuple[bytes, str]]:
        """The entries to write now: pieces that follow each other as one, none longer than MAX_PIECE."""
        taken, self.pending = self.pending, []
        entries: list[tuple[bytes, str]] = []
        for kind, text in taken:
            if entries and kind == entries[-1][0] == TEXT and len(entries[-1][1]) + len(text) <= MAX_PIECE:
                entries[-1] = (TEXT, entries[-1][1] + text)
            else:
                entries += [(kind, text[at : at + MAX_PIECE]) for at in range(0, len(text), MAX_PIECE)]
        return entries


class StreamWriter:
    """The thread, started with the first run that somebody reads along. Safe to use from several threads.

    secret: STREAM_SECRET of the store.
    """

    def __init__(self, client: "redis.Redis", *, outage: Outage, secret: bytes) -> None:
        self._client = client
        self._outage = outage
        self._secret = secret
        self._open: dict[DecisionId, AnswerWriter] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def open(self, decision_id: DecisionId, *, seconds: float) -> AnswerWriter:
        """The stream of a run that begins now and may take so many seconds; to be given to `end` after it."""
        made = AnswerWriter(self, decision_id, deadline=time.monotonic() + seconds)
        with self._changed:
            self._open[decision_id] = made
        if not self._outage.paused:
            try:
                if self._client.exists(wanted_key(decision_id)):
                    self.wanted(decision_id)
            except (RedisError, OSError) as error:
                self._outage.failed(error)
        return made

    def wanted(self, decision_id: DecisionId) -> None:
        """Somebody wants to read along; its run writes from now on, if it is here."""
        made = self._open.get(decision_id)
        if made is None or made.attempt:
            return
        try:
            with self._client.pipeline(transaction=False) as pipeline:
                pipeline.incr(attempt_key(decision_id))
                pipeline.expire(attempt_key(decision_id), WANTED_S)
                pipeline.get(read_key(decision_id))
                attempt, _, read = pipeline.execute()
        except (RedisError, OSError) as error:
            self._outage.met(error, part="streams")  # the answer comes whole
            return
        with self._changed:
            if not made.attempt:
                made.taken = None if read is None else 0
                made.attempt = int(attempt)
                self._start()

    def end(self, made: AnswerWriter) -> None:
        """The run has ended; what is left is written by the thread."""
        with self._changed:
            if not made.pending or not made.reading:
                self._forget(made)
            made.deadline = 0.0  # nobody waits any more
            self._changed.notify()

    def take(self, made: AnswerWriter, kind: bytes, text: str) -> None:
        """Take a piece or a note, for the thread to write."""
        if not made.reading:
            return
        with self._changed:
            # As it is stored: a reader compares what it has with the outcome.
            made.pending.append((kind, storable(text) or ""))
            self._changed.notify()

    def nudge(self) -> None:
        """Have the thread look what there is to do."""
        with self._changed:
            self._changed.notify()

    def close(self) -> None:
        """Write what was taken, and end the thread; waits for at most 2 s."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(2)

    def _forget(self, made: AnswerWriter) -> None:
        """It has written all. Called under the lock. Another run of the same decision may have begun meanwhile."""
        if self._open.get(made.decision_id) is made:
            del self._open[made.decision_id]

    def _start(self) -> None:
        """Start the thread, once. Called under the lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ragbandit-streams", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                busy = [each for each in self._open.values() if each.pending or each.waiter]
                due = [each for each in busy if each.due <= now or self._closed]
                if not due:
                    if self._closed:
                        return
                    self._changed.wait(min((each.due for each in busy), default=now + 60.0) - now)
                    continue
                batches = [(each, each.batch()) for each in due]
            try:
                self._write(batches)
            except Exception:  # the runs of this process must not wait for a thread that has ended
                log.exception("answers cannot be given out; they come whole", extra={"action": "stream"})
                for each, _ in batches:
                    self._wrote(each, entries=0, read=None, failed=True)

    def _write(self, batches: list[tuple[AnswerWriter, list[tuple[bytes, str]]]]) -> None:
        """Write all of them in one turn."""
        replies: list[Any] = []
        try:
            with self._client.pipeline(transaction=False) as pipeline:
                for made, entries in batches:
                    self._add(pipeline, made, entries)
                replies = pipeline.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            self._outage.failed(error)
        now, at = time.monotonic(), 0
        for made, entries in batches:
            count = len(entries) + 2
            mine, at = replies[at : at + count], at + count
            made.due = now + (BATCH_S if entries else LOOK_S)
            errors = [reply for reply in mine if isinstance(reply, Exception)]
            if errors and is_foreign(errors[0]):
                self._outage.foreign.add("streams", str(errors[0]))
            failed = not mine or bool(errors)
            self._wrote(made, entries=len(entries), read=None if failed else mine[-1], failed=failed)

    def _add(self, pipeline: Any, made: AnswerWriter, entries: list[tuple[bytes, str]]) -> None:
        key = stream_key(made.decision_id)
        for number, (kind, text) in enumerate(entries, start=made.written + 1):
            entry_id, raw = f"{made.attempt}-{number}", text.encode()
            mark = mark_of(self._secret, made.decision_id, entry_id=entry_id, kind=kind, text=raw)
            pipeline.xadd(key, {kind: raw, MARK: mark}, id=entry_id, maxlen=MAX_ENTRIES, approximate=False)
        pipeline.expire(key, KEEP_S)
        pipeline.get(read_key(made.decision_id))

    def _wrote(self, made: AnswerWriter, *, entries: int, read: bytes | None, failed: bool) -> None:
        taken = self._taken(made, read)
        with self._changed:
            if failed:
                made.broken, made.pending = True, []
            made.written += entries
            made.taken = None if taken is None else max(made.taken or 0, taken)
            if made.deadline == 0.0 and not made.pending:
                self._forget(made)
        if not made.full:
            made.free()

    def _taken(self, made: AnswerWriter, read: bytes | None) -> int | None:
        """Entries of this run that its reader has taken. None: there is no reader, or not ours says how far it is."""
        if read is None:
            return None
        try:
            attempt, number = position(read)
        except ValueError:
            self._outage.foreign.add("streams", f"{read[:40]!r} is not how far a reader is")
            return None
        return number if attempt == made.attempt else 0


def _resolve(room: "asyncio.Future[None]") -> None:
    if not room.done():
        room.set_result(None)
