"""Listener: a thread that receives the notifications that other processes publish in Redis."""

import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Final

import redis
from redis.exceptions import RedisError

from ragbandit.router.queue.outage import Outage
from ragbandit.router.telemetry.logs import Throttle

log = logging.getLogger("ragbandit.jobs")

#: the one channel; its name stays as it was, so that processes of different releases hear each other
CHANNEL = "ragbandit:news"
#: a notification is a word, and most often an id; whatever is longer or has other bytes is dropped unread
_NOTIFICATION: Final = re.compile(rb"[a-z]{1,32}(:[!-~]{1,64})?")
#: how often the thread looks whether to end, seconds
LOOK_S: Final = 0.25
#: pause before Redis is tried again, seconds
PAUSE_S: Final = 1.0
#: a listener that is not subscribed for that long is told of: at its start, and after an outage, it takes a moment
GRACE_S: Final = 3.0
#: a listener that has been at one notification for that long is stuck, seconds
STUCK_S: Final = 15.0
#: least time between two log lines about errors that nobody foresaw, seconds
QUIET_S: Final = 30.0


class Listener:
    """A thread that hands every notification to `handle`.

    It survives Redis going away and coming back, whatever somebody else publishes, and what `handle` raises.
    """

    def __init__(self, client: "redis.Redis", handle: Callable[[str], None], *, outage: Outage) -> None:
        self._client = client
        self._handle = handle
        self._outage = outage
        self._stop = threading.Event()
        self._subscribed = False
        #: when the thread last waited for a notification (time.monotonic)
        self._turn_at = time.monotonic()
        self._throttle = Throttle(QUIET_S)
        self._thread = threading.Thread(target=self._run, name="ragbandit-listener", daemon=True)
        self._thread.start()

    def fault(self) -> str | None:
        """Why notifications do not arrive now; None: they do."""
        if not self._thread.is_alive():
            return "the listener has ended, so answers and learning come up to a second late: restart the process"
        silent_s = time.monotonic() - self._turn_at
        if not self._subscribed and silent_s > GRACE_S:
            return "the listener is not subscribed to notifications, and tries again every second"
        return f"the listener has been at one notification for {silent_s:.0f} s" if silent_s > STUCK_S else None

    def close(self) -> None:
        """End the thread; waits for at most 2 s."""
        self._stop.set()
        self._thread.join(2)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._receive()
            except (RedisError, OSError) as error:
                # Pollers behind every listener find the same facts in SQL, a little later.
                self._outage.failed(error)
            except Exception:  # without this thread every answer would be late until the process ends
                self._log_unforeseen()
            self._subscribed = False
            self._stop.wait(PAUSE_S)

    def _receive(self) -> None:
        """Receive until the listener is closed. Raises RedisError or OSError."""
        with self._client.pubsub(ignore_subscribe_messages=True) as pubsub:  # type: ignore[no-untyped-call] # redis
            began = time.monotonic()
            pubsub.subscribe(CHANNEL)
            self._outage.reached(began=began)
            self._subscribed = True
            while not self._stop.is_set():
                self._turn_at = time.monotonic()
                message = pubsub.get_message(timeout=LOOK_S)
                if message and message["type"] == "message":
                    self._hand_on(message["data"])

    def _hand_on(self, published: bytes) -> None:
        if not _NOTIFICATION.fullmatch(published):
            self._outage.foreign.add("notifications", f"{len(published)} bytes, {published[:40]!r}")
            return
        notification = published.decode("ascii")
        try:
            self._handle(notification)
        except Exception as error:  # of whoever handles it: the listener must live on
            facts = {"action": "listen", "notification": notification, "reason": str(error)}
            log.warning("a notification was not handled; polling finds the same in the database", extra=facts)

    def _log_unforeseen(self) -> None:
        if self._throttle.lets_pass():
            log.exception("receiving notifications failed; it begins again", extra={"action": "listen"})
