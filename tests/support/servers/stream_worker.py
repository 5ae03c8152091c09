"""A worker in this process with a model of the test's, real Redis, a real database; and a reader of event streams."""

import json
import threading
import time

from ragbandit.router.queue.jobs import RedisJobs, connect_redis
from ragbandit.router.queue.refusals import CHANNEL
from ragbandit.router.queue.stream_writer import StreamWriter
from ragbandit.router.serving.setup.bootstrap import open_database
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.types import PolicyLabel
from ragbandit.strategies.retrievers.without_index import MemoryRetriever
from ragbandit.testing.arms import PASSAGES
from ragbandit.workers.chores import start_chores
from ragbandit.workers.processes.worker import handle_notification, make_consumer
from ragbandit.workers.running.context import Context
from ragbandit.workers.running.event_loop import EventLoop
from tests.support.arms.loaded_arms import loaded_arms
from tests.support.waiting import until


class StreamWorker:
    """Answers questions by these settings' arms until closed; at_once: how many at a time."""

    def __init__(self, settings, *, generator, retriever=None, at_once=4):
        self.generator = generator
        self.jobs = RedisJobs(connect_redis(settings.redis_url, timeout_s=3.0))
        self.database = open_database(settings)
        label = PolicyLabel(settings.policy.label)
        self.context = Context(
            settings=settings,
            store=DecisionStore(self.database, label=label, text=settings.log.text),
            ledger=Ledger(self.database, label=label),
            jobs=self.jobs,
            arms=loaded_arms(settings.arms, generator=generator, retriever=retriever or MemoryRetriever(PASSAGES)),
            loop=EventLoop(),
            streams=StreamWriter(self.jobs.client, outage=self.jobs.outage),
        )
        self._heard = threading.Event()
        self._listener = self.jobs.listen(self._handle)
        # A reader that comes before the worker listens gets the answer whole.
        until(lambda: self.jobs.client.publish(CHANNEL, b"outcome:nobody") and self._heard.wait(0.1))
        self._routines = start_chores(self.context)
        self._consumer = make_consumer("answer", self.context, jobs=self.context.jobs, threads=at_once)
        self._consumer.every_s = 0.05  # instead of wake-ups
        self._consumer.start()

    def _handle(self, *notification):
        self._heard.set()
        handle_notification(self.context, *notification)

    def close(self):
        self.context.ending.set()
        self.context.loop.interrupt()
        assert self._consumer.wait(15), "the worker's threads do not end"
        for routine in self._routines:
            routine.close()
        self._listener.close()
        self.context.close()
        self.context.streams.close()
        self.jobs.close()
        self.database.close()


def sse(response):
    """(name, data, seconds since the beginning) of every event as it comes; a comment has the name ""."""
    began, name = time.monotonic(), ""
    for line in response.iter_lines():
        if line.startswith(":"):
            yield "", line, time.monotonic() - began
        elif line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: ")), time.monotonic() - began
