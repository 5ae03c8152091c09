"""Values from rows of a data frame are taken as Python's own, by the library and by the client."""

import json

import numpy as np

from ragbandit import Query, Router
from ragbandit.client.exchange import post_call
from ragbandit.router.queue.notifier import MemoryJobs

NA = type("NAType", (), {})()


def test_values_of_a_data_frame(settings):
    """Ratings, costs, steps and contexts of numpy's types are stored; a missing value of pandas is no value."""
    given = settings(
        arms={"a": {"run_by": "caller"}, "b": {"run_by": "caller"}},
        context={"seats": {"type": "number"}, "paid": {"type": "boolean"}},
    )
    context = {"seats": np.int64(3), "paid": np.bool_(True), "plan": NA, "share": np.float32(0.5)}
    ratings = [np.bool_(True), np.int64(0), np.float32(0.5)]
    with Router.open(given, jobs=MemoryJobs()) as router:
        decisions = [router.route(Query(text=f"Question {n}?", context=context)) for n in range(4)]
        for decision, rating in zip(decisions, ratings, strict=False):
            tokens = {"prompt_tokens": np.int32(7), "seconds_total": np.float64(0.25)}
            router.outcome(decision.id, answer=np.str_("x"), steps=np.int16(2), cost=tokens)
            router.feedback(decision.id, rating=rating, rater=NA)
        router.outcome(decisions[3].id, answer="x", steps=1)
        router.feedback(decisions[3].id, label=np.array(["x", "y"]), reward=NA)
        router.learn()
        records = [router.decision(decision.id) for decision in decisions]
    assert dict(records[0].decision.query.context) == {"paid": True, "plan": None, "seats": 3, "share": 0.5}
    assert [record.reward.quality for record in records] == [1.0, 0.0, 0.5, 1.0]
    assert (records[0].outcome.cost.prompt_tokens, records[0].outcome.steps) == (7, 2.0)
    body = {"rating": np.bool_(False), "context": {"seats": np.int64(3), "plan": NA}, "rater": None}
    assert json.loads(post_call("/v1/feedback", body).body) == {"rating": False, "context": {"seats": 3, "plan": None}}
