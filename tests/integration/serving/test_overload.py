"""More than a Router can serve: refused at once where it would wait too long, in the library as over HTTP."""

import time
from concurrent.futures import wait

import pytest

from ragbandit.router.serving.checks.reports import made_feedback, made_outcome
from ragbandit.shared.errors import NotReady, Overloaded

#: of a batch of the encoder that `slow` makes slow
BATCH_S = 0.05


def slow(router, *, seconds=BATCH_S):
    """Make the encoder slow; returns the texts that it encodes from now on."""
    encode, seen = router.encoder.encode, []

    def slowly(texts):
        time.sleep(seconds)
        seen.extend(texts)
        return encode(texts)

    router.encoder.encode = slowly
    return seen


def test_questions_are_bounded_by_their_expected_wait(make_world):
    """Of 400 questions at once to a router that does 80 in a second, those that would wait longer than 0.5 s are
    Overloaded at once; the others are decided, and nothing else is stored.
    """
    router = make_world(encoder={"max_batch": 4}, server={"max_wait_s": 0.5}).router
    slow(router)
    for number in range(6):
        router.route(f"warm {number}")
    taken, refused = [], []
    for number in range(400):
        try:
            taken.append(router.submit(f"question {number}"))
        except Overloaded as error:
            refused.append(error)
    done, missing = wait(taken, timeout=20)
    assert not missing
    assert 8 <= len(taken) <= 200, len(taken)
    assert all(error.retry_after_s >= 1.0 and "server.max_wait_s" in str(error) for error in refused)
    assert len({future.result().id for future in done}) == router.status().counters.decided - 6
    assert router.queues()["questions"].refused["wait"] == len(refused)


def test_feedback_and_outcomes_are_bounded(make_world):
    """Feedback and outcomes that find their queue full are Overloaded at once, too."""
    router = make_world(server={"max_waiting": 1}).router
    decision = router.route("Who wrote Dracula?")
    with router.database.write():  # the two queues wait for this writer
        rating = made_feedback(decision_id=decision.id, settings=router.settings, now=0, rating=1)
        ended = made_outcome(decision_id=decision.id, now=0, status="answered", answer="?")
        for submit in (lambda: router.submit_feedback(rating), lambda: router.submit_outcome(ended)):
            waiting = router.waiting()
            running = submit()
            give_up = time.monotonic() + 10
            while router.waiting() > waiting and time.monotonic() < give_up:  # until its batch has begun
                time.sleep(0.001)
            submit()
            with pytest.raises(Overloaded, match="1 requests are waiting already"):
                submit()
            assert not running.done()


def test_a_question_whose_time_ran_out_is_dropped(make_world):
    """A question that nobody waits for any more is neither encoded nor stored."""
    router = make_world(encoder={"max_batch": 1}).router
    encoded = slow(router, seconds=0.2)
    first = router.submit("first")
    with pytest.raises(NotReady):
        router.route("late", timeout_s=0.05)
    assert first.result(10)
    router.route("last")
    assert encoded == ["first", "last"]
    assert router.status().counters.decided == 2
    assert router.queues()["questions"].dropped == {"gone": 1, "expired": 0}
