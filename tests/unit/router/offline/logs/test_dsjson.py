"""Logs of Vowpal Wabbit and of Azure Personalizer (dsjson): what a line is read as, and what is refused."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings, strategies as st

from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.logs.jsonl import read_rows
from ragbandit.router.offline.logs.records import records
from ragbandit.shared.errors import InvalidInput


def event(number=1, **changed):
    """An event of two actions, of which the second was drawn and rewarded with 1."""
    context = {"user": {"plan": "pro"}, "_multi": [{"i": {"constant": 1, "id": "mini"}}, {"_tag": "large"}]}
    whole = {
        "_label_cost": -1,
        "_label_probability": 0.8,
        "_label_Action": 2,
        "_labelIndex": 1,
        "o": [{"EventId": f"e{number}", "v": 1.0}],
        "Timestamp": "2026-08-01T00:00:00.1234567Z",
        "Version": "1",
        "EventId": f"e{number}",
        "a": [2, 1],
        "c": context,
        "p": [0.8, 0.2],
        "VWState": {"m": "x"},
    }
    return {key: value for key, value in {**whole, **changed}.items() if value is not None}


def read(path, *events):
    file = path / "log.dsjson"
    file.write_text("".join(json.dumps(each) + "\n" for each in events))
    return list(read_rows(file))


def test_an_event_is_a_row(tmp_path):
    """Actions, probabilities in the order of the actions, minus the cost, the time and the context are read."""
    (row,) = read(tmp_path, event(challenger={"mini": 1.0}))
    decision = row.decision
    assert (decision.id, decision.arm, decision.arms, decision.pmf) == ("e1", "large", ("mini", "large"), (0.2, 0.8))
    assert (row.reward.value, decision.query.context, row.extra) == (
        1.0,
        {"user.plan": "pro"},
        {"challenger": {"mini": 1.0}},
    )
    assert decision.made_at == pytest.approx(1785542400.123, abs=1e-3)


def test_the_default_reward_counts(tmp_path):
    """An event without an observation has the service's default reward as its cost."""
    (row,) = read(tmp_path, event(_label_cost=-0.0, o=[]))
    assert str(row.reward.value) == "0.0"


def test_the_only_observed_reward_counts_without_a_cost(tmp_path):
    """Without _label_cost the one reward of `o` is taken, and of two rewards neither."""
    (one, two) = read(tmp_path, event(1, _label_cost=None), event(2, _label_cost=None, o=[{"v": 1.0}, {"v": 0.5}]))
    assert one.reward.value == 1.0
    assert (two.line, two.field) == (2, "_label_cost")
    assert "2 rewards" in two.reason


@pytest.mark.parametrize(
    "changed",
    [
        {"_skipLearn": True},
        {"DeferredAction": True, "o": []},
        {"DeferredAction": True},  # a reward does not activate an event
        {"pdrop": 1.0},
        {"DeferredAction": True, "o": [{"EventId": "e1", "ActionTaken": False}]},
    ],
)
def test_an_event_that_was_never_shown_does_not_count(tmp_path, changed):
    """An event without its activation, or one that VW does not learn, is no row."""
    rows = read(
        tmp_path, event(1), event(2, **changed), event(3, DeferredAction=True, o=[{"ActionTaken": True}, {"v": 1.0}])
    )
    assert [row.decision.id for row in rows] == ["e1", "e3"]


def test_a_reward_without_its_event_does_not_count(tmp_path):
    """Lines with a reward or an activation only, which the service writes apart, are no rows, not even the first."""
    dangling = {"RewardValue": 1.0, "EnqueuedTimeUtc": "2026-08-01T00:00:00Z", "EventId": "x"}
    rows = read(tmp_path, dangling, event(1), {"EventId": "y", "ActionTaken": True})
    assert [row.decision.id for row in rows] == ["e1"]


def test_the_label_may_have_the_probability_of_being_logged(tmp_path):
    """The service's exporter multiplies _label_probability by the share of events that it keeps."""
    (row,) = read(tmp_path, event(_label_probability=0.4, pdrop=0.5))
    assert row.decision.propensity == 0.8


@pytest.mark.parametrize(
    ("changed", "field", "reason"),
    [
        ({"_label_probability": 0.5}, "_label_probability", "is 0.5, but `p` gives the drawn action 0.8"),
        ({"_labelIndex": 0}, "_labelIndex", "is not the drawn action"),
        ({"p": [0.8, 0.3]}, "p", "the sum 1.1"),
        ({"p": [1.0]}, "p", "1 numbers for 2 actions"),
        ({"a": [2, 3]}, "a", "cannot be used"),
        ({"a": None, "p": None, "_label_Action": None, "_labelIndex": None}, "a", "missing"),
        ({"c": {"x": 1}}, "c._multi", "missing"),
        ({"c": {"_multi": [{"id": "b"}, {"id": "b"}]}}, "c._multi", "two actions have the name 'b'"),
        ({"EventId": None}, "id", "missing"),
        ({"_label_ca": {"action": 1.5}}, "_label_ca", "continuous"),
        ({"pdrop": "much"}, "pdrop", "'much' cannot be used"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path, changed, field, reason):
    """A line with a contradiction is refused by its field, with a remedy."""
    (_, bad) = read(tmp_path, event(1), event(2, **changed))
    assert not isinstance(bad, Logged)
    assert (bad.line, bad.field) == (2, field)
    assert reason in bad.reason
    assert bad.remedy


def slots(count, number=1):
    one = {"_label_cost": -1.0, "_id": "top", "_a": [1, 0], "_p": [0.8, 0.2], "_o": [{"v": 1.0}]}
    context = {"_multi": [{"id": "mini"}, {"id": "large"}], "_slots": [{"size": "big"}] * count}
    return {"EventId": f"e{number}", "Timestamp": "2026-08-01T00:00:00Z", "c": context, "_outcomes": [one] * count}


def test_one_slot_is_a_choice(tmp_path):
    """An event with one slot is a row: its actions are counted from 0."""
    (row,) = read(tmp_path, slots(1))
    assert (row.decision.arm, row.decision.pmf, row.reward.value) == ("large", (0.2, 0.8), 1.0)


def test_several_slots_are_refused_by_name(tmp_path):
    """An event that fills several slots is no single choice, and the refusal says how to keep one of them."""
    (_, bad) = read(tmp_path, slots(1), slots(3, 2))
    assert (bad.field, bad.reason) == ("_outcomes", "the event fills 3 slots, and a row is one choice")
    assert "docs/replay.md" in bad.remedy


def test_actions_have_their_names_where_they_have_any(tmp_path):
    """An action is called by its tag, its id or its only text, with signs of arms only; otherwise by its place."""
    named = [{"_tag": "a/b c"}, {"f": {"id": 7, "x": 1}}, {"topic": "sports"}, {"id": "n" * 80}]
    common = {"a": [1, 2, 3, 4], "p": [0.25] * 4, "_label_Action": 1, "_labelIndex": 0, "_label_probability": 0.25}
    (one, two) = read(
        tmp_path,
        event(1, c={"_multi": named}, **common),
        event(2, c={"_multi": [{"x": k, "y": k} for k in range(4)]}, **common),
    )
    first = one.decision.arms
    assert (first[:3], len(first[3]), two.decision.arms[1]) == (("a_b_c", "7", "sports"), 64, "action_2")


def test_actions_without_names_stay_in_their_places(tmp_path):
    """If an action without a name stands elsewhere than before, its place is no name, and the line is refused."""
    actions = [{"f": {"x": 1, "y": 0}}, {"f": {"x": 0, "y": 1}}]
    (_, bad) = read(tmp_path, event(1, c={"_multi": actions}), event(2, c={"_multi": actions[::-1]}))
    assert bad.field == "c._multi"
    assert "was action 2 before" in bad.reason


def test_other_readers_refuse_the_log(tmp_path):
    """A table or a log of questions is no log of decisions, and the refusal names the command that reads it."""
    read(tmp_path, event())
    with pytest.raises(InvalidInput, match="Personalizer") as caught:
        list(records(tmp_path / "log.dsjson", keys=("question",)))
    assert "replay --log" in caught.value.remedy


CELL = st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=4)
CELLS = st.recursive(
    CELL,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)
KEYS = (*event(), "pdrop", "_skipLearn", "DeferredAction", "_outcomes", "_label_ca")


@settings(deadline=None, max_examples=300)
@given(
    st.dictionaries(st.sampled_from(KEYS), CELLS, max_size=4),
    st.dictionaries(st.sampled_from(["_multi", "_slots", "x"]), CELLS),
)
def test_any_event_is_read_or_refused(tmp_path_factory, changed, context):
    """Whatever an event holds, it is a row, or is refused with a remedy, or does not count."""
    for whole in ({**event(2), **changed}, event(2, c={**event()["c"], **context})):
        with suppress(InvalidInput):  # the whole file
            for row in read(tmp_path_factory.getbasetemp(), event(1), whole):
                assert isinstance(row, Logged) or (row.remedy and row.line == 2)
