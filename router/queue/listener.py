"""A thread that receives the notifications of all processes. Import this module only if redis is installed."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import redis
from redis.exceptions import RedisError

from ragbandit.router.queue.outage import Outage, redis_call
from ragbandit.router.queue.refusals import CHANNEL
from ragbandit.router.telemetry.routines import Routine

log = logging.getLogger("ragbandit.jobs")

#: seconds that a listener waits for a notification before it checks whether `close` was called
LOOK_S: Final = 0.25
#: pause after a failure before a listener tries Redis again, seconds
PAUSE_S: Final = 1.0
#: seconds without a subscription after which a listener reports a fault; subscribing takes a moment
GRACE_S: Final = 3.0
#: time of the handler with one notification after which the listener counts as stuck, seconds
STUCK_S: Final = 15.0


class Listener:
    """A thread that calls `handle` with every notification. It survives outages of Redis and errors of `handle`."""

    def __init__(self, client: "redis.Redis", handle: Callable[[str], None], *, outage: Outage) -> None:
        self._client = client
        self._handle = handle
        self._outage = outage
        self._stop = threading.Event()
        self._subscribed = False
        self._read_at = time.monotonic()
        self._routine = Routine("listen to notifications", self._receive, every_s=PAUSE_S).start()

    def fault(self) -> str | None:
        """Reason why notifications do not arrive; None if they arrive."""
        silent_s = time.monotonic() - self._read_at
        if not self._subscribed and silent_s > GRACE_S:
            return "the listener is not subscribed to notifications, and tries again every second"
        return f"the listener has been at one notification for {silent_s:.0f} s" if silent_s > STUCK_S else None

    def close(self) -> None:
        self._stop.set()
        self._routine.close()

    def _receive(self) -> None:
        try:
            with self._client.pubsub(ignore_subscribe_messages=True) as pubsub:  # type: ignore[no-untyped-call] # redis
                with redis_call(self._outage):
                    pubsub.subscribe(CHANNEL)
                self._subscribed = True
                while not self._stop.is_set():
                    self._read_at = time.monotonic()
                    message = pubsub.get_message(timeout=LOOK_S)
                    if message and message["type"] == "message":
                        self._pass_on(message["data"])
        except (RedisError, OSError) as error:
            # Users of a listener also poll the database, so they only notice events a little later.
            self._outage.note_failure(error)
        finally:
            self._subscribed = False

    def _pass_on(self, published: bytes) -> None:
        notification = published.decode("ascii", "replace")
        try:
            self._handle(notification)
        except Exception as error:  # an error in one notification must not end the listener
            extra = {"action": "listen", "notification": notification, "reason": str(error)}
            log.warning("a notification was not handled; polling finds the same in the database", extra=extra)
