"""Listener: a thread that receives the notifications that other processes publish in Redis."""

import logging
import threading
import time
from collections.abc import Callable

import redis
from redis.exceptions import RedisError

from ragbandit.router.jobs.outage import Outage

__all__ = ["CHANNEL", "Listener"]

log = logging.getLogger("ragbandit.jobs")

#: the one channel; its name stays as it was, so that processes of different releases hear each other
CHANNEL = "ragbandit:news"


class Listener:
    """A thread that hands every notification to `handle`. It survives Redis going away and coming back."""

    def __init__(self, client: "redis.Redis", handle: Callable[[str], None], *, outage: Outage) -> None:
        self._client = client
        self._handle = handle
        self._outage = outage
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ragbandit-listener", daemon=True)
        self._thread.start()

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
                self._stop.wait(1.0)

    def _receive(self) -> None:
        """Receive until the listener is closed. Raises RedisError or OSError."""
        with self._client.pubsub(ignore_subscribe_messages=True) as pubsub:  # type: ignore[no-untyped-call] # redis
            began = time.monotonic()
            pubsub.subscribe(CHANNEL)
            self._outage.reached(began=began)
            while not self._stop.is_set():
                message = pubsub.get_message(timeout=1.0)
                if message and message["type"] == "message":
                    self._hand_on(message["data"].decode())

    def _hand_on(self, notification: str) -> None:
        try:
            self._handle(notification)
        except Exception as error:  # of whoever handles it: the listener must live on
            facts = {"action": "listen", "notification": notification, "reason": str(error)}
            log.warning("a notification was not handled; polling finds the same in the database", extra=facts)
