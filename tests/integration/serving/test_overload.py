"""More than a Router can serve: refused at once where it would wait too long, in the library as over HTTP."""

import time

import pytest

from ragbandit.router.serving.checks.reports import make_feedback, make_outcome
from ragbandit.shared.errors import Overloaded


def test_feedback_and_outcomes_are_bounded(make_world):
    """Feedback and outcomes that find their queue full are Overloaded at once, too."""
    router = make_world(server={"max_waiting": 1}).router
    decision, queues = router.route("Who wrote Dracula?"), (router.process.feedback, router.process.outcomes)
    with router.database.write():  # the two queues wait for this writer
        rating = make_feedback(decision_id=decision.id, settings=router.settings, now=0, rating=1)
        ended = make_outcome(decision_id=decision.id, now=0, status="answered", answer="?")
        for submit in (lambda: router.submit_feedback(rating), lambda: router.submit_outcome(ended)):
            waiting = sum(each.state().waiting for each in queues)
            running = submit()
            give_up = time.monotonic() + 10
            while (
                sum(each.state().waiting for each in queues) > waiting and time.monotonic() < give_up
            ):  # until its batch has begun
                time.sleep(0.001)
            submit()
            with pytest.raises(Overloaded, match="1 requests are waiting already"):
                submit()
            assert not running.done()
