"""Bells: jobs of RQ that say that something waits. The database says what; a bell that is lost makes it late, no more.

A bell carries nothing. Whoever can write to Redis can queue anything, and RQ imports the function that a record names,
calls its callbacks and its web hooks. `Bell` takes nothing but the name out of a record, and looks that up among ours.
"""

import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import redis
from redis.exceptions import ResponseError
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job
from rq.serializers import JSONSerializer

ANSWER_QUEUE: Final = "ragbandit-answer"
LEARN_QUEUE: Final = "ragbandit-learn"
#: name of a queue for people -> RQ's queue; its bells have the same name
BELLS: Final = {"answer": ANSWER_QUEUE, "learn": LEARN_QUEUE}
#: counts what was taken from a queue and was none of our bells
REFUSED_KEY: Final = "ragbandit:refused-jobs"
#: largest `data` of a record that is read, bytes, compressed and not
_MAX_BYTES: Final = 4096
#: the record of a bell that nobody takes is kept that long, and that of one that failed, seconds
_KEEP_S: Final = 86_400
_KEEP_FAILED_S: Final = 60


class Bell(Job):  # type: ignore[misc] # RQ has no types
    """A job of RQ that calls one of `functions` without arguments, whatever else its record says."""

    #: name of a bell -> what it calls in this process
    functions: ClassVar[Mapping[str, Callable[[], None]]] = {}

    def refresh(self) -> None:
        """Read the record. Raises NoSuchJobError, by which RQ passes on, if it is none of our bells: it is removed."""
        name = _name(self.connection, self.key)
        if name is None or name not in self.functions:
            if self.connection.unlink(self.key):
                self.connection.incr(REFUSED_KEY)
            raise NoSuchJobError(f"not a bell: {self.id}")
        data = JSONSerializer.dumps((name, None, (), {}))
        self.restore({b"data": data, b"origin": BELLS[name].encode(), b"timeout": b"-1", b"result_ttl": b"0"})

    @property
    def func(self) -> Callable[[], None]:
        """Its function. Nothing is imported."""
        return self.functions[self.func_name]


def bell_class(functions: Mapping[str, Callable[[], None]]) -> type[Bell]:
    """The class of jobs of a process that calls these functions."""
    return type("ProcessBell", (Bell,), {"functions": functions})


def queue_of(client: "redis.Redis", name: str) -> Queue:
    """RQ's queue of these bells."""
    return Queue(BELLS[name], connection=client, serializer=JSONSerializer)


def ring(client: "redis.Redis", name: str, *, count: int) -> None:
    """Queue so many bells. Raises RedisError."""
    queue = queue_of(client, name)
    bell = Queue.prepare_data(name, timeout=-1, result_ttl=0, ttl=_KEEP_S, failure_ttl=_KEEP_FAILED_S)
    queue.enqueue_many([bell] * count)


def _name(client: "redis.Redis", key: str) -> str | None:
    """The name that the record of a job has; None for anything else, however large."""
    try:
        size: Any = client.hstrlen(key, "data")
        raw: Any = client.hget(key, "data") if 0 < size <= _MAX_BYTES else b""
    except ResponseError:  # of another type
        return None
    try:
        name, *_ = json.loads(_decompressed(raw))
    except (ValueError, TypeError, RecursionError, zlib.error):
        return None
    return name if isinstance(name, str) else None


def _decompressed(data: bytes) -> bytes:
    """RQ compresses; a record that says little and becomes much is cut off, and is no JSON then."""
    try:
        return zlib.decompressobj().decompress(data, _MAX_BYTES)
    except zlib.error:
        return data
