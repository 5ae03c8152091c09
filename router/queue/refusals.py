"""Tries the commands that RagBandit and RQ need of Redis, and has a remedy for each refusal.

PING is no test: a Redis that is full, is a replica, is in cluster mode or forbids commands replies to it, too.
docs/decisions/queue-in-sql.md explains why a cluster is refused.
"""

import ssl
from typing import Any, Final

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from ragbandit.shared.errors import QueueError

#: Redis channel of all notifications; do not rename it, since processes of different releases share it
CHANNEL: Final = "ragbandit:news"
_KEPT_S: Final = 60
_OURS, _OF_RQ = "ragbandit:trial", "rq:queue:ragbandit-trial"
_TEXT, _HASH, _SET, _STREAM = (f"{_OURS}:{kind}" for kind in ("text", "hash", "set", "stream"))
_COMMANDS: Final[tuple[tuple[str | int, ...], ...]] = (
    ("PING",),
    ("TIME",),
    ("SET", _TEXT, 1, "EX", _KEPT_S),
    ("MGET", _TEXT),
    ("HINCRBY", _HASH, "n", 1),
    ("HINCRBYFLOAT", _HASH, "n", 1),
    ("HGETALL", _HASH),
    ("ZADD", _SET, 1, "n"),
    ("ZRANGE", _SET, 0, 0),
    ("ZREMRANGEBYSCORE", _SET, 0, 0),
    ("ZREMRANGEBYRANK", _SET, 0, -2),
    ("ZREM", _SET, "n"),
    ("XADD", _STREAM, "MAXLEN", 1, "*", "n", 1),
    ("XREAD", "COUNT", 1, "STREAMS", _STREAM, "$"),
    ("EXPIRE", _STREAM, _KEPT_S),
    ("EXPIRE", _HASH, _KEPT_S),
    ("RPUSH", _OF_RQ, "n"),
    ("LLEN", _OF_RQ),
    ("BLPOP", _OF_RQ, "0.01"),
    ("UNLINK", _OF_RQ),
    ("DEL", _TEXT),
    ("PUBLISH", CHANNEL, "trial"),
)
_LATE: Final = "until then answers and learning are late, not lost"
_NO_CLUSTER: Final = "Redis is in cluster mode, in which RagBandit's keys lie in several slots"
_OTHER_REDIS: Final = "use a Redis without cluster mode (a node or a primary with replicas)"
#: Redis refuses further patterns of a user with all keys or all channels, so both are reset
_ALLOWED: Final = "ACL SETUSER NAME resetkeys ~ragbandit:* ~rq:* resetchannels &ragbandit* +@all"
#: (classes of errors, part of the text, remedy); the first match counts
_REMEDIES: Final[tuple[tuple[type[RedisError] | tuple[type[RedisError], ...], str, str], ...]] = (
    (OutOfMemoryError, "", "Redis is out of memory: raise its maxmemory, or remove what fills it"),
    (ReadOnlyError, "", "this Redis is a read-only replica: let REDIS_URL name the primary"),
    (NoPermissionError, "", f"allow it to the user in REDIS_URL: {_ALLOWED}"),
    (AuthenticationError, "", "correct the user and the password in REDIS_URL"),
    (MasterDownError, "", "this Redis is a replica without its primary: let REDIS_URL name the primary"),
    ((ClusterError, ClusterCrossSlotError, MovedError), "", _OTHER_REDIS),
    (BusyLoadingError, "", "wait until Redis has loaded its data"),
    (RedisError, "max number of clients", "raise its maxclients, or end other programs that are connected"),
    (ResponseError, "unknown command", "let REDIS_URL name a Redis from 5.0 on or a Valkey, and no sentinel"),
    (ResponseError, "DB index", "correct the number of the database, which is the path of REDIS_URL"),
    (ResponseError, "MISCONF", "Redis cannot save its data: make room on its disk, or see its log"),
    (ResponseError, "", "see the log of Redis"),
)


def queue_error(error: Exception, *, command: str | None = None) -> QueueError:
    """The error to raise for an error of Redis: it refuses a command, or it is not reachable."""
    for kind, sign, remedy in _REMEDIES:
        if isinstance(error, kind) and sign in str(error):
            what = "a command" if command is None else command
            named = _NO_CLUSTER if remedy is _OTHER_REDIS else f"Redis refuses {what}"
            return QueueError(f"{named}: {str(error)[:200]}", field="redis_url", remedy=f"{remedy}; {_LATE}")
    remedy = f"start it (`ragbandit up` has its own), or correct REDIS_URL; {_LATE}"
    if isinstance(error.__context__, ssl.SSLCertVerificationError):
        remedy = f"let REDIS_URL end in ?ssl_ca_certs=FILE, with the certificate of its authority; {_LATE}"
    return QueueError(f"Redis is not reachable: {str(error)[:200]}", field="redis_url", remedy=remedy)


def try_commands(client: Any) -> None:
    """Try each kind of command that is needed, on keys that expire. Raises QueueError with the first refused one."""
    try:
        with client.pipeline(transaction=False) as pipeline:
            pipeline.execute_command("INFO", "cluster")  # a user of RagBandit's own may lack this permission
            for command in _COMMANDS:
                pipeline.execute_command(*command)
            about, *replies = pipeline.execute(raise_on_error=False)
    except (RedisError, OSError) as error:
        raise queue_error(error) from error
    if isinstance(about, dict) and about.get("cluster_enabled"):
        raise QueueError(_NO_CLUSTER, field="redis_url", remedy=f"{_OTHER_REDIS}; {_LATE}")
    for command, reply in zip(_COMMANDS, replies, strict=True):
        if isinstance(reply, Exception):
            raise queue_error(reply, command=str(command[0])) from reply
    _try_channel(client)


def _try_channel(client: Any) -> None:
    try:
        with client.pubsub() as pubsub:
            pubsub.subscribe(CHANNEL)
            pubsub.get_message(timeout=1.0)
    except (RedisError, OSError) as error:
        raise queue_error(error, command="SUBSCRIBE") from error
