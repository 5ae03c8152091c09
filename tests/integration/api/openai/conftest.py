"""Fixtures of the tests of OpenAI's interface: a worker that answers questions, and OpenAI's own clients."""

import asyncio
import threading
import time
from functools import partial

import openai
import pytest

from ragbandit.router.api.endpoints.streaming import AwaitedAnswer
from ragbandit.shared.types import Cost, Outcome, Source, TextPiece

#: what a worker of these tests has used
COST = Cost(
    retriever_calls=2,
    llm_calls=3,
    prompt_tokens=310,
    completion_tokens=12,
    cached_tokens=256,
    reasoning_tokens=4,
    seconds_total=0.5,
)
SOURCES = (
    Source(id="d1", title="Dracula", text="A novel by Bram Stoker.", url="https://books.example/d1", score=2.5),
    Source(id="d2", title="", text="Stoker was born in Dublin."),
)


def outcome_of(decision_id, **changes) -> Outcome:
    outcome = {
        "status": "answered",
        "answer": "Bram Stoker",
        "trace": (),
        "cost": COST,
        "steps": 2.0,
        "stop_reason": "answered",
        "error": None,
        "run_by": "worker",
        "made_by": {},
        "made_at": time.time(),
    }
    return Outcome(decision_id=decision_id, **(outcome | changes))


class AnsweringWorker(threading.Thread):
    """Stores an outcome for every decision that the service asks workers to answer."""

    def __init__(self, service, **changes) -> None:
        super().__init__(name="answering", daemon=True)
        self.service, self.changes = service, changes
        self.ended = threading.Event()

    def run(self) -> None:
        done: set[str] = set()
        while not self.ended.wait(0.005):
            for key in list(self.service.jobs.enqueued):
                if key not in done:
                    done.add(key)
                    self.service.router.store.add_outcome(outcome_of(key, **self.changes))
                    self.service.router.process.poll.wake()  # as the line in Redis that a worker sends


@pytest.fixture
def in_pieces(monkeypatch):
    """A function: answers come in these events before the outcome; a threading.Event among them is waited for."""

    def start(*events, **outcome):
        async def made(answer):
            for event in events:
                if isinstance(event, threading.Event):
                    while not event.is_set():
                        await asyncio.sleep(0.005)
                elif isinstance(event, Exception):
                    raise event
                else:
                    yield [] if event is None else [event]
            text = "".join(event.text for event in events if isinstance(event, TextPiece))
            yield [outcome_of(answer.decision.id, **({"answer": text, "sources": SOURCES} | outcome))]

        async def whole(answer):
            return [group async for group in made(answer)][-1][-1]

        monkeypatch.setattr(AwaitedAnswer, "events", made)
        monkeypatch.setattr(AwaitedAnswer, "outcome", whole)

    return start


@pytest.fixture
def answers(service, answering):
    """A function that has a worker answer all questions of the test's service."""
    return partial(answering, service)


@pytest.fixture
def answering():
    """A function that has a worker answer all questions of a service, with these fields of its outcomes."""
    running: list[AnsweringWorker] = []

    def start(service, **changes) -> None:
        running.append(AnsweringWorker(service, **changes))
        running[-1].start()

    yield start
    for worker in running:
        worker.ended.set()
        worker.join(10)
        assert not worker.is_alive()


@pytest.fixture
def client(service):
    """OpenAI's own client, which does not ask again by itself."""
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="any", max_retries=0, timeout=30) as made:
        yield made


@pytest.fixture
def decided(service):
    """A function: decisions that were made since the test began."""
    before = service.router.status().counters.decided
    return lambda: service.router.status().counters.decided - before
