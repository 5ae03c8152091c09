"""PostgreSQL connections that notice a silent network: a firewall or a failover may swallow one without a word.

Two guards, since each misses what the other sees. The kernel closes a connection whose packets are not acknowledged
(TCP_USER_TIMEOUT, keepalives). Where something on the way acknowledges them and passes nothing on, only the server
knows: after SILENT_S without a byte of the reply we ask it over a second connection what our session is doing. A
session that works, or waits for a lock, is waited for; one that has nothing to do, or is gone, has been cut off.
"""

import math
import time
from abc import ABC, abstractmethod
from typing import Any

import psycopg
from psycopg.abc import PQGen

from ragbandit.router.storage.sql.schema_window import session_name
from ragbandit.router.storage.sql.tables import SCHEMA_REVISION

#: silence of the server in the middle of a statement after which it is asked what it is doing, seconds
SILENT_S = 3.0
#: longest silence while no second connection comes about, seconds
UNREACHABLE_S = 8.0
#: longest silence while the server can be reached, and does not tell what the session is doing, seconds
UNKNOWN_S = 30.0
#: seconds for the question and its answer, each
ASK_S = 2
#: a reply that was sent that long ago, and has not come, will not come, seconds
ON_ITS_WAY_S = 1.0

#: of libpq, each unless DATABASE_URL sets it
DEFAULTS = {
    "connect_timeout": 5,
    "tcp_user_timeout": 5000,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "application_name": session_name(SCHEMA_REVISION),
}
#: of the session; those in the `options` of DATABASE_URL come after them, and hold
SESSION_OPTIONS = {
    "statement_timeout": 120_000,
    # So that a host that vanished holds its locks for seconds, not for the two hours of a usual kernel.
    "tcp_keepalives_idle": 10,
    "tcp_keepalives_interval": 3,
    "tcp_keepalives_count": 3,
}
#: what a session is doing, by its process id. One that has long been idle while we wait for its reply is ended, since
#: nobody will ever end its transaction, and its locks stand in the way
_ASK = """
SELECT state, wait_event_type, pg_backend_pid(),
       CASE WHEN state LIKE 'idle%%' AND state_change < clock_timestamp() - make_interval(secs => %(on_its_way)s)
            THEN pg_terminate_backend(pid) END
FROM pg_stat_activity WHERE pid = %(pid)s
UNION ALL SELECT NULL, NULL, pg_backend_pid(), NULL
"""


class _TimedConnection(psycopg.Connection[Any], ABC):
    """A connection that calls `_silent` while it waits and the server says nothing."""

    def wait(self, gen: PQGen[Any], *args: Any, **kwargs: Any) -> Any:
        """As of psycopg, which looks in every 0.1 s while it waits."""
        return super().wait(self._timed(gen), *args, **kwargs)

    def _timed(self, gen: PQGen[Any]) -> PQGen[Any]:
        heard = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    heard = time.monotonic()
                else:
                    self._silent(time.monotonic() - heard)
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value

    @abstractmethod
    def _silent(self, seconds: float) -> None:
        """Raise OperationalError where it makes no sense to wait on."""

    def _give_up(self, reason: str) -> None:
        self.pgconn.finish()
        raise psycopg.OperationalError(reason)


class _AskingConnection(_TimedConnection):
    """The second connection: it waits for ASK_S at most."""

    def _silent(self, seconds: float) -> None:
        if seconds > ASK_S:
            self._give_up(f"no reply within {ASK_S} s")


class WatchedConnection(_TimedConnection):
    """A connection that does not wait for a server that is not working for it."""

    #: what it was made with
    parameters: dict[str, Any]
    _ask_at = SILENT_S
    _suspected = False

    def _silent(self, seconds: float) -> None:
        if seconds < SILENT_S:
            self._ask_at, self._suspected = SILENT_S, False
            return
        if seconds < self._ask_at:
            return
        began = time.monotonic()
        if seconds >= self._patience():
            self._give_up(f"the connection was lost on the way: no reply for {seconds:.0f} s, and none is on its way")
        self._ask_at = seconds + (time.monotonic() - began) + SILENT_S

    def _patience(self) -> float:
        """How long a silence may last, by what the server says that the session is doing, seconds."""
        try:
            with _AskingConnection.connect(**self.parameters | {"connect_timeout": ASK_S}, autocommit=True) as asking:
                question = {"pid": self.info.backend_pid, "on_its_way": ON_ITS_WAY_S}
                (*ours, (_, _, session, _)) = asking.execute(_ASK, question).fetchall()
                if session != asking.info.backend_pid:
                    return UNKNOWN_S  # a pooler stands between: its process ids are not the server's
        except psycopg.Error as error:
            # With a code it is the server that refuses, for example since it has too many connections.
            return UNREACHABLE_S if error.sqlstate is None else UNKNOWN_S
        if not ours:
            return 0.0
        ((state, waits_for, _, ended),) = ours
        if state is None:
            return UNKNOWN_S  # of another role, which may not be seen
        if waits_for == "Client" and not state.startswith("idle"):
            # In the middle of a message from us or to us. Seen twice in a row, the two wait for each other.
            ended, self._suspected = self._suspected, True
        else:
            self._suspected = False
        return 0.0 if ended else math.inf


def connect(parameters: dict[str, Any]) -> WatchedConnection:
    """A connection with these parameters, as of `with_defaults`. Raises psycopg.OperationalError."""
    connection = WatchedConnection.connect(**parameters)
    connection.parameters = parameters
    return connection


def with_defaults(parameters: dict[str, Any], *, lock_wait_s: float) -> dict[str, Any]:
    """The parameters of libpq in DATABASE_URL, and our defaults for what they leave open.

    lock_wait_s: longest wait for a lock.
    """
    options = SESSION_OPTIONS | {"lock_timeout": int(lock_wait_s * 1000)}
    ours = " ".join(f"-c {name}={value}" for name, value in options.items())
    return {**DEFAULTS, **parameters, "options": f"{ours} {parameters.get('options', '')}".strip()}
