"""The edge refuses what cannot be stored, encoded, learned or printed, with the field and the remedy."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbandit.router.config.settings import BudgetSettings, RewardSettings, Settings
from ragbandit.router.serving.checks.fields import checked_id, checked_text, new_id
from ragbandit.router.serving.checks.questions import capped, checked_query
from ragbandit.router.serving.checks.reports import check_charged, made_feedback, made_outcome
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import MAX_ERROR, MAX_TEXT, Budget, Cost, Query
from ragbandit.testing.policy_examples import ARMS
from tests.support.examples import steady

SETTINGS = Settings()
BAD_TEXTS = {
    "empty": "",
    "spaces": "   ",
    "blank lines": "\n\t \r\n",
    "ideographic space": "\u3000",
    "one megabyte": "x" * 1_000_000,
    "one too long": "x" * (MAX_TEXT + 1),
    "lone surrogate": "caf\udce9",
    "NUL": "who\x00?",
    "bytes": b"who?",
    "number": 7,
    "none": None,
}
BAD_IDS = ("", " ", "a b", "é", "a/b", "a.b", "x" * 65, "a\n", "a:b", 7, None, b"a", "../a")
GOOD_IDS = ("a", "A-1_b", "0", "x" * 64, "0197f3a0-0000-7000-8000-000000000000")


def refused(field, function, /, *args, **kwargs):
    with pytest.raises(InvalidInput) as caught:
        function(*args, **kwargs)
    assert caught.value.field == field
    assert caught.value.remedy, "the error has no remedy"
    assert (caught.value.code, caught.value.status) == ("INVALID_INPUT", 422)
    return caught.value


def feedback(**values):
    return made_feedback(decision_id="d-1", settings=SETTINGS, now=5.0, **values)


def outcome(**values):
    return made_outcome(decision_id="d-1", now=5.0, **({"status": "answered"} | values))


@pytest.mark.parametrize("text", BAD_TEXTS.values(), ids=BAD_TEXTS.keys())
def test_bad_question_is_refused(text):
    """A question that is blank, too long, no valid Unicode or no text at all is refused."""
    error = refused("question", checked_query, Query(text=text), arms=ARMS)
    assert len(str(error)) < 300, "the error repeats the input"


@pytest.mark.parametrize("text", ["?", "Wer schrieb Dracula?", "谁写的", "🙂", "a" * MAX_TEXT, " x ", "\u200dwho"])
def test_good_question_passes(text):
    """Any valid Unicode of up to MAX_TEXT characters passes unchanged."""
    query = Query(id="d-1", text=text)
    assert checked_query(query, arms=ARMS) == query


@steady
@given(text=st.text())
def test_what_passes_can_be_stored(text):
    """Text that passes is valid UTF-8, not blank, without NUL, and comes back as it was."""
    try:
        assert checked_text(text, field="question") == text
    except InvalidInput:
        assert not text.strip() or "\x00" in text
    else:
        assert text.encode("utf-8").decode("utf-8") == text
        assert "\x00" not in text
        assert text.strip()


@pytest.mark.parametrize("value", BAD_IDS, ids=repr)
def test_bad_id_is_refused(value):
    """An id is 1 to 64 letters, digits, dashes and underscores, whatever names it."""
    refused("somewhere", checked_id, value, field="somewhere")
    if value is not None:
        refused("decision_id", checked_query, Query(text="who?", id=value), arms=ARMS)
        refused("feedback_id", feedback, rating=1.0, feedback_id=value)
    refused("tenant", checked_query, Query(text="who?", tenant=value), arms=ARMS)
    refused("decision_id", made_feedback, decision_id=value, settings=SETTINGS, now=0.0, rating=1.0)
    refused("decision_id", made_outcome, decision_id=value, now=0.0, status="answered")


@pytest.mark.parametrize("value", GOOD_IDS)
def test_good_id_passes(value):
    """An id of ours or of the caller's passes unchanged."""
    assert checked_id(value, field="decision_id") == value


def test_new_ids_are_ordered_and_pass():
    """Ids made here are unique, ordered by time, and pass their own check."""
    ids = [new_id() for _ in range(200)]
    assert sorted(set(ids)) == ids
    assert all(checked_id(made, field="decision_id") == made for made in ids)


@pytest.mark.parametrize(
    ("arms", "what"),
    [
        ((), "no arm"),
        (("oracle",), "unknown arm 'oracle'"),
        (("single_step", "oracle"), "unknown arm"),
        (("single_step", "single_step"), "twice"),
        (("Single_Step",), "unknown arm"),
    ],
)
def test_bad_arms_are_refused(arms, what):
    """No arm, an unknown arm and an arm named twice are refused."""
    assert what in refused("arms", checked_query, Query(text="who?", arms=arms), arms=ARMS).message


def test_unknown_arm_is_told_the_known_ones():
    """The remedy lists the arms of this service."""
    error = refused("arms", checked_query, Query(text="who?", arms=("oracle",)), arms=ARMS)
    assert all(arm in error.remedy for arm in ARMS)


def test_a_query_without_an_id_gets_one():
    """Every query that passes has an id: the caller's, or a new one that is ordered by time."""
    first, second = (checked_query(Query(text="who?"), arms=ARMS).id for _ in range(2))
    assert first < second


def test_the_callers_own_arm_is_not_called_unknown():
    """An arm that is there, but not run by workers, is refused as what it is, with the way to it."""
    asked = Query(id="d-1", text="who?", arms=("multi_step", "mine"))
    error = refused("arms", checked_query, asked, arms=ARMS, configured=(*ARMS, "mine"))
    assert "'mine' is run by your own stack" in error.message
    assert "/v1/route" in error.remedy
    assert "Router.route" in error.remedy
    assert checked_query(asked, arms=(*ARMS, "mine")) == asked


def test_service_without_arms_is_refused():
    """Where no arm is run by workers the caller is sent to /v1/route."""
    assert "/v1/route" in refused("arms", checked_query, Query(text="who?"), arms=()).remedy


@pytest.mark.parametrize("arms", [None, ("multi_step",), ("multi_step", "no_retrieval"), ARMS])
def test_good_arms_pass(arms):
    """Any choice of the arms in any order passes; None means all."""
    query = Query(id="d-1", text="who?", arms=arms)
    assert checked_query(query, arms=ARMS) == query


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        [1],
        {"a": 1},
        b"x",
        ("a", 1),
        object(),
        "a\x00",
        "\ud800",
        " \x00",
        "x" * 1_000_000,
    ],
    ids=lambda value: f"{value!r:.20}",
)
def test_bad_context_value_is_refused(value):
    """A context value that is no text, finite number, boolean, list of texts or null is refused under its key."""
    refused("context.key", checked_query, Query(text="who?", context={"key": value}), arms=ARMS)


@pytest.mark.parametrize("key", ["", " ", "a\x00", "\udfff", 3, None], ids=repr)
def test_bad_context_key_is_refused(key):
    """A context key must be text like any other."""
    refused("context", checked_query, Query(text="who?", context={key: 1}), arms=ARMS)


def test_good_context_passes():
    """Text, also empty or blank, numbers, booleans and null pass."""
    query = Query(
        id="d-1", text="who?", context={"a": "x", "b": "", "c": 1, "d": -0.5, "e": True, "f": None, "g": " \n"}
    )
    assert checked_query(query, arms=ARMS) == query


@steady
@given(context=st.dictionaries(st.text("abé中_", min_size=1, max_size=4), st.integers(), max_size=6))
def test_context_is_sorted_by_key(context):
    """The context comes out in the order that the log keeps, whatever order it was sent in, with the same values."""
    query = checked_query(Query(text="who?", context=context), arms=ARMS)
    assert list(query.context.items()) == sorted(context.items())
    assert json.loads(canonical(dict(query.context))) == query.context
    assert list(json.loads(canonical(dict(query.context)))) == list(query.context)


@pytest.mark.parametrize("cap", ["rounds", "passages", "tokens", "seconds", "dollars"])
@pytest.mark.parametrize(
    "value", [0, -1, math.nan, math.inf, True, "3", 1e10, 10**400], ids=lambda value: f"{value!r:.20}"
)
def test_bad_cap_is_refused(cap, value):
    """A cap is a number above 0, in reason; 0, NaN, infinity, booleans and text are refused."""
    refused(f"budget.{cap}", checked_query, Query(text="who?", budget=Budget(**{cap: value})), arms=ARMS)


@pytest.mark.parametrize("cap", ["rounds", "passages", "tokens"])
def test_half_a_round_is_refused(cap):
    """Caps on counts are whole numbers."""
    refused(f"budget.{cap}", checked_query, Query(text="who?", budget=Budget(**{cap: 1.5})), arms=ARMS)


def test_good_budget_passes():
    """Whole counts and any number of seconds and dollars above 0 pass."""
    query = Query(id="d-1", text="who?", budget=Budget(rounds=1, passages=5, tokens=10_000, seconds=0.5, dollars=0.001))
    assert checked_query(query, arms=ARMS) == query


caps = st.none() | st.integers(1, 100)
spans = st.none() | st.floats(0.1, 100)


@steady
@given(
    asked=st.builds(Budget, rounds=caps, passages=caps, tokens=caps, seconds=spans, dollars=spans),
    limits=st.builds(
        BudgetSettings, rounds=caps, passages=caps, tokens=caps, seconds=st.floats(0.1, 100), dollars=spans
    ),
)
def test_a_query_may_ask_for_less_never_for_more(asked, limits):
    """Cap by cap the smaller of asked and allowed is in force; None asks for nothing."""
    made = capped(asked, limits=limits)
    for cap in ("rounds", "passages", "tokens", "seconds", "dollars"):
        given_ = [value for value in (getattr(asked, cap), getattr(limits, cap)) if value is not None]
        assert getattr(made, cap) == (min(given_) if given_ else None)
        assert cap in ("seconds", "dollars") or getattr(made, cap) is None or isinstance(getattr(made, cap), int)


def test_feedback_needs_exactly_one_value():
    """No value, and two kinds at once, are refused."""
    assert "no label, rating, reward or event" in refused("feedback", feedback).message
    for two in ({"label": ["x"], "rating": 1.0}, {"rating": True, "reward": 0.0}, {"label": ["x"], "reward": 0.0}):
        assert " and ".join(two) in refused("feedback", feedback, **two).message


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, -0.01, 1.01, 5, "good", [1], 10**400],
    ids=lambda value: f"{value!r:.20}",
)
def test_bad_rating_is_refused(value):
    """A rating on the scale 0-1 is a finite number in [0, 1]."""
    refused("rating", feedback, rating=value)


def test_stars_without_scale_are_told_how():
    """A rating of 5 without a scale names the scale it wants."""
    assert "set scale to 1-5 (--scale 1-5)" in refused("rating", feedback, rating=5).remedy


@pytest.mark.parametrize("value", [0, 0.99, 5.01, 6, -1, math.nan, math.inf, "5"], ids=repr)
def test_bad_stars_are_refused(value):
    """A rating on the scale 1-5 is a finite number in [1, 5]."""
    refused("rating", feedback, rating=value, scale="1-5")


@pytest.mark.parametrize("scale", ["1-10", "", "percent", "0 - 1"])
def test_unknown_scale_is_refused(scale):
    """Only 0-1 and 1-5 are scales, whatever kind of feedback comes with it."""
    for value in ({"rating": 0.5}, {"rating": True}, {"label": ["Paris"]}, {"reward": 0.5}):
        refused("scale", feedback, **value, scale=scale)


@pytest.mark.parametrize(
    ("rating", "scale", "value"),
    [
        (True, "0-1", 1.0),
        (False, "0-1", 0.0),
        (True, "1-5", 1.0),
        (False, "1-5", 0.0),
        (0, "0-1", 0.0),
        (1, "0-1", 1.0),
        (0.3, "0-1", 0.3),
        (1, "1-5", 0.0),
        (2, "1-5", 0.25),
        (3, "1-5", 0.5),
        (4.5, "1-5", 0.875),
        (5, "1-5", 1.0),
    ],
)
def test_ratings_are_kept_on_0_to_1(rating, scale, value):
    """Thumbs, shares and stars all become a number in [0, 1]."""
    made = feedback(rating=rating, scale=scale)
    assert (made.kind, made.value, type(made.value)) == ("rating", value, float)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -1.01, 1.01, True, "1", 10**400], ids=lambda value: f"{value!r:.20}"
)
def test_bad_reward_is_refused(value):
    """A raw reward is a finite number within the reward setting's bounds."""
    refused("reward", feedback, reward=value)


@pytest.mark.parametrize("value", [-1, -1.0, 0, 0.25, 1.0])
def test_good_reward_passes(value):
    """A raw reward within the bounds, ends included, is kept as a float."""
    made = feedback(reward=value)
    assert (made.kind, made.value, type(made.value)) == ("reward", value, float)


def test_reward_bounds_are_the_settings():
    """Other bounds in the settings accept other rewards."""
    wide = Settings(reward=RewardSettings(minimum=-10.0, maximum=10.0))
    assert made_feedback(decision_id="d-1", settings=wide, now=0.0, reward=-9.5).value == -9.5


@pytest.mark.parametrize(
    "label",
    [[], [""], ["Paris", " "], ["a\x00"], ["\ud800"], [7], ["x"] * 101, 7, b"Paris"],
    ids=lambda v: f"{v!r:.20}",
)
def test_bad_label_is_refused(label):
    """A label is 1 to 100 gold answers, each of them text."""
    refused("label", feedback, label=label)


@pytest.mark.parametrize(
    ("label", "value"),
    [("Paris", ("Paris",)), (["Paris"], ("Paris",)), (("Bram Stoker", "Stoker"), ("Bram Stoker", "Stoker"))],
)
def test_good_label_passes(label, value):
    """One text is one gold answer; several stay in their order."""
    made = feedback(label=label)
    assert (made.kind, made.value) == ("label", value)


@pytest.mark.parametrize("source", ["robot", "", "Human", 1], ids=repr)
def test_unknown_source_is_refused(source):
    """Feedback comes from a human, a judge or code."""
    refused("source", feedback, rating=1.0, source=source)


def test_feedback_is_made_whole():
    """A good feedback has the caller's id, or a fresh one, and the clock's time."""
    made = feedback(rating=0.5, feedback_id="mine", source="judge")
    assert (made.id, made.decision_id, made.source, made.received_at) == ("mine", "d-1", "judge", 5.0)
    assert feedback(rating=0.5).id != feedback(rating=0.5).id


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"status": "done"}, "status"),
        ({"status": None}, "status"),
        ({"answer": "a\x00"}, "answer"),
        ({"answer": "\ud800"}, "answer"),
        ({"answer": "x" * 1_000_000}, "answer"),
        ({"error": "a\x00"}, "error"),
        ({"stop_reason": "x" * 65}, "stop_reason"),
        ({"steps": -1}, "steps"),
        ({"steps": math.nan}, "steps"),
        ({"steps": math.inf}, "steps"),
        ({"steps": "2"}, "steps"),
        ({"steps": 10**400}, "steps"),
        ({"cost": {"euros": 1}}, "cost"),
        ({"cost": {"passages": -1}}, "cost.passages"),
        ({"cost": {"passages": 1.5}}, "cost.passages"),
        ({"cost": {"llm_calls": True}}, "cost.llm_calls"),
        ({"cost": {"seconds_total": math.nan}}, "cost.seconds_total"),
        ({"cost": {"seconds_total": math.inf}}, "cost.seconds_total"),
        ({"cost": {"dollars": -0.01}}, "cost.dollars"),
    ],
    ids=lambda value: f"{value!r:.40}",
)
def test_bad_outcome_is_refused(values, field):
    """An outcome with an unknown status or cost, or an amount that is no finite number from 0 up, is refused."""
    refused(field, outcome, **values)


@pytest.mark.parametrize("status", ["answered", "exhausted", "failed"])
def test_good_outcome_passes(status):
    """The caller's own stack reports status, answer, steps and any part of the cost."""
    made = outcome(status=status, answer="Paris", steps=2, cost={"passages": 3.0, "seconds_total": 1, "dollars": 0.02})
    assert (made.status, made.answer, made.steps, made.run_by, made.made_at) == (status, "Paris", 2.0, "caller", 5.0)
    assert made.cost == Cost(passages=3, seconds_total=1.0, dollars=0.02)
    assert type(made.cost.passages) is int


def test_outcome_without_answer_passes():
    """An outcome may have no answer and no cost."""
    made = outcome(status="failed", error="timed out")
    assert (made.answer, made.cost, made.error) == (None, Cost(), "timed out")


@pytest.mark.parametrize("characters", [MAX_ERROR, MAX_ERROR + 1, 2 * MAX_TEXT])
def test_a_long_error_is_cut(characters):
    """An outcome comes in however long its error is; MAX_ERROR characters of it are kept."""
    made = outcome(status="failed", error="x" * characters)
    assert len(made.error) == MAX_ERROR
    assert made.error.endswith("...") == (characters > MAX_ERROR)


@pytest.mark.parametrize(
    ("reward", "cost", "field"),
    [
        ({}, {"dollars": 0.02}, "steps"),
        ({"cost": {"llm_calls": 1.0}}, {"dollars": 0.02}, "cost"),
        ({"cost": {"llm_calls": 1.0, "dollars": 0.0}}, {"dollars": 0.02}, "cost"),
        ({}, {}, None),
        ({"weight": 0.0}, {"dollars": 0.02}, None),
        ({"cost": {"dollars": 1.0}}, {"dollars": 0.02}, None),
        ({"cost": {"dollars": 1.0}}, {"dollars": 0.0, "llm_calls": 2.0}, None),
        ({"cost": {"dollars": 1.0, "steps": 1.0}}, {"dollars": 0.02}, None),
    ],
)
def test_cost_that_the_reward_does_not_charge(reward, cost, field):
    """A cost without steps of which the reward charges nothing is refused, naming the field and the remedy."""
    settings = RewardSettings.model_validate(reward)
    report = outcome(cost=cost)
    if field is None:
        check_charged(report, cost=cost, reward=settings, is_stored=lambda _: False)
        return
    with pytest.raises(InvalidInput, match="it would count as 0") as caught:
        check_charged(report, cost=cost, reward=settings, is_stored=lambda _: False)
    assert caught.value.field == field
    assert "reward.cost" in caught.value.remedy
