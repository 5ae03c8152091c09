"""The model is asked while the decision is committed, and the caller gets nothing before the commit."""

import threading
import time

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.storage.sql.database import FailedWrite
from ragbandit.shared.errors import StoreError
from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.support.servers.http_service import Service
from tests.support.waiting import until


class HeldCommit:
    """Holds the commit of `add_decisions` until `release`; then it fails with `error`, if there is one."""

    def __init__(self, store, *, error=None):
        self.held, self.released, self.error = threading.Event(), threading.Event(), error
        self._commit, store.add_decisions = store.add_decisions, self

    def __call__(self, group, *, claims, committing):
        def hold(refused):
            committing(refused)
            self.held.set()
            assert self.released.wait(20)
            if self.error is not None:
                raise self.error

        return self._commit(group, claims=claims, committing=hold)


@pytest.fixture
def world(tmp_path):
    with ScriptedServer({"": Reply(text="Paris", drip_s=0.02)}) as server:
        generator = {"name": "openai", "model": "m", "openai": {"base_url": server.url}}
        settings = {"data_dir": str(tmp_path), "encoder": {"model": "hashing", "dimension": 8}, "generator": generator}
        service = Service(Settings.model_validate(settings | {"arms": {"a": {"class": "model"}}}), inline=True)
        yield service, server
        service.close()


def posted(service, *, stream=False):
    """A chat on a thread of its own. Returns (thread, list that gets the response)."""
    replies = []
    body = {"model": "auto", "stream": stream, "messages": [{"role": "user", "content": "Where?"}]}
    thread = threading.Thread(target=lambda: replies.append(service.http.post("/v1/chat/completions", json=body)))
    thread.start()
    return thread, replies


@pytest.mark.parametrize("stream", [False, True])
def test_model_is_asked_during_the_commit(world, stream):
    """The request reaches the model before the decision is stored, and the reply comes after it."""
    service, server = world
    commit = HeldCommit(service.router.service.store)
    thread, replies = posted(service, stream=stream)
    until(lambda: len(server.requests) == 1)
    time.sleep(0.3)  # the model's whole answer has come
    assert not replies
    assert service.router.status().counters.decided == 0
    commit.released.set()
    thread.join(20)
    (reply,) = replies
    record = service.router.decision(reply.headers["x-ragbandit-decision-id"])
    assert (reply.status_code, record.outcome.answer, len(server.requests)) == (200, "Paris", 1)


def test_answer_of_a_lost_decision_is_thrown_away(world):
    """If the commit fails, the caller gets its error, and neither an outcome nor a waiting answer remains."""
    service, server = world
    commit = HeldCommit(service.router.service.store, error=StoreError("the disk is full"))
    thread, replies = posted(service)
    until(lambda: len(server.requests) == 1)
    commit.released.set()
    thread.join(20)
    assert replies[0].status_code == 503
    until(lambda: not service.router.process.inline._context.active_runs.ids())
    assert service.router.process.answers.unanswered() == 0
    assert not service.router.process.answers._futures
    assert service.router.status().counters.decided == 0


def test_no_model_is_asked_early_while_the_database_fails(world):
    """Shortly after a failed write the model waits for the commit, so that it is not paid for lost decisions."""
    service, server = world
    service.router.database.failed_write = FailedWrite(at=time.monotonic(), reason="the disk is full")
    commit = HeldCommit(service.router.service.store)
    thread, replies = posted(service)
    assert commit.held.wait(20)
    time.sleep(0.2)
    assert not server.requests
    commit.released.set()
    thread.join(20)
    assert replies[0].status_code == 200
