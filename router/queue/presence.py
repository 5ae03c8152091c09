"""Process cards: services and workers describe themselves in Redis, for `ragbandit status`, pages and metrics."""

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

from ragbandit.router.telemetry.routines import Routine
from ragbandit.shared.version import __version__

#: seconds for which a process is listed after it has renewed its card
KEPT_S: Final = 45.0
#: maximum number of processes that are listed
MAX_LISTED: Final = 1000
#: maximum number of worker threads that `worker_threads` lists, in total and per queue of a process
MAX_THREADS: Final = 500
#: sorted set of Redis: key of a card -> time of its renewal, by the clock of Redis
_LIST: Final = "ragbandit:processes"
#: packages whose versions are reported if they are installed
_PACKAGES: Final = ("numpy", "redis", "rq", "sqlalchemy", "torch", "transformers")

_Queue = Annotated[str, StringConstraints(max_length=20)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessCard:
    host: str
    pid: int
    #: "service" or "worker"
    role: str
    #: queues that the process serves: "answer", "judge" and "learn"
    queues: tuple[str, ...] = ()
    #: queue -> number of the worker's threads; `busy` counts only the threads that run a job
    threads: Mapping[_Queue, int] = field(default_factory=dict)
    busy: Mapping[_Queue, int] = field(default_factory=dict)
    version: str
    packages: Mapping[str, str]
    #: name of the retriever and the first digits of its index's hash; empty if there is no retriever
    retriever: str = ""
    #: random text, since containers may have the same host name and process id
    mark: str = ""
    #: seconds by which the host's clock was ahead of the clock of Redis at the renewal
    ahead_s: float = 0.0
    #: time of the renewal by the clock of Redis, seconds since the epoch
    said_at: float = 0.0


_CARD: Final = TypeAdapter(ProcessCard)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerState:
    """A thread of a worker process that takes jobs of one queue."""

    name: str
    #: "answer", "judge" or "learn"
    queue: str
    #: "idle" or "busy"
    state: str
    host: str
    #: time at which the worker process last renewed its card, seconds since 1970
    heard_at: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueWork:
    """Numbers of successful and of failed jobs of one queue, and their total seconds, as long as Redis keeps them."""

    done: int = 0
    failed: int = 0
    seconds: float = 0.0


def start_presence(client: Any, card: ProcessCard, *, busy: Callable[[], Mapping[str, int]] = dict) -> Routine:
    """Start a thread that renews this process's card, and deletes it at the end. client: must have a short timeout."""
    from redis.exceptions import RedisError  # imported here, since this module must load if redis is not installed

    def renew() -> None:
        with contextlib.suppress(RedisError, OSError):  # other callers of Redis log the outage
            publish_card(client, replace(card, busy=busy()))

    def leave() -> None:
        with contextlib.suppress(RedisError, OSError):  # the card expires anyway
            client.zrem(_LIST, _key(card))
            client.delete(_key(card))

    return Routine("renew the card of this process", renew, every_s=5.0, at_end=leave).start()


def make_card(*, role: str, threads: Mapping[str, int] | None = None, retriever: str = "") -> ProcessCard:
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
        version=__version__,
        packages=packages,
        retriever=retriever,
        mark=secrets.token_hex(4),
    )


def publish_card(client: Any, card: ProcessCard) -> None:
    """Store the card in Redis for KEPT_S seconds. Raises RedisError."""
    seconds, microseconds = client.time()
    now = seconds + microseconds / 1e6
    card = replace(card, ahead_s=round(time.time() - now, 3), said_at=now)
    with client.pipeline(transaction=False) as pipeline:
        pipeline.set(_key(card), _CARD.dump_json(card), ex=int(KEPT_S))
        pipeline.zadd(_LIST, {_key(card): now})
        pipeline.zremrangebyscore(_LIST, "-inf", now - KEPT_S)
        pipeline.zremrangebyrank(_LIST, 0, -MAX_LISTED - 1)
        pipeline.execute()


def running_processes(client: Any) -> list[ProcessCard]:
    """Cards of the running processes, ordered by host and process id. Raises RedisError."""
    keys = client.zrange(_LIST, 0, MAX_LISTED - 1)
    if not keys:
        return []
    cards = []
    for text in filter(None, client.mget(keys)):
        with contextlib.suppress(ValidationError):  # another release or program wrote this card
            cards.append(_CARD.validate_json(text))
    return sorted(cards, key=lambda card: (card.host, card.pid))


def worker_threads(cards: Iterable[ProcessCard]) -> list[WorkerState]:
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
    return sorted(islice(threads, MAX_THREADS), key=lambda thread: (thread.queue, thread.name))


def _key(card: ProcessCard) -> str:
    return f"ragbandit:process:{card.host}:{card.pid}:{card.mark}"
