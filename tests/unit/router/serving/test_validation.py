"""The edge refuses what cannot be stored, encoded, learned or printed, with the field and the remedy."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.config.settings import BudgetSettings, Settings
from ragbandit.router.serving.checks.questions import cap_budget, checked_query, checked_text
from ragbandit.router.serving.checks.reports import check_charged, make_feedback, make_outcome
from ragbandit.router.serving.deciding.steps.step import Question
from ragbandit.router.serving.deciding.steps.tasks import Tasks
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.text_forms import is_blank
from ragbandit.shared.types import MAX_TEXT, Budget, Cost, Query
from ragbandit.testing.policies import ARMS
from tests.support.cases import every_case
from tests.support.examples import steady

HUGE, SURROGATE = 10**400, "caf\udce9"
TOO_LONG = "x" * (MAX_TEXT + 1)
BAD_TEXTS = (
    "",
    "   ",
    "\n\t \r\n",
    "\u3000",
    "\u200b\ufeff",
    "\u3164",
    "x" * 1_000_000,
    TOO_LONG,
    SURROGATE,
    "who\x00?",
    b"who?",
    7,
    None,
)
BAD_IDS = ("", " ", "a b", "é", "a/b", "a.b", "x" * 65, "a\n", "a:b", 7, b"a", "../a")
BAD_VALUES = (math.nan, math.inf, -math.inf, [1], {"a": 1}, b"x", ("a", 1), object(), "a\x00", SURROGATE, " \x00")
DEFAULTS = Settings()
LIMITS = {"configured": (*ARMS, "mine"), "schema": {}, "most_bytes": DEFAULTS.server.max_context_bytes}
COUNTS, AMOUNTS = ("rounds", "passages", "tokens"), ("seconds", "dollars")


def query(**values):
    return checked_query(Query(**{"text": "who?"} | values), arms=ARMS, **LIMITS)


def unit(**values):
    step = Tasks(None)
    step.configure(SimpleNamespace(settings=DEFAULTS))
    step.check(Question(query=Query(text="who?", **values), run_by="caller", allowed=ARMS))


def feedback(**values):
    return make_feedback(**{"decision_id": "d-1", "settings": DEFAULTS, "now": 5.0} | values)


def outcome(**values):
    return make_outcome(**{"decision_id": "d-1", "now": 5.0, "status": "answered"} | values)


#: what is called, with what, and the field that the error names
REFUSED = [
    *((query, {"text": text}, "question") for text in BAD_TEXTS),
    *((query, {"id": key}, "decision_id") for key in BAD_IDS),
    *((query, {"tenant": key}, "tenant") for key in (*BAD_IDS, None)),
    *((call, {"decision_id": key}, "decision_id") for key in (*BAD_IDS, None) for call in (feedback, outcome)),
    *((feedback, {"rating": 1.0, "feedback_id": key}, "feedback_id") for key in BAD_IDS),
    *((query, {"context": {"key": value}}, "context.key") for value in (*BAD_VALUES, "x" * 1_000_000)),
    *((query, {"context": {key: 1}}, "context") for key in ("", " ", "a\x00", "\udfff", 3, None)),
    *((query, {"budget": Budget(**{cap: 1.5})}, f"budget.{cap}") for cap in COUNTS),
    *(
        (query, {"budget": Budget(**{cap: value})}, f"budget.{cap}")
        for cap in (*COUNTS, *AMOUNTS)
        for value in (0, -1, math.nan, math.inf, True, "3", 1e10, HUGE)
    ),
    *((query, {"budget": budget}, "budget") for budget in ({"rounds": 1}, None)),
    *((query, {"context": context}, "context") for context in (["vip"], None)),
    *((query, {"arms": arms}, "arms") for arms in ("single_step", 5, (["single_step"],))),
    *((unit, {"unit": value}, "unit") for value in ("session", 1, True, "task")),
    *((feedback, {"rating": value}, "rating") for value in (math.nan, math.inf, -0.01, 1.01, 5, "good", [1], HUGE)),
    *((feedback, {"rating": stars, "scale": "1-5"}, "rating") for stars in (0, 0.99, 5.01, 6, -1, math.nan, "5")),
    *(
        (feedback, {**value, "scale": scale}, "scale")
        for value in ({"rating": 0.5}, {"rating": True}, {"label": ["Paris"]}, {"reward": 0.5})
        for scale in ("1-1", "", "percent", "0 - 1", None)
    ),
    *((feedback, {"reward": value}, "reward") for value in (math.nan, math.inf, -1.01, 1.01, True, "1", HUGE)),
    *(
        (feedback, {"label": label}, "label")
        for label in ([], [""], ["Paris", " "], ["a\x00"], ["\ud800"], [7], ["x"] * 101, 7, b"Paris", {"a": 1})
    ),
    *((feedback, {"rating": 1.0, "source": source}, "source") for source in ("robot", "", "Human", 1, ["human"])),
    *((outcome, {"status": status}, "status") for status in ("done", None, ["answered"])),
    *((outcome, {"answer": text}, "answer") for text in ("a\x00", "\ud800", "x" * 1_000_000, [])),
    *((outcome, {"error": error}, "error") for error in ("a\x00", 0)),
    *((outcome, {"stop_reason": reason}, "stop_reason") for reason in ("x" * 65, None)),
    *((outcome, {"steps": steps}, "steps") for steps in (-1, math.nan, math.inf, "2", HUGE)),
    *((outcome, {"cost": cost}, "cost") for cost in ({"euros": 1}, 5, [("tokens", 1)])),
    *((outcome, {"cost": {"passages": amount}}, "cost.passages") for amount in (-1, 1.5, True)),
    *((outcome, {"cost": {"seconds_total": amount}}, "cost.seconds_total") for amount in (math.nan, math.inf)),
    (outcome, {"cost": {"dollars": -0.01}}, "cost.dollars"),
]


@pytest.mark.parametrize("rater", ["Zo\u00eb", "Zoe\u0308", " Zo\u00eb\n", "Zo\u200d\u00eb", "\u202eZo\u00eb\u00a0"])
def test_raters_that_look_alike_are_one_rater(rater):
    """The name of a rater is stored as NFC, without format characters and blanks at its ends."""
    assert feedback(rating=True, rater=rater).rater == "Zo\u00eb"


def test_a_rater_that_grows_is_too_long():
    """The limit of a rater's name also holds for the form that is stored, which may be longer."""
    with pytest.raises(InvalidInput, match="128 characters"):
        feedback(rating=True, rater="\u0958" * 64)


def refusal(call, values):
    with pytest.raises(InvalidInput) as caught:
        call(**values)
    return caught.value


def test_what_is_wrong_is_refused():
    """A wrong question, judgement or outcome is InvalidInput with its field and a remedy, and does not repeat it."""
    with every_case() as case:
        for call, values, field in REFUSED:
            with case(call.__name__, f"{values!r:.60}", field):
                error = refusal(call, values)
                assert error.field == field
                assert error.remedy, "the error has no remedy"
                assert (error.code, error.status) == ("INVALID_INPUT", 422)
                assert len(str(error)) < 300, "the error repeats the input"


def test_arms_that_are_not_run_by_workers():
    """The caller's own arm is refused as what it is, with the way to it; so is a service without arms for workers."""
    asked = Query(id="d-1", text="who?", arms=("multi_step", "mine"))
    error = refusal(checked_query, {"query": asked, "arms": ARMS, **LIMITS})
    assert "'mine' is run by your own stack" in error.message
    assert "/v1/route" in error.remedy
    assert "Router.route" in error.remedy
    assert checked_query(asked, arms=(*ARMS, "mine"), **LIMITS) == asked
    none = {"query": Query(text="who?"), "arms": (), **LIMITS}
    assert "/v1/route" in refusal(checked_query, none).remedy


@steady
@given(text=st.text())
def test_what_passes_can_be_stored(text):
    """Text that passes is valid UTF-8, not blank, without NUL, and comes back as it was."""
    try:
        assert checked_text(text, field="question") == text
    except InvalidInput:
        assert is_blank(text) or "\x00" in text
    else:
        assert text.encode("utf-8").decode("utf-8") == text
        assert "\x00" not in text
        assert not is_blank(text)


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
    budget = cap_budget(asked, limits=limits)
    for cap in (*COUNTS, *AMOUNTS):
        given_ = [value for value in (getattr(asked, cap), getattr(limits, cap)) if value is not None]
        assert getattr(budget, cap) == (min(given_) if given_ else None)
        assert cap in AMOUNTS or getattr(budget, cap) is None or isinstance(getattr(budget, cap), int)


@pytest.mark.parametrize(
    ("given", "kind", "value"),
    [
        *(
            ({"rating": thumb, "scale": scale}, "rating", float(thumb))
            for thumb in (True, False)
            for scale in ("0-1", "1-5")
        ),
        *(({"rating": share}, "rating", float(share)) for share in (0, 1, 0.3)),
        *(
            ({"rating": stars, "scale": "1-5"}, "rating", share)
            for stars, share in ((1, 0.0), (2, 0.25), (3, 0.5), (4.5, 0.875), (5, 1.0))
        ),
        *(({"reward": reward}, "reward", float(reward)) for reward in (-1, -1.0, 0, 0.25, 1.0)),
        ({"reward": -9.5, "settings": Settings(reward=RewardSettings(minimum=-10.0))}, "reward", -9.5),
        ({"label": "Paris"}, "label", ("Paris",)),
        ({"label": ["Paris"]}, "label", ("Paris",)),
        ({"label": ("Bram Stoker", "Stoker")}, "label", ("Bram Stoker", "Stoker")),
    ],
    ids=lambda value: f"{value!r:.40}",
)
def test_good_feedback_passes(given, kind, value):
    """Thumbs, shares and stars become a number in [0, 1]; rewards stay within the settings' bounds."""
    made = feedback(**given)
    assert (made.kind, made.value, type(made.value)) == (kind, value, type(value))


@pytest.mark.parametrize("status", ["answered", "exhausted", "failed"])
def test_good_outcome_passes(status):
    """The caller's own stack reports status, answer, steps and any part of the cost; answer and cost may be missing."""
    made = outcome(status=status, answer="Paris", steps=2, cost={"passages": 3.0, "seconds_total": 1, "dollars": 0.02})
    assert (made.status, made.answer, made.steps, made.run_by, made.made_at) == (status, "Paris", 2.0, "caller", 5.0)
    assert made.cost == Cost(passages=3, seconds_total=1.0, dollars=0.02)
    assert type(made.cost.passages) is int
    less = outcome(status=status, error="timed out")
    assert less == replace(made, answer=None, cost=Cost(), steps=0.0, error="timed out")


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u3000"])
def test_blank_texts_of_an_outcome_pass(text):
    """A blank answer, error or reason is stored as it is; one that is too long or holds NUL is refused."""
    made = outcome(answer=text, error=text, stop_reason=text, steps=1)
    assert (made.answer, made.error, made.stop_reason) == (text, text, text)
    for wrong in (" " * 100_001, " \x00"):
        with pytest.raises(InvalidInput):
            outcome(answer=wrong, steps=1)


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
