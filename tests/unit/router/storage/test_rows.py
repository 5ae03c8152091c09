"""Values become rows and come back bit for bit; body hashes decide between duplicate and conflict."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

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
    features_bytes,
    features_rows,
    features_value,
    feedback_row,
    feedback_value,
    snapshot_row,
    snapshot_value,
    update_row,
    update_value,
    without_words,
)
from ragbandit.router.storage.rows.outcome_rows import (
    MAX_STORED_MEDIA,
    compress_trace,
    decompress_trace,
    outcome_row,
    outcome_value,
    trace_json,
    trace_value,
)
from ragbandit.shared.types import (
    NO_CONVERSATION,
    Branch,
    Budget,
    Cost,
    Decision,
    Features,
    Feedback,
    Generated,
    Message,
    Outcome,
    Query,
    Round,
    Sent,
    SnapshotInfo,
    Update,
)
from ragbandit.shared.types.encodings import Encoding
from ragbandit.shared.types.facts import is_released
from tests.support import examples
from tests.support.examples import steady

IDS = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
#: what every database takes; the rest is the subject of test_outcome_text_is_made_storable
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=30)
REALS = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(0, 10**9)
JSON_VALUES = TEXTS | REALS | st.integers(-(10**15), 10**15) | st.booleans() | st.none()
OBJECTS = st.dictionaries(TEXTS, JSON_VALUES, max_size=3).map(lambda value: dict(sorted(value.items())))
#: by bits: also NaN, infinities, zeros of both signs and subnormal numbers
FEATURES = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20).map(
    lambda bits: np.array(bits, dtype="<u4").view("<f4").astype(np.float32)
)
LEAVES = {
    str: TEXTS,
    float: REALS,
    int: COUNTS,
    bool: st.booleans(),
    type(None): st.none(),
    Features: FEATURES,
    Encoding: st.builds(Encoding),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any values of a type of `ragbandit.shared.types`."""
    kind = getattr(kind, "__supertype__", kind)
    origin, parts = get_origin(kind), get_args(kind)
    if kind in LEAVES:
        return LEAVES[kind]
    if origin is Literal:
        return st.sampled_from(parts)
    if origin in (Union, UnionType):
        return st.one_of(*map(values_of, parts))
    if origin is tuple:
        return st.lists(values_of(parts[0]), max_size=3).map(tuple)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        numbers = st.dictionaries(TEXTS, values_of(parts[1]), max_size=3).map(lambda value: dict(sorted(value.items())))
        return OBJECTS if parts[1] is object else numbers
    assert is_dataclass(kind), kind
    return any_of(kind)


def any_of(kind: Any, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Any values of a dataclass. given: strategies of fields; the other fields follow from their types."""
    hints = get_type_hints(kind)
    names = [one.name for one in fields(kind)]
    return st.builds(kind, **{name: given[name] if name in given else values_of(hints[name]) for name in names})


#: what additions note under names of their own; null says nothing
NOTES = OBJECTS.map(lambda value: {f"note {name}": one for name, one in value.items() if one is not None})
QUERY_VALUES = any_of(
    Query,
    sent=any_of(Sent, others=NOTES),
    cost_weight=st.none() | REALS | st.from_regex(r"[a-z]{1,9}", fullmatch=True),
    limits=st.just(()),
)


@st.composite
def decisions(draw):
    """Decisions whose vectors have one number for each arm."""
    arms = tuple(draw(st.lists(TEXTS.filter(bool), min_size=1, max_size=6, unique=True)))
    several = st.lists(REALS, min_size=len(arms), max_size=len(arms)).map(tuple)
    vectors = {"arms": st.just(arms), "pmf": several, "scores": st.none() | several}
    decision = draw(any_of(Decision, id=IDS, query=QUERY_VALUES, seed=st.integers(0, 2**64 - 1), **vectors))
    query = replace(decision.query, id=decision.id, conversation=NO_CONVERSATION)
    loop, failed = query.continues.loop, query.continues.failed
    is_open = loop is not None and loop.called_by is not None
    by = decision.arm_by if decision.arm_by in ("caller", "calls", "failover") and not is_open else None
    sent = replace(query.sent, may_fail_over=query.sent.may_fail_over or failed is not None)
    return replace(decision, query=replace(query, arm_by=by, sent=sent))


OUTCOMES = any_of(Outcome, decision_id=IDS, stop_reason=st.text("abc", max_size=64))
FEEDBACKS = any_of(Feedback, value=REALS | st.lists(TEXTS, min_size=1, max_size=3).map(tuple) | st.none())
QUERY = Query(id="d-1", text="who?", context={"a": 1, "b": "x"}, arms=("a", "b"), budget=Budget(rounds=2))
made_decision = partial(examples.made_decision, query=QUERY, run_by="worker", arm="a", arms=("a", "b"), pmf=(0.5, 0.5))
made_outcome = partial(reports.make_outcome, decision_id="d-1", now=1.0, status="answered", answer="x", steps=1.0)
bits = repr  # floats by their bits: -0.0 and 0.0 differ


@steady
@given(decision=decisions())
def test_decision_round_trip(decision):
    """A decision comes back from its row with every float exact and every bit of its features."""
    back = decision_value(decision_row(decision))
    assert bits(replace(back, features=None)) == bits(replace(decision, features=None))
    assert features_bytes(back.features) == features_bytes(decision.features)


@steady
@given(outcome=OUTCOMES)
def test_outcome_round_trip(outcome):
    """An outcome comes back from its row with its trace, cost and text exactly, except for the sign of a zero."""
    back, given = (bits(value).replace("=-0.0", "=0.0") for value in (outcome_value(outcome_row(outcome)), outcome))
    assert back == given


@steady
@given(feedback=FEEDBACKS)
def test_feedback_round_trip(feedback):
    """A feedback comes back from its row exactly, and its row is not late."""
    row = feedback_row(feedback)
    assert bits(feedback_value(row)) == bits(feedback)
    assert row["late"] is False


@steady
@given(
    decision=decisions(),
    update=any_of(Update, query=st.just(QUERY), features=st.none(), imported=st.just(False), released=st.just(False)),
)
def test_update_round_trip(decision, update):
    """An update comes back from its ledger row joined with what the decision saw."""
    seen = {name: getattr(decision, name) for name in ("arms", "pmf", "scores")}
    read = {"imported": "imported" in decision.facts, "released": is_released(decision.facts)}
    update = replace(update, query=decision.served, **read, **seen)
    back = update_value(update_row(update, feedback_at=1.0), decision=decision)
    assert bits(replace(back, features=None)) == bits(update)
    assert back.features is decision.features


@given(info=any_of(SnapshotInfo))
def test_snapshot_round_trip(info):
    """A snapshot's row gives back its identity and params."""
    assert snapshot_value(snapshot_row(info)) == info


@steady
@given(features=FEATURES, half=st.lists(st.floats(width=16, allow_nan=False), max_size=9))
def test_features_come_back_bit_by_bit(features, half):
    """Every vector is read as it was written; one that float16 holds exactly takes half the bytes."""
    for vector in (features, np.array(half, dtype=np.float32)):
        raw = features_bytes(vector)
        assert features_value(memoryview(raw)).tobytes() == vector.tobytes()
    assert len(raw) == 1 + 2 * len(half)
    assert features_value(None) is features_bytes(None) is None


def test_features_of_rows_are_those_of_each_row():
    """Cells of one form and width are read together; a missing cell, or one of another width, has no common matrix."""
    half, full = np.array([[0.5, 2.0], [1.0, -3.0]], dtype=np.float32), np.array([[0.1, 0.2]], dtype=np.float32)
    for vectors in (half, full):
        assert (features_rows([features_bytes(vector) for vector in vectors]) == vectors).all()
    cell = features_bytes(half[0])
    assert features_rows([cell, None]) is features_rows([None, cell]) is features_rows([cell, cell + cell]) is None
    assert features_rows([]) is None
    with pytest.raises(ValueError, match="not features"):
        features_rows([cell, b"\x02" + cell[1:]])


@given(text=TEXTS, answer=TEXTS)
def test_a_packed_trace_comes_back(text, answer):
    """Any text comes back as it was."""
    assert decompress_trace(compress_trace(text, answer=answer), answer=answer) == text


def test_a_packed_trace_is_smaller():
    """A trace that repeats the answer takes less than half of its JSON."""
    event = Generated(purpose="answer", text="Bram Stoker", prompt_tokens=9, completion_tokens=2, seconds=1e-9)
    row = outcome_row(replace(made_outcome(answer="Bram Stoker"), trace=(Round(number=1), event)))
    assert 2 * len(row["trace"]) < len(canonical(trace_json((Round(number=1), event))))


@pytest.mark.parametrize("data", [b"", b"\x63abc", compress_trace("abc" * 99, answer="")[:-3], b"\x01\xff\xff\xff"])
def test_a_damaged_trace_is_refused(data):
    """Data that were not packed, are cut off or are of a newer version are a ValueError."""
    with pytest.raises(ValueError, match=r"unpacked|newer"):
        decompress_trace(data, answer="")


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


def test_outcome_text_is_made_storable():
    """NUL and lone surrogates, which models and arms may write, are replaced; a long stop reason is cut."""
    odd = {"answer": "a\x00b", "error": "\udfff", "stop_reason": "x" * 100}
    row = outcome_row(replace(made_outcome(), trace=(Branch(rule="r", value="\ud800"),), **odd))
    assert (row["answer"], row["error"], row["stop_reason"]) == ("a\ufffdb", "?", "x" * 64)
    assert outcome_value(row).trace == (Branch(rule="r", value="?"),)


def test_large_media_are_not_stored():
    """A reply loses media beyond the cap, which it names; the rest of its message stays."""
    message = {"images": [{"image_url": {"url": "x" * MAX_STORED_MEDIA}}], "reasoning": "Hm.", "annotations": []}
    reply = {"message": message, "finish_reason": "stop", "more": {"citations": ["a"]}}
    stored = outcome_value(outcome_row(replace(made_outcome(), reply=reply))).reply
    assert stored == reply | {"message": {"reasoning": "Hm.", "annotations": []}, "omitted": ["images"]}


def test_texts_leave_a_request():
    """Erasing keeps of a request only whether its arm was chosen; a plain question has no request."""
    said = (Message(role="user", text="Hello"),)
    query = replace(
        QUERY, session="chat-1", messages=said, asked="And who?", sent=Sent(ignored=("x",)), arm_by="caller"
    )
    request = decision_row(made_decision(query=query))["request"]
    assert without_words(request, arm_by="caller", is_erased=True) == '{"forced":true}'
    assert decision_row(made_decision())["request"] is None


def test_what_a_newer_version_adds_is_passed_over():
    """Unknown events become branches, and unknown caps and costs are left out: a newer version shares the store."""
    strange = {"type": "reranked", "ids": ["a", "b"], "seconds": 0.5}
    trace = trace_value([{"type": "round", "number": 1, "depth": 3}, strange])
    assert trace == (Round(number=1), Branch(rule="unknown_event", value=canonical(strange)))
    row = decision_row(made_decision()) | {"budget": json.dumps({"rounds": 2, "joules": 5.0})}
    assert decision_value(row).query.budget == Budget(rounds=2)
    outcome = outcome_row(made_outcome()) | {"cost": json.dumps({"passages": 3, "joules": 5.0})}
    assert outcome_value(outcome).cost == Cost(passages=3)


@steady
@given(body=OBJECTS)
def test_order_of_keys_does_not_change_a_hash(body):
    """Two bodies with the same keys and values have one hash, in whatever order they came."""
    assert body_hash(dict(reversed(body.items()))) == body_hash(body)
    assert json.loads(canonical(body)) == body


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": "1"}),
        ({"a": True}, {"a": 1}),
        ({"a": None}, {}),
        ({"a": ["x", "y"]}, {"a": ["y", "x"]}),
        ({"a": 0.1}, {"a": 0.1 + 2**-55}),
        ({"a": "é"}, {"a": "e\u0301"}),
        ({"a": "\ud800"}, {"a": "\ud801"}),  # no valid Unicode: the edge refuses it with a better word
    ],
)
def test_other_bodies_have_other_hashes(one, other):
    """Bodies that differ in type, order of a list or the last bit of a float have two hashes."""
    assert body_hash(one) != body_hash(other)


@pytest.mark.parametrize(
    "change",
    [
        {"text": "Who?"},
        {"context": {"a": 1}},
        {"arms": None},
        {"budget": Budget(rounds=3)},
        {"tenant": "other"},
        {"session": "chat-1"},
        {"messages": (Message(role="user", text="Hello"),)},
        {"asked": "And who wrote it?"},
        {"arm_by": "caller"},
    ],
    ids=str,
)
def test_another_request_is_another_body(change):
    """A request under a known id that differs in any part of the query is a conflict."""
    ours = decision_row(made_decision())["body_hash"]
    assert decision_row(made_decision(query=replace(QUERY, **change)))["body_hash"] != ours


def test_a_request_is_known_by_what_was_asked():
    """Another rewrite of the same words, another key, and what was decided do not change the hash of a request."""
    first = replace(QUERY, text="Who wrote Dracula?", asked="And who wrote it?", sent=Sent(ignored=("seed",)))
    again = replace(QUERY, text="Who is the author of Dracula?", asked="And who wrote it?", api_key="abc")
    decided = {"arm": "b", "pmf": (0.1, 0.9), "facts": {"x": 1}, "version": "main-9-9", "made_at": 9.0, "seed": 7}
    rows = decision_row(made_decision(query=first)), decision_row(made_decision(query=again, **decided))
    assert rows[0]["body_hash"] == rows[1]["body_hash"]


@steady
@given(feedback=FEEDBACKS, other=FEEDBACKS)
def test_feedback_bodies(feedback, other):
    """Feedback under one id is a duplicate if all that was said agrees, whenever and with whatever key it came."""
    later = replace(feedback, received_at=1.0, id="another", api_key="0123456789")
    assert feedback_row(later)["body_hash"] == feedback_row(feedback)["body_hash"]
    compared = ("decision_id", "kind") if feedback.kind == "event" else ("decision_id", "kind", "value")
    same = all(bits(getattr(feedback, key)) == bits(getattr(other, key)) for key in compared)
    same = same and all(getattr(feedback, key) == getattr(other, key) for key in ("source", "rater", "event"))
    same = same and canonical(feedback.facts) == canonical(other.facts)
    assert (feedback_row(feedback)["body_hash"] == feedback_row(other)["body_hash"]) == same


@steady
@given(outcome=OUTCOMES)
def test_outcome_bodies(outcome):
    """The same outcome reported later is a duplicate; with one more step, or of another generator, it is a conflict."""
    ours = outcome_row(outcome)["body_hash"]
    assert outcome_row(replace(outcome, made_at=0.0))["body_hash"] == ours
    assert outcome_row(replace(outcome, steps=outcome.steps + 1.0 + abs(outcome.steps)))["body_hash"] != ours
    assert outcome_row(replace(outcome, made_by={**outcome.made_by, "generator": "large"}))["body_hash"] != ours


def test_what_is_not_reported_is_in_no_hash():
    """Parts that are missing or zero are in no hash, so a version that knows one part less agrees."""
    said = {"decision_id": "d-1", "kind": "rating", "value": 1.0, "source": "human"}
    assert feedback_row(Feedback(id="f-1", received_at=1.0, **said))["body_hash"] == body_hash(said)
    cheap, dear = (replace(made_outcome(), cost=Cost(passages=3, dollars=dollars)) for dollars in (0.0, 0.1))
    assert json.loads(outcome_row(cheap)["cost"]) == {"passages": 3}
    assert outcome_row(dear)["body_hash"] != outcome_row(cheap)["body_hash"]
