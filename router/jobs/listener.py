"""Listener: a thread that receives the notifications that other processes publish in Redis."""

import logging
import threading
from collections.abc import Callable

import redis

from ragbandit.router.jobs.queue import CHANNEL, log

__all__ = ["Listener"]


class Listener:
    """A thread that hears the news and survives Redis going away and coming back. alarm: as of RedisJobs."""

    def __init__(self, client: "redis.Redis", hear: Callable[[str], None], *, alarm: int = logging.WARNING) -> None:
        self._client = client
        self._hear = hear
        self._alarm = alarm
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ragbandit-news", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; waits for at most 2 s."""
        self._stop.set()
        self._thread.join(2)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._client.pubsub(ignore_subscribe_messages=True) as pubsub:  # type: ignore[no-untyped-call] # redis
                    pubsub.subscribe(CHANNEL)
                    self._alarm = logging.WARNING
                    while not self._stop.is_set():
                        message = pubsub.get_message(timeout=1.0)
                        if message and message["type"] == "message":
                            self._hear(message["data"].decode())
            except Exception as error:  # of Redis, or of whoever heard: the listener must live on
                # The pollers behind every listener find the same facts in SQL, a little later.
                log.log(self._alarm, "no news from Redis", extra={"action": "listen", "reason": str(error)})
                self._stop.wait(1.0)
