"""Values become rows and come back bit for bit; body hashes decide between duplicate and conflict."""

import json
from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ragbandit.router.serving.checks import reports
from ragbandit.router.storage.rows.conversion import (
    UnreadableFieldError,
    body_hash,
    canonical,
    decision_row,
    decision_value,
    feedback_row,
    feedback_value,
    snapshot_row,
    snapshot_value,
    update_row,
    update_value,
    without_messages,
)
from ragbandit.router.storage.rows.outcome_rows import (
    MAX_STORED_MEDIA,
    outcome_body,
    outcome_row,
    outcome_value,
    trace_value,
)
from ragbandit.shared.types import (
    Branch,
    Budget,
    CallFailed,
    Cost,
    Decision,
    Feedback,
    Generated,
    Message,
    Outcome,
    Query,
    Retrieved,
    Reward,
    Round,
    SnapshotInfo,
    Update,
)
from tests.support import examples
from tests.support.examples import steady

ids = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
#: what every database takes; the rest is the subject of test_outcome_text_is_made_storable
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=30)
reals = st.floats(allow_nan=False, allow_infinity=False)
spans = st.floats(0, 1e9)
counts = st.integers(0, 10**9)
caps = st.none() | st.integers(1, 10**6)
json_values = texts | reals | st.integers(-(10**15), 10**15) | st.booleans() | st.none()

budgets = st.builds(
    Budget, rounds=caps, passages=caps, tokens=caps, seconds=st.none() | spans, dollars=st.none() | spans
)
costs = st.builds(Cost, **{one.name: counts if isinstance(one.default, int) else spans for one in fields(Cost)})
# By bits: also numbers whose decimal form is long, zeros of both signs and subnormal numbers.
features = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20).map(
    lambda bits: np.array(bits, dtype="<u4").view("<f4").astype(np.float32)
)


@st.composite
def decisions(draw):
    arms = tuple(draw(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6, unique=True)))
    identity = draw(ids)
    query = Query(
        id=identity,
        text=draw(texts),
        context=dict(sorted(draw(st.dictionaries(texts, json_values, max_size=3)).items())),  # rows sort the keys
        arms=draw(st.sampled_from([None, arms])),
        budget=draw(budgets),
        tenant=draw(ids),
    )
    several = st.lists(reals, min_size=len(arms), max_size=len(arms)).map(tuple)
    return Decision(
        id=identity,
        query=query,
        arm=draw(st.sampled_from(arms)),
        arms=arms,
        pmf=draw(several),
        propensity=draw(reals),
        scores=draw(st.none() | several),
        policy=draw(ids),
        version=draw(texts),
        encoder_hash=draw(texts),
        seed=draw(st.integers(0, 2**64 - 1)),
        floor=draw(reals),
        explored=draw(st.booleans()),
        fault=draw(st.none() | texts),
        facts=dict(sorted(draw(st.dictionaries(texts, json_values, max_size=3)).items())),
        run_by=draw(st.sampled_from(["worker", "caller"])),
        features=draw(st.none() | features),
        made_at=draw(reals),
    )


events = (
    st.builds(Round, number=counts)
    | st.builds(
        Retrieved,
        query=texts,
        ids=st.lists(texts, max_size=3).map(tuple),
        scores=st.lists(reals, max_size=3).map(tuple),
        seconds=spans,
    )
    | st.builds(Generated, purpose=texts, text=texts, prompt_tokens=counts, completion_tokens=counts, seconds=spans)
    | st.builds(Branch, rule=texts, value=texts)
    | st.builds(CallFailed, purpose=texts, error=texts, seconds=spans)
)
outcomes = st.builds(
    Outcome,
    decision_id=ids,
    status=st.sampled_from(["answered", "exhausted", "failed"]),
    answer=st.none() | texts,
    trace=st.lists(events, max_size=5).map(tuple),
    cost=costs,
    steps=spans,
    stop_reason=texts,
    error=st.none() | texts,
    run_by=st.sampled_from(["worker", "caller"]),
    made_by=st.dictionaries(texts, json_values, max_size=3).map(lambda facts: dict(sorted(facts.items()))),
    made_at=reals,
)
feedbacks = st.builds(
    Feedback,
    id=ids,
    decision_id=ids,
    kind=st.sampled_from(["label", "rating", "reward", "event"]),
    value=reals | st.lists(texts, min_size=1, max_size=3).map(tuple) | st.none(),
    source=st.sampled_from(["human", "judge", "code", "event"]),
    received_at=reals,
    rater=st.none() | texts,
    event=st.none() | texts,
    facts=st.dictionaries(texts, json_values, max_size=3).map(lambda facts: dict(sorted(facts.items()))),
)
rewards = st.builds(
    Reward,
    value=reals,
    quality=reals,
    cost=reals,
    weight=reals,
    minimum=reals,
    maximum=reals,
    terms=st.dictionaries(texts, spans, max_size=3).map(lambda prices: dict(sorted(prices.items()))),
    preset=texts,
    source=st.sampled_from(["explicit", "default"]),
    judged_by=st.sampled_from([None, "label", "human", "judge", "event"]),
    surrogates=st.sampled_from([(), ("judge",), ("event", "judge")]).map(lambda names: dict.fromkeys(names, 0.3)),
    sample_weight=st.just(1.0) | reals,
)
QUERY = Query(id="d-1", text="who?", context={"a": 1, "b": "x"}, arms=("a", "b"), budget=Budget(rounds=2))
made_decision = partial(examples.made_decision, query=QUERY, run_by="worker", arm="a", arms=("a", "b"), pmf=(0.5, 0.5))
made_outcome = partial(reports.made_outcome, decision_id="d-1", now=1.0, status="answered", answer="x", steps=1.0)


def bits(value):
    """A value with its floats as bits, so that -0.0 and 0.0 differ."""
    return repr(value)


@steady
@given(decision=decisions())
def test_decision_round_trip(decision):
    """A decision comes back from its row with every float exact and every bit of its features."""
    back = decision_value(decision_row(decision))
    assert bits(replace(back, features=None)) == bits(replace(decision, features=None))
    if decision.features is None:
        assert back.features is None
    else:
        assert back.features.dtype == np.float32
        assert back.features.tobytes() == decision.features.tobytes()


@steady
@given(outcome=outcomes)
def test_outcome_round_trip(outcome):
    """An outcome comes back from its row with its trace, cost and text exactly."""
    assert bits(outcome_value(outcome_row(outcome))) == bits(outcome)


def test_outcome_text_is_made_storable():
    """NUL and lone surrogates, which models and arms may write, are replaced; a long stop reason is cut."""
    odd = {"answer": "a\x00b", "error": "\udfff", "stop_reason": "x" * 100}
    row = outcome_row(replace(made_outcome(), trace=(Branch(rule="r", value="\ud800"),), **odd))
    assert (row["answer"], row["error"], row["stop_reason"]) == ("a\ufffdb", "?", "x" * 64)
    assert outcome_value(row).trace == (Branch(rule="r", value="?"),)


@steady
@given(feedback=feedbacks)
def test_feedback_round_trip(feedback):
    """A feedback comes back from its row exactly, and its row is not late."""
    row = feedback_row(feedback)
    assert bits(feedback_value(row)) == bits(feedback)
    assert row["late"] is False


@steady
@given(decision=decisions(), reward=rewards, seq=counts, feedback_ids=st.lists(ids, max_size=3).map(tuple))
def test_update_round_trip(decision, reward, seq, feedback_ids):
    """An update comes back from its ledger row joined with what the decision saw."""
    update = Update(
        policy=decision.policy,
        seq=seq,
        decision_id=decision.id,
        query=decision.query,
        arm=decision.arm,
        arms=decision.arms,
        pmf=decision.pmf,
        scores=decision.scores,
        propensity=decision.propensity,
        reward=reward,
        feedback_ids=feedback_ids,
        features=None,
        made_at=decision.made_at,
    )
    kept = decision_value(decision_row(decision))
    back = update_value(update_row(update, feedback_at=1.0), decision=kept)
    assert bits(replace(back, features=None)) == bits(update)
    assert (back.features is None) == (decision.features is None)
    assert back.reward.clipped == reward.clipped


def test_snapshot_round_trip():
    """A snapshot's row gives back its identity and params."""
    info = SnapshotInfo(
        version="main-3-abc",
        policy="main",
        algorithm="mba",
        params={"ridge": 0.1, "arm": None},
        last_seq=3,
        sha256="abc",
        encoder_hash="e",
        made_at=1.5,
    )
    assert snapshot_value(snapshot_row(info)) == info


@pytest.mark.parametrize(
    ("column", "damaged"),
    [
        *((column, "no json") for column in ("arms", "pmf", "scores", "seed", "facts")),
        *((column, "[1]") for column in ("facts", "context", "budget")),
        ("features", b"\x01\x02"),
    ],
)
def test_a_damaged_column_is_named(column, damaged):
    """The error of a row that cannot be read names the field."""
    row = decision_row(made_decision()) | {column: damaged}
    with pytest.raises(UnreadableFieldError) as caught:
        decision_value(row)
    assert caught.value.field == column


@steady
@given(body=st.dictionaries(texts, json_values, max_size=5))
def test_order_of_keys_does_not_change_a_hash(body):
    """Two bodies with the same keys and values have one hash, in whatever order they came."""
    assert body_hash(dict(reversed(body.items()))) == body_hash(body)
    assert json.loads(canonical(body)) == body


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"a": "1"}),
        ({"a": True}, {"a": 1}),
        ({"a": None}, {}),
        ({"a": ["x", "y"]}, {"a": ["y", "x"]}),
        ({"a": 0.1}, {"a": 0.1 + 2**-55}),
        ({"a": "é"}, {"a": "e\u0301"}),
        ({"a": {"b": 1}}, {"a": {"c": 1}}),
        ({"a": "\ud800"}, {"a": "\ud801"}),  # no valid Unicode: the edge refuses it with a better word
    ],
)
def test_other_bodies_have_other_hashes(one, other):
    """Bodies that differ in value, type, order of a list or the last bit of a float have two hashes."""
    assert body_hash(one) != body_hash(other)


@pytest.mark.parametrize(
    "change",
    [
        {"text": "Who?"},
        {"context": {"a": 1}},
        {"arms": ("b", "a")},
        {"arms": None},
        {"budget": Budget(rounds=3)},
        {"tenant": "other"},
        {"session": "chat-1"},
        {"messages": (Message(role="user", text="Hello"),)},
        {"asked": "And who wrote it?"},
        {"forced": True},
    ],
    ids=str,
)
def test_another_request_is_another_body(change):
    """A request under a known id that differs in any part of the query is a conflict."""
    ours = decision_row(made_decision())["body_hash"]
    assert decision_row(made_decision(query=replace(QUERY, **change)))["body_hash"] != ours


def test_a_question_is_known_by_what_was_asked():
    """The same words rewritten in another way are the same request; key and the edge's facts are no part of it."""
    first = replace(QUERY, text="Who wrote Dracula?", asked="And who wrote it?", request={"ignored": ["seed"]})
    again = replace(QUERY, text="Who is the author of Dracula?", asked="And who wrote it?", api_key="abc")
    one, two = (decision_row(made_decision(query=query))["body_hash"] for query in (first, again))
    assert one == two


def test_conversation_comes_back():
    """Session, messages, the words that were asked, key and the edge's facts are stored; a plain question adds none."""
    query = replace(
        QUERY,
        session="chat-1",
        messages=(Message(role="user", text="Hello"), Message(role="assistant", text="")),
        asked="And who wrote it?",
        api_key="abc",
        request={"ignored": ["seed"]},
        forced=True,
    )
    row = decision_row(made_decision(query=query))
    back = decision_value(row).query
    assert back == replace(query, id=back.id)
    assert without_messages(row["request"], keep=()) == '{"forced":true}'
    assert decision_row(made_decision())["request"] is None


def test_what_was_decided_is_not_in_the_body():
    """Arm, pmf, facts, policy version and clock do not change the hash: a repeated request is a duplicate."""
    decided = made_decision(arm="b", pmf=(0.1, 0.9), facts={"x": 1}, version="main-9-9", made_at=9.0, seed=7)
    assert decision_row(decided)["body_hash"] == decision_row(made_decision())["body_hash"]


@steady
@given(feedback=feedbacks, other=feedbacks)
def test_feedback_bodies(feedback, other):
    """Feedback under one id is a duplicate if all that was said agrees, whenever it came; of an event not its worth."""
    later = replace(feedback, received_at=1.0, id="another")
    assert feedback_row(later)["body_hash"] == feedback_row(feedback)["body_hash"]
    compared = ("decision_id", "kind") if feedback.kind == "event" else ("decision_id", "kind", "value")
    same = all(bits(getattr(feedback, key)) == bits(getattr(other, key)) for key in compared)
    same = same and all(getattr(feedback, key) == getattr(other, key) for key in ("source", "rater", "event"))
    same = same and canonical(feedback.facts) == canonical(other.facts)
    assert (feedback_row(feedback)["body_hash"] == feedback_row(other)["body_hash"]) == same


def test_what_is_not_told_is_in_no_hash():
    """Feedback without rater, event and facts has the hash of the rest: a version that knows one part less agrees."""
    told = {"decision_id": "d-1", "kind": "rating", "value": 1.0, "source": "human"}
    row = feedback_row(Feedback(id="f-1", received_at=1.0, **told))
    assert row["body_hash"] == body_hash(told)


@steady
@given(outcome=outcomes)
def test_outcome_bodies(outcome):
    """The same outcome reported later is a duplicate; with one more step, or of another generator, it is a conflict."""
    ours = outcome_row(outcome)["body_hash"]
    assert outcome_row(replace(outcome, made_at=0.0))["body_hash"] == ours
    assert outcome_row(replace(outcome, steps=outcome.steps + 1.0 + outcome.steps))["body_hash"] != ours
    assert outcome_row(replace(outcome, made_by={**outcome.made_by, "generator": "large"}))["body_hash"] != ours


def test_cost_of_zero_is_not_in_the_hash():
    """A cost that is zero is not in the hash: a version that knows one kind of cost less gives the same."""
    outcome = replace(made_outcome(), cost=Cost(passages=3, seconds_total=0.5))
    body = outcome_body(outcome)
    assert body["cost"] == {"passages": 3, "seconds_total": 0.5}
    assert outcome_row(outcome)["body_hash"] == body_hash(body)
    dearer = replace(outcome, cost=Cost(passages=3, seconds_total=0.5, dollars=0.1))
    assert outcome_row(dearer)["body_hash"] != body_hash(body)


def test_events_of_a_newer_version_are_kept():
    """An event that this version does not know is read as a branch that holds it; a known one loses new keys only."""
    strange = {"type": "reranked", "ids": ["a", "b"], "seconds": 0.5}
    events = [{"type": "round", "number": 1, "depth": 3}, strange]
    trace = trace_value(events)
    assert trace == (Round(number=1), Branch(rule="unknown_event", value=canonical(strange)))
    assert json.loads(trace[1].value) == strange


@pytest.mark.parametrize("cut", [0, 1])
def test_keys_of_a_newer_version_are_left_out(cut):
    """Caps and costs that this version does not know do not keep a row from being read; missing ones are none."""
    budget, cost = {"rounds": 2, "joules": 5.0}, {"passages": 3, "joules": 5.0}
    if cut:
        budget, cost = {"joules": 5.0}, {}
    row = decision_row(made_decision()) | {"budget": json.dumps(budget)}
    assert decision_value(row).query.budget == (Budget() if cut else Budget(rounds=2))
    done = outcome_row(made_outcome()) | {"cost": json.dumps(cost)}
    assert outcome_value(done).cost == (Cost() if cut else Cost(passages=3))


@given(feedback=feedbacks)
def test_key_of_a_feedback_is_stored_and_is_no_part_of_its_body(feedback):
    """The key that a judgement came with comes back; the same judgement by the next key is the same body."""
    first = replace(feedback, api_key="0123456789")
    row = feedback_row(first)
    assert feedback_value(row).api_key == "0123456789"
    assert feedback_row(replace(feedback, api_key=None))["body_hash"] == row["body_hash"]


def test_large_media_are_not_stored():
    """A reply loses media beyond the cap, which it names; the rest of its message stays."""
    message = {"images": [{"image_url": {"url": "x" * MAX_STORED_MEDIA}}], "reasoning": "Hm.", "annotations": []}
    reply = {"message": message, "finish_reason": "stop", "more": {"citations": ["a"]}}
    outcome = replace(made_outcome(), reply=reply)
    stored = outcome_value(outcome_row(outcome)).reply
    kept = {"reasoning": "Hm.", "annotations": []}
    assert stored == reply | {"message": kept, "omitted": ["images"]}
    small = reply | {"message": kept | {"audio": {"data": "x"}}}
    assert outcome_value(outcome_row(replace(outcome, reply=small))).reply == small
