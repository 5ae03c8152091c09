"""Questions that need a forward pass of the encoder wait for it in a queue of their own."""

import threading

import pytest

from ragbandit import Router
from ragbandit.router.encoders.feature_cache import CachingEncoder
from ragbandit.router.encoders.hashing import HashingEncoder
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving import router as serving
from ragbandit.router.serving.deciding import service as deciding
from ragbandit.shared.errors import NotReady, Overloaded, RagBanditError, TooManyRequests
from ragbandit.shared.types import Query
from tests.support.servers.http_service import Service, refused, routed


class HeldEncoder(HashingEncoder):
    """Takes as long as the test wants for every batch after the first one, and fails on "broken"."""

    is_immediate = False

    def __init__(self):
        super().__init__(dimension=8)
        self.begun, self.free, self.batches = threading.Event(), threading.Event(), []

    def encode(self, texts):
        self.batches.append(list(texts))
        if len(self.batches) > 1:
            self.begun.set()
            assert self.free.wait(20)
        if "broken" in texts:
            raise RagBanditError("the encoder failed")
        return super().encode(texts)


class HeldStore:
    """Lets the router store decisions when the test sets `free`."""

    def __init__(self, router):
        self.begun, self.free = threading.Event(), threading.Event()
        self._add, router.store.add_decisions = router.store.add_decisions, self

    def __call__(self, *decisions, **more):
        self.begun.set()
        assert self.free.wait(20)
        return self._add(*decisions, **more)


SERVER = {"max_waiting": 8, "tenant_share": 0.5}


@pytest.fixture
def held(settings):
    encoder = HeldEncoder()
    with Router.open(
        settings(server=SERVER), encoder=CachingEncoder(encoder, entries=100), jobs=MemoryJobs()
    ) as router:
        router.route("known")
        yield encoder, router
        encoder.free.set()


def fill(router, encoder):
    """Fill the queue of texts. Returns the futures of its questions."""
    first = router.submit("first")
    assert encoder.begun.wait(20)
    return [first, *(router.submit(f"waits {number}") for number in range(8))]


def test_a_cached_question_does_not_wait_for_a_forward_pass(held):
    """While the encoder works on a new text, a text whose features are cached is decided."""
    encoder, router = held
    new = router.submit("new")
    assert encoder.begun.wait(20)
    assert router.route("known").query.text == "known"
    assert not new.done()
    encoder.free.set()
    assert new.result(20).query.text == "new"
    assert encoder.batches == [["known"], ["new"]]


def test_what_arrives_during_a_forward_pass_is_encoded_and_decided_together(held):
    """Questions of one encoded batch are one batch of decisions; one that was cancelled is not encoded."""
    encoder, router = held
    first = router.submit("first")
    assert encoder.begun.wait(20)
    others = [router.submit(f"other {number}") for number in range(4)]
    assert others.pop().cancel()
    many = router.submit_many(["known", "many"])
    encoder.free.set()
    texts = [decided.result(20).query.text for decided in (first, *others, *many)]
    assert texts == ["first", "other 0", "other 1", "other 2", "known", "many"]
    assert encoder.batches[2] == ["other 0", "other 1", "other 2", "many"]


def test_a_failing_encoder_and_an_overload_reach_the_caller(held):
    """An error of the forward pass is the question's error; a full queue of texts refuses further ones."""
    encoder, router = held
    broken = router.submit("broken")
    assert encoder.begun.wait(20)
    waiting = [router.submit(f"waits {number}") for number in range(8)]
    with pytest.raises(Overloaded):
        router.submit("refused")
    state = router.process.queues()["questions"]
    assert (state.waiting, state.refused["count"]) == (8, 1)
    encoder.free.set()
    with pytest.raises(RagBanditError, match="the encoder failed"):
        broken.result(20)
    assert all(decided.result(20).query.text for decided in waiting)


def test_the_share_of_a_tenant_counts_cached_questions_of_others(held):
    """A tenant with new texts gets half of their queue while another tenant asks cached questions."""
    encoder, router = held
    router.route(Query(text="known", tenant="small"))
    futures = [router.submit("first")]
    assert encoder.begun.wait(20)
    futures += [router.submit(f"waits {number}") for number in range(4)]
    with pytest.raises(TooManyRequests):
        router.submit("refused")
    futures.append(router.submit(Query(text="small", tenant="small")))
    encoder.free.set()
    assert all(decided.result(20) for decided in futures)


def test_a_cached_question_is_served_by_http_while_the_queue_of_texts_is_full(settings, monkeypatch):
    """A request is refused before its body only if both queues are full, and it is counted once."""
    encoder = HeldEncoder()
    monkeypatch.setattr(serving, "make_encoder", lambda *_, **__: CachingEncoder(encoder, entries=100))
    service = Service(settings(server=SERVER))
    try:
        routed(service.http, question="known")
        futures = fill(service.router, encoder)
        routed(service.http, question="known")
        store = HeldStore(service.router)
        futures.append(service.router.submit("known"))
        assert store.begun.wait(20)
        futures += [service.router.submit("known") for _ in range(8)]
        refused(service.http.post("/v1/route", content=b"unread"), 503, "OVERLOADED")
        assert service.router.process.queues()["questions"].refused["count"] == 1
        store.free.set()
        encoder.free.set()
        assert all(decided.result(20) for decided in futures)
    finally:
        service.close()


def test_no_model_is_paid_for_a_question_that_its_queue_refuses(held):
    """A cached question is refused before a model is asked for its arm if the queue of decisions is full."""
    _, router = held
    store = HeldStore(router)
    futures = [router.submit("known")]
    assert store.begun.wait(20)
    futures += [router.submit("known") for _ in range(8)]
    router.service.asking_steps = lambda _, **__: router.service.steps[:1]  # a step that asks a model first
    with pytest.raises(Overloaded):
        router.submit("known")
    store.free.set()
    assert all(decided.result(20) for decided in futures)


def test_a_cache_smaller_than_a_batch_encodes_no_text_twice(settings):
    """Each new text has one forward pass, also if the cache cannot hold all texts of a batch."""
    encoder = HeldEncoder()
    encoder.free.set()
    with Router.open(settings(), encoder=CachingEncoder(encoder, entries=4), jobs=MemoryJobs()) as router:
        futures = router.submit_many([f"new {number}" for number in range(32)])
        assert all(decided.result(20) for decided in futures)
    assert sum(map(len, encoder.batches)) == 32


def test_closing_drops_no_admitted_question(held, monkeypatch):
    """A text that waits for its forward pass is decided, even after the time of `close`; later ones are refused."""
    encoder, router = held
    futures = fill(router, encoder)
    monkeypatch.setattr(deciding, "CLOSE_S", 0.0)
    router.service.close()
    for text in ("known", "new"):
        with pytest.raises(NotReady, match="shutting down"):
            router.submit(text)
    encoder.free.set()
    assert all(decided.result(20) for decided in futures)
    router.service.batcher.close()
    assert not router.service.batcher.alive()
