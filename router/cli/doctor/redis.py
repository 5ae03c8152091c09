"""Checks of Redis: whether it can be reached and written to, what it forgets, and what waits in it."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import redis
from redis.exceptions import RedisError, ResponseError

from ragbandit.router.cli.doctor.findings import Finding, Installation, fine, problem, warning
from ragbandit.router.config.settings import Settings
from ragbandit.router.queue.jobs import RedisJobs, connect
from ragbandit.router.queue.listener import CHANNEL
from ragbandit.router.queue.presence import present
from ragbandit.router.queue.redis_server import redis_url
from ragbandit.shared.errors import QueueError

#: no reply within that is none, seconds
REPLY_S: Final = 3.0
#: share of maxmemory, and of workers.max_queued, from which on it is remarkable
FULL: Final = 0.9


@contextlib.contextmanager
def connected(settings: Settings) -> Iterator[redis.Redis]:
    """A client of the configured Redis, or of the private one. Raises QueueError."""
    client = connect(redis_url(settings), timeout_s=REPLY_S)
    try:
        client.ping()
        yield client
    except (RedisError, OSError) as error:
        raise QueueError(
            f"Redis is not reachable: {str(error)[:200]}",
            field="redis_url",
            remedy="start it (`ragbandit up` has its own), or correct REDIS_URL; answers are late until then, not lost",
        ) from error
    finally:
        client.close()


def ping(settings: Settings) -> None:
    """Raises QueueError where Redis does not reply."""
    with connected(settings):
        pass


def is_unused(settings: Settings) -> bool:
    """Whether no Redis is configured, and `ragbandit up` never started one here: a library does without."""
    return settings.redis_url is None and not Path(settings.data_dir, "redis.log").exists()


def reachable(installation: Installation) -> Sequence[Finding]:
    """Whether this host reaches Redis, if it has one."""
    if is_unused(installation.settings):
        return [fine("Redis", "none is used here, which a library does not need; `ragbandit up` starts one")]
    with connected(installation.settings) as client:
        return [fine("Redis", f"version {_info(client, 'server').get('redis_version', 'unknown')}")]


def memory(installation: Installation) -> Sequence[Finding]:
    """Whether it may throw away what waits, or is full."""
    with connected(installation.settings) as client:
        info = _info(client, "memory")
    most, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if most and used > FULL * most:
        means = "soon it refuses writes or throws entries away: answers are late, rates are forgotten"
        remedy = "raise maxmemory; the queue takes about 1 kB for each of workers.max_queued"
        return [problem("Redis memory", f"{used / most:.0%} of maxmemory is used", means=means, remedy=remedy)]
    if most and policy != "noeviction":
        means = "when it is full it throws jobs and rates away; the sweep finds the jobs again, late"
        remedy = "set maxmemory-policy noeviction, or use a Redis that caches share no memory with"
        return [warning("Redis memory", f"maxmemory-policy is {policy}", means=means, remedy=remedy)]
    return [fine("Redis memory", f"{used / 1e6:.0f} MB used, {policy}")]


def persistence(installation: Installation) -> Sequence[Finding]:
    """Whether it accepts writes. That it may forget everything is no fault: SQL is the truth."""
    with connected(installation.settings) as client:
        saved, copies = _info(client, "persistence"), _info(client, "replication")
    if copies.get("role") not in (None, "master"):
        means = "nothing can be queued in a replica"
        remedy = "let REDIS_URL name the master, or the address that follows it"
        return [problem("Redis writes", "it is a replica", means=means, remedy=remedy)]
    if saved.get("rdb_last_bgsave_status") == "err":
        means = "with stop-writes-on-bgsave-error, its default, it refuses every write"
        remedy = "see its log; free the disk it saves to, or turn saving off (save ''): nothing here needs it"
        return [problem("Redis writes", "its last save to disk failed", means=means, remedy=remedy)]
    return [fine("Redis writes", "accepts writes")]


def queues(installation: Installation) -> Sequence[Finding]:
    """What waits, and whether anybody takes it."""
    settings = installation.settings
    with connected(settings) as client:
        jobs = RedisJobs(client)
        depth, refused = jobs.depth(), jobs.refused()
        jobs.workers(), jobs.work()
        foreign = [part for part, count in jobs.outage.foreign.counts().items() if count]
        served = {queue for card in present(client) for queue in card.queues}
    findings = []
    for queue, count in depth.items():
        if count and queue not in served:
            means = "nobody takes them: answers, scores or learning wait"
            remedy = f"start `ragbandit worker --queue {queue}`, or see the log of the one that should run"
            findings.append(problem("queues", f"{count} wait in {queue}, and no worker", means=means, remedy=remedy))
    if depth["answer"] > FULL * settings.workers.max_queued:
        means = "further ones wait in the database until there is room"
        remedy = "start more workers for the queue answer, or let callers wait less"
        findings.append(warning("queues", f"{depth['answer']} wait for an answer", means=means, remedy=remedy))
    if refused:
        means = "something else writes to these queues: they were removed unread"
        remedy = "let only ragbandit reach this Redis, or give it a database of its own (redis://host/1)"
        findings.append(warning("queues", f"{refused} entries were no jobs of ours", means=means, remedy=remedy))
    if foreign:
        means = "they are read as absent: what waits, who works and what was done is not told in full"
        remedy = "let only ragbandit reach this Redis, or give it a database of its own (redis://host/1)"
        findings.append(
            warning("queues", f"not ours is what stands in: {', '.join(foreign)}", means=means, remedy=remedy)
        )
    text = ", ".join(f"{queue} {count}" for queue, count in depth.items())
    return findings or [fine("queues", text)]


def listeners(installation: Installation) -> Sequence[Finding]:
    """Whether the services, and the workers that run arms or judge, hear each other's notifications."""
    settings = installation.settings
    with connected(settings) as client:
        cards = present(client)
        try:
            ((_, count),) = client.pubsub_numsub(CHANNEL)
        except ResponseError:
            return [fine("listeners", "this user may not ask Redis how many there are")]
    heard = {"judge", *(["answer"] if settings.worker_arms else [])}
    wanted = sum(card.role == "service" or not heard.isdisjoint(card.queues) for card in cards)
    text = f"{count} listen, of {wanted} processes that should"
    if count >= wanted:
        return [fine("listeners", text)]
    means = "answers and new policies come up to a second late there; one that ended within a minute is still counted"
    remedy = "see `redis` in the reply of each /ready and the logs of the workers; restart the one that does not listen"
    return [warning("listeners", text, means=means, remedy=remedy)]


def _info(client: redis.Redis, section: str) -> Mapping[str, Any]:
    """A section of INFO; nothing where this user may not ask."""
    try:
        values: Any = client.info(section)
    except RedisError:
        return {}
    return values if isinstance(values, Mapping) else {}
