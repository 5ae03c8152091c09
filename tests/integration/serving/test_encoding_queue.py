"""Questions that need a forward pass of the encoder wait for it in a queue of their own."""

import threading

import pytest

from ragbandit import Router
from ragbandit.router.encoders.feature_cache import CachingEncoder
from ragbandit.router.encoders.hashing import HashingEncoder
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.shared.errors import Overloaded, RagBanditError


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


@pytest.fixture
def held(settings):
    encoder = HeldEncoder()
    with Router.open(
        settings(server={"max_waiting": 8}), encoder=CachingEncoder(encoder, entries=100), jobs=MemoryJobs()
    ) as router:
        router.route("known")
        yield encoder, router
        encoder.free.set()


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
