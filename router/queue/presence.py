"""Presence: every service and worker says in Redis that it is there, of which version, and with what.

`ragbandit status`, the pages and the metrics read it. Nothing decides by it: while Redis is gone nobody is listed, and
everything else goes on. What is no card is left out.
"""

import contextlib
import importlib.metadata
import os
import platform
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Annotated, Any, Final

from pydantic import StringConstraints, TypeAdapter, ValidationError

import ragbandit
from ragbandit.router.telemetry.routines import Routine

#: time after its last sign of life for which a process is listed, seconds
KEPT_S: Final = 45.0
#: time between two signs of life, seconds
RENEW_S: Final = 5.0
#: processes that are listed at most
MAX_LISTED: Final = 1000
#: threads of a queue that one card may have, and threads that are listed
MAX_THREADS: Final = 500
#: sorted set: key of a card -> when it was renewed, by the clock of Redis
_LIST: Final = "ragbandit:processes"
#: packages whose versions are reported, if installed
_PACKAGES: Final = ("numpy", "redis", "rq", "sqlalchemy", "torch", "transformers")

_Queue = Annotated[str, StringConstraints(max_length=20)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessCard:
    """What a process says of itself."""

    host: str
    pid: int
    #: service or worker
    role: str
    #: answer, judge, learn: of a worker
    queues: tuple[str, ...] = ()
    #: threads by queue, and how many of them are at work; of a worker
    threads: Mapping[_Queue, int] = field(default_factory=dict)
    busy: Mapping[_Queue, int] = field(default_factory=dict)
    #: version of ragbandit
    version: str
    #: package -> version, "python" among them
    packages: Mapping[str, str]
    #: name of the retriever, with the beginning of its index's hash; empty: none
    retriever: str = ""
    #: tells it from others: containers may share the name of the host, and each has a process 1
    mark: str = ""
    #: the host's clock less that of Redis, when it was renewed, seconds
    ahead_s: float = 0.0
    #: when it was renewed, by the clock of Redis, seconds since the epoch
    said_at: float = 0.0


_CARD: Final = TypeAdapter(ProcessCard)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerState:
    """A thread of a worker process that takes jobs of one queue."""

    name: str
    """Its name in the queue."""
    queue: str
    """answer, judge or learn."""
    state: str
    """For example idle or busy."""
    host: str
    """The host that it runs on."""
    heard_at: float | None
    """When it was last heard from, seconds since 1970; null if never."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueWork:
    """What all workers of a queue have done since this Redis has been counting."""

    done: int = 0
    failed: int = 0
    seconds: float = 0.0


def keep_present(client: Any, card: ProcessCard, *, busy: Callable[[], Mapping[str, int]] = dict) -> Routine:
    """A thread that renews the card of this process until it is closed, and takes it away then.

    client: of Redis, with a short time limit. busy: asks how many threads are at work, by queue.
    """
    from redis.exceptions import RedisError  # here, since a library without Redis loads this module

    def renew() -> None:
        with contextlib.suppress(RedisError, OSError):  # the users of Redis log the outage
            say(client, replace(card, busy=busy()))

    def leave() -> None:
        with contextlib.suppress(RedisError, OSError):  # it fades by itself
            client.zrem(_LIST, _key(card))
            client.delete(_key(card))

    return Routine("say that this process is there", renew, every_s=RENEW_S, at_end=leave).start()


def card_of(*, role: str, threads: Mapping[str, int] | None = None, retriever: str = "") -> ProcessCard:
    """The card of this process. threads: of a worker, by queue."""
    packages = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    return ProcessCard(
        host=socket.gethostname(),
        pid=os.getpid(),
        role=role,
        queues=tuple(threads or ()),
        threads=dict(threads or {}),
        version=ragbandit.__version__,
        packages=packages,
        retriever=retriever,
        mark=secrets.token_hex(4),
    )


def say(client: Any, card: ProcessCard) -> None:
    """Put the card there for KEPT_S. Raises RedisError."""
    seconds, microseconds = client.time()
    theirs = seconds + microseconds / 1e6
    card = replace(card, ahead_s=round(time.time() - theirs, 3), said_at=theirs)
    with client.pipeline(transaction=False) as pipeline:
        pipeline.set(_key(card), _CARD.dump_json(card), ex=int(KEPT_S))
        pipeline.zadd(_LIST, {_key(card): theirs})
        pipeline.zremrangebyscore(_LIST, "-inf", theirs - KEPT_S)
        pipeline.zremrangebyrank(_LIST, 0, -MAX_LISTED - 1)
        pipeline.execute()


def present(client: Any) -> list[ProcessCard]:
    """Cards of the running processes, ordered by host and id; invalid entries are skipped. Raises RedisError."""
    keys = client.zrange(_LIST, 0, MAX_LISTED - 1)
    texts = client.mget(keys) if keys else []
    cards = []
    for text in filter(None, texts):
        with contextlib.suppress(ValidationError):  # written by another release or another program
            cards.append(_CARD.validate_json(text))
    return sorted(cards, key=lambda card: (card.host, card.pid))


def workers_of(cards: Iterable[ProcessCard]) -> list[WorkerState]:
    """The threads of these processes that take jobs, by queue and name; MAX_THREADS at most."""
    threads = (
        WorkerState(
            name=f"{card.host}:{card.pid}/{number}",
            queue=queue,
            state="busy" if number <= card.busy.get(queue, 0) else "idle",
            host=card.host,
            heard_at=card.said_at,
        )
        for card in cards
        for queue, count in card.threads.items()
        for number in range(1, min(count, MAX_THREADS) + 1)
    )
    return sorted(islice(threads, MAX_THREADS), key=lambda one: (one.queue, one.name))


def _key(card: ProcessCard) -> str:
    return f"ragbandit:process:{card.host}:{card.pid}:{card.mark}"
