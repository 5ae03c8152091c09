"""Arguments of a wrong type are refused by the library and the client with field and remedy, and write nothing."""

import pytest

from ragbandit import Router
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.checks.reports import unrun_outcome
from ragbandit.shared.errors import InvalidInput


@pytest.fixture(scope="module")
def opened(module_settings):
    """One shared router: no test here may change its state."""
    with Router.open(module_settings(), jobs=MemoryJobs()) as router:
        yield router


@pytest.fixture
def unmoved(opened):
    yield opened
    assert opened.status().counters.decided == opened.status().counters.feedback == 0


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda r: r.route(None), "question"),
        (lambda r: r.route(5), "question"),
        (lambda r: r.route({"question": "Who?"}), "question"),
        (lambda r: r.submit(None), "question"),
        (lambda r: r.answer(5), "question"),
        (lambda r: r.answer("Who?", wait_s="a"), "wait_s"),
        (lambda r: r.answer("Who?", wait_s=float("inf")), "wait_s"),
        (lambda r: r.route("Who?", timeout_s="soon"), "timeout_s"),
        (lambda r: r.outcome(None), "decision_id"),
        (lambda r: r.submit_outcome("d-1"), "outcome"),
        (lambda r: r.submit_outcome(unrun_outcome("d-1", now=0.0, stop_reason="x", error="x")), "outcome.run_by"),
        (lambda r: r.feedback(5, rating=True), "decision_id"),
        (lambda r: r.submit_feedback({"rating": True}), "feedback"),
        (lambda r: r.decision(None), "decision_id"),
        (lambda r: r.cancel(5), "decision_id"),
    ],
)
def test_the_library_refuses(unmoved, call, field):
    """Wrong types raise InvalidInput, never AttributeError or TypeError, and messages fit the library too."""
    with pytest.raises(InvalidInput) as caught:
        call(unmoved)
    assert caught.value.field == field
    assert caught.value.remedy
