"""Raters: which judgements of a decision are in force, which count, and how far they differ."""

from itertools import permutations

import pytest

from ragbandit.router.learning.sources import judgements_in_force, judgements_of, rater_class
from ragbandit.shared.types import Cost, Feedback, Outcome

OUTCOME = Outcome(
    decision_id="d",
    status="answered",
    answer="x",
    trace=(),
    cost=Cost(),
    steps=1.0,
    stop_reason="answered",
    error=None,
    run_by="worker",
    made_by={},
    made_at=0.0,
)


def said(key, value=1.0, *, kind="rating", source="human", rater=None, event=None):
    return Feedback(
        id=key, decision_id="d", kind=kind, value=value, source=source, received_at=0.0, rater=rater, event=event
    )


@pytest.mark.parametrize(
    ("item", "wanted"),
    [
        (said("a", ("x",), kind="label"), "label"),
        (said("a", kind="reward"), "label"),
        (said("a", source="code"), "label"),
        (said("a"), "human"),
        (said("a", source="judge"), "judge"),
        (said("a", kind="reward", source="judge"), "judge"),
        (said("a", ("x",), kind="label", source="judge"), "judge"),
        (said("a", kind="event", source="event", event="copied"), "event"),
    ],
)
def test_class_of_a_judgement(item, wanted):
    """Gold answers, raw rewards and code before people before models before events; a model's word is a model's."""
    assert rater_class(item) == wanted


def test_the_most_trusted_class_counts_alone():
    """Label before rating before judge before event, in whatever order they came."""
    one_each = [
        said("label", ("x",), kind="label"),
        said("human"),
        said("judge", source="judge"),
        said("event", kind="event", source="event", event="copied"),
    ]
    for first in range(4):
        for order in permutations(one_each[first:]):
            result = judgements_of(order)
            assert (result.judged_by, [item.id for item in result.used]) == (one_each[first].id, [one_each[first].id])
            assert list(result.by_class) == [item.id for item in one_each[first:]]


def test_a_check_by_code_counts_where_no_label_is():
    """A code check counts less than a label and more than a rating; its class, and so its weight, is a label's."""
    label, check, rating = said("label", ("x",), kind="label"), said("check", source="code"), said("human")
    for feedback, used in (([check, rating, label], label), ([rating, check], check)):
        result = judgements_of(feedback)
        assert (result.judged_by, result.used) == ("label", (used,))


def test_a_later_judgement_of_the_same_rater_replaces_the_earlier():
    """A judgement replaces the earlier one of the same source, rater and kind; an anonymous one replaces none."""
    given = [
        said("1", rater="ann"),
        said("2", rater="bob"),
        said("3"),
        said("4", source="judge", rater="ann"),
        said("5", rater="ann"),
        said("6"),
        said("7", kind="event", source="event", rater="ann", event="copied"),
        said("8", kind="event", source="event", rater="ann", event="regenerated"),
    ]
    assert [item.id for item in judgements_in_force(given)] == ["2", "3", "4", "5", "6", "7", "8"]
