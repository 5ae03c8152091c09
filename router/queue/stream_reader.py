"""Reader of streams: one thread and one connection of a service process for all answers that are read along in it."""

import contextlib
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import redis
from redis.exceptions import RedisError

from ragbandit.router.queue.jobs import CHANNEL
from ragbandit.router.queue.redis_server import Outage
from ragbandit.router.queue.stream_writer import (
    KEEP_S,
    MAX_ENTRIES,
    NOTE,
    TEXT,
    WANTED_S,
    position,
    stream_key,
    wanted_key,
)
from ragbandit.shared.types import DecisionId, StatusNote, TextPiece

log = logging.getLogger("ragbandit.jobs")

#: answers that a process reads along at once; further ones come whole
MAX_STREAMS: Final = 1000
#: entries that are held for a caller who is slower than the arm; one further behind gets the rest whole
MAX_HELD: Final = MAX_ENTRIES
#: the notification that somebody wants to read along is this and the id
STREAM_NEWS: Final = "stream"
#: longest wait for new entries, and most of them that are read at once
WAIT_MS: Final = 1000
MOST: Final = 64
#: pause after Redis could not be reached, seconds
PAUSE_S: Final = 0.5


class ReadStream:
    """One answer that is read along. `take` is the caller's; the thread fills it and calls `wake`."""

    def __init__(self, decision_id: DecisionId, *, wake: Callable[[], None]) -> None:
        self.decision_id = decision_id
        self._wake = wake
        self._entries: deque[tuple[tuple[int, int], TextPiece | StatusNote]] = deque()
        #: position of the last entry that came
        self.last = (0, 0)
        #: entries were missed, or Redis cannot be reached: nothing more will come
        self.lost = False

    def take(self) -> tuple[int, TextPiece | StatusNote] | None:
        """(attempt, the next piece or note), or None if there is none now."""
        if not self._entries:
            return None
        (attempt, _), piece = self._entries.popleft()
        return attempt, piece

    def put(self, at: tuple[int, int], piece: TextPiece | StatusNote) -> None:
        """Take an entry of the stream in; one that does not follow the last one ends it."""
        if self.lost or at <= self.last:
            return
        follows = at == (self.last[0], self.last[1] + 1) or (at[0] > self.last[0] and at[1] == 1)
        if not follows or len(self._entries) >= MAX_HELD:
            self.lose()
            return
        self.last = at
        self._entries.append((at, piece))
        self._wake()

    def lose(self) -> None:
        """Nothing more comes."""
        self.lost = True
        self._wake()


class StreamReader:
    """The thread, started with the first answer that is read along. Safe to use from several threads."""

    def __init__(self, client: "redis.Redis", *, outage: Outage) -> None:
        self._client = client
        self._outage = outage
        reply_s = client.connection_pool.connection_kwargs.get("socket_timeout") or 10.0
        #: a wait must end before the client takes the silence for a dead Redis
        self._wait_ms = min(WAIT_MS, int(1000 * reply_s / 3))
        self._wake_key = f"ragbandit:stream-wake:{uuid.uuid4().hex}"
        self._woken = b"0-0"
        self._streams: dict[DecisionId, list[ReadStream]] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def want(self, decision_id: DecisionId) -> None:
        """Have its run give this answer out; before the run is asked for, so that nothing is written unread.

        It waits for Redis. Where that fails the answer comes whole.
        """
        if self._outage.paused:
            return
        try:
            self._client.set(wanted_key(decision_id), 1, ex=WANTED_S)
        except (RedisError, OSError) as error:
            self._outage.failed(error)

    def subscribe(self, decision_id: DecisionId, *, wake: Callable[[], None]) -> ReadStream | None:
        """Read this answer along, from its first word if it has not begun; None: it comes whole. It waits for Redis.

        wake: called in the reading thread when there is something to take. To be given to `leave` after use.
        """
        if self._outage.paused or len(self._streams) >= MAX_STREAMS:
            return None
        stream = ReadStream(decision_id, wake=wake)
        with self._changed:
            if self._closed:
                return None
            self._streams.setdefault(decision_id, []).append(stream)
            self._start()
            self._changed.notify()
        began = time.monotonic()
        try:
            with self._client.pipeline(transaction=False) as pipeline:
                pipeline.set(wanted_key(decision_id), 1, ex=WANTED_S)
                pipeline.publish(CHANNEL, f"{STREAM_NEWS}:{decision_id}")
                pipeline.xadd(self._wake_key, {"w": 1}, maxlen=1, approximate=False)
                pipeline.expire(self._wake_key, WANTED_S)
                pipeline.execute()
        except (RedisError, OSError) as error:
            self.leave(stream)
            self._outage.failed(error)
            return None
        self._outage.reached(began=began)
        return stream

    def leave(self, stream: ReadStream) -> None:
        """Read it along no more."""
        with self._changed:
            left = [each for each in self._streams.get(stream.decision_id, []) if each is not stream]
            if left:
                self._streams[stream.decision_id] = left
            else:
                self._streams.pop(stream.decision_id, None)

    def count(self) -> int:
        """Answers that are read along now."""
        return len(self._streams)

    def close(self) -> None:
        """End the thread; waits for at most 2 s."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            with contextlib.suppress(RedisError, OSError):  # or it ends with its wait
                self._client.xadd(self._wake_key, {"w": 1}, maxlen=1, approximate=False)
                self._client.expire(self._wake_key, KEEP_S)
            self._thread.join(2)

    def _start(self) -> None:
        """Start the thread, once. Called under the lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ragbandit-streams", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._streams and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                groups = {key: [each for each in group if not each.lost] for key, group in self._streams.items()}
                streams = {key: group for key, group in groups.items() if group}
                if not streams:
                    self._changed.wait(PAUSE_S)
                    continue
            try:
                self._read(streams)
            except (RedisError, OSError) as error:
                self._outage.failed(error)
                self._lose(each for group in streams.values() for each in group)
                time.sleep(PAUSE_S)
            except Exception:
                log.exception("answers cannot be read along; they come whole", extra={"action": "stream"})
                self._lose(each for group in streams.values() for each in group)
                time.sleep(PAUSE_S)

    @staticmethod
    def _lose(streams: Iterable[ReadStream]) -> None:
        for stream in streams:
            stream.lose()

    def _read(self, streams: dict[DecisionId, list[ReadStream]]) -> None:
        """Wait for entries, and hand them to their readers."""
        after: dict[Any, Any] = {self._wake_key: self._woken.decode()}
        for key, group in streams.items():
            attempt, number = min(each.last for each in group)
            after[stream_key(key)] = f"{attempt}-{number}"
        reply = self._client.xread(after, count=MOST, block=self._wait_ms)
        for name, entries in _items(reply):
            if name == self._wake_key.encode():
                self._woken = entries[-1][0]
                continue
            decision_id = DecisionId(name.decode().removeprefix(stream_key("")))
            for entry_id, fields in entries:
                piece_class = TextPiece if TEXT in fields else StatusNote
                piece = piece_class(text=fields[TEXT if TEXT in fields else NOTE].decode())
                for stream in streams[decision_id]:
                    stream.put(position(entry_id), piece)


def _items(reply: Any) -> Iterable[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
    """(key, entries) of a reply to XREAD; redis-py gives a list, or a mapping under protocol 3."""
    if isinstance(reply, dict):
        return ((key, [entry for part in parts for entry in part]) for key, parts in reply.items())
    return ((key, entries) for key, entries in reply or ())
