"""The report of a store: what is read of it, in both databases."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import insert

from ragbandit.router.comparison import Difference, compare
from ragbandit.router.config.learning import HoldbackSettings, PolicySettings, RewardSettings
from ragbandit.router.config.settings import Settings
from ragbandit.router.reporting import reading
from ragbandit.router.reporting.before_start import keep_comparisons
from ragbandit.router.reporting.reading import ReportScope, Sample, read_log
from ragbandit.router.reporting.report import report
from ragbandit.router.reporting.unrated_answers import queue_unrated
from ragbandit.router.serving.checks.reports import make_feedback, make_outcome
from ragbandit.router.storage.access.shared_secrets import DRAWS, draw_number, shared_secret
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.label_queue import waiting_items
from ragbandit.router.storage.rows.conversion import update_row
from ragbandit.router.storage.sql.counters import ALL, stored_counts
from ragbandit.router.storage.sql.tables import updates
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.formats import moment, percent
from ragbandit.shared.types import IMPORTED, LabelRequest, PolicyLabel, Reward, SafeStart, Update
from tests.conftest import on_sqlite

EPOCH, HOUR = 1_700_000_000.0, 3_600.0
SCOPE = ReportScope(label="main", since=EPOCH - 30 * 86_400.0, until=EPOCH + 1.0)
DOLLARS = {"no_retrieval": 0.001, "single_step": 0.01, "multi_step": 0.1}
REWARD = Reward(
    value=0.0,
    quality=0.0,
    cost=0.0,
    weight=0.0,
    minimum=-1.0,
    maximum=1.0,
    terms={},
    preset="rating",
    source="explicit",
)


class Store:
    """Decisions an hour apart, the newest first; what came of them as the service writes it."""

    def __init__(self, database, make_decision):
        self.database, self.make_decision = database, make_decision
        self.store, self.made, self.rows = DecisionStore(database, label=PolicyLabel("main")), [], []

    def add(
        self,
        *,
        quality=None,
        source="explicit",
        learned_from=(),
        outcome=True,
        weight=1.0,
        price=None,
        reward=None,
        **changes,
    ):
        number = len(self.made)
        one = self.make_decision(f"decision-{number:05d}")
        asked = {"text": f"Who wrote book {number}?"} | changes.pop("query", {})
        query = replace(one.query, **asked, cost_weight=price)
        one = replace(one, query=query, made_at=EPOCH - number * HOUR, **changes)
        self.made.append(one)
        self.store.add_decisions([one])
        if outcome:
            cost = {"dollars": DOLLARS[one.arm], "seconds_total": 1.0}
            made = make_outcome(decision_id=one.id, now=EPOCH, status="answered", answer="a", steps=2.0, cost=cost)
            self.store.add_outcome(made)
        if quality is not None:
            made = replace(REWARD, quality=quality, source=source, sample_weight=weight, **(reward or {}))
            self._judge(one, made, learned_from=learned_from)
        return one

    def _judge(self, one, reward, *, learned_from):
        update = Update(policy=PolicyLabel("main"), seq=len(self.rows) + 1, decision_id=one.id, query=one.query,
            arm=one.arm, arms=one.arms, pmf=one.pmf, scores=None, propensity=one.propensity, reward=reward,
            feedback_ids=learned_from, features=None, made_at=EPOCH)  # fmt: skip
        self.rows.append(update_row(update, feedback_at=EPOCH))
        with self.database.write() as connection:
            connection.execute(insert(updates), self.rows[-1:])


@pytest.fixture
def store(database, make_decision):
    return Store(database, make_decision)


@on_sqlite
def test_a_report_names_the_moment_from_which_the_policy_decides(store):
    """A safe start that ended within the period is a change: the report has the moment from which on the policy decides
    most questions, and the command for the time since then. While the safe start decides, and in the period after it,
    there is no such change.
    """
    for number in range(300):
        is_over = number < 140
        start = SafeStart(arm="multi_step", share=0.95 if is_over else 0.1, slack=0.0, reason=None, floor=0.0)
        pmf, arm = ((0.2, 0.8), "single_step") if is_over else ((0.9, 0.1), "multi_step")
        drawn = {"arms": ("multi_step", "single_step"), "pmf": pmf, "arm": arm, "propensity": max(pmf)}
        store.add(**drawn, facts={SafeStart.key: start.stored})
    (change,) = report(store.database, SCOPE, policy=PolicySettings()).changes
    assert change.arm == "multi_step"
    assert 140 - 60 < (EPOCH - change.at) / HOUR < 140
    words = f"the policy decides most questions from {moment(change.at)} on; before, a safe start with multi_step did"
    assert change.what == words
    early = replace(SCOPE, until=EPOCH - 145 * HOUR)
    assert report(store.database, early, policy=PolicySettings()).state.startswith("safe start: ")
    for scope in (early, replace(SCOPE, since=change.at)):
        assert report(store.database, scope, policy=PolicySettings()).changes == ()


def test_what_is_read_of_a_store(store, monkeypatch):
    """The reader yields all questions that compare arms, in pages; the others are counted by reason."""
    monkeypatch.setattr(reading, "_PAGE", 3)
    facts = {"quality": [0.1, 0.2, 0.3], "cost": [1.0, 2.0, 4.0]}
    first = store.add(quality=0.75, facts=facts)
    store.add(quality=0.5, source="default")
    store.add(quality=0.5, weight=0.0)
    store.add(outcome=False, quality=1.0, query={"tenant": "acme"})
    store.add(facts={"quality": [0.1, "x", 0.3]})
    store.add(facts={IMPORTED: True})
    one = {"arms": ("single_step",), "pmf": (1.0,), "arm": "single_step", "propensity": 1.0}
    for by in ("task", "kill switch", "caller", "calls", "failover", "limit", "rule", "needs", "breaker", "only arm"):
        store.add(arm_by=by, **one)
    store.add(outcome=False)
    log = read_log(store.database, SCOPE)
    assert len(log.arm) == 5
    assert [log.arms[place] for place in log.arm] == [one.arm for one in store.made[:5]]
    assert log.quality[[0, 3]].tolist() == [0.75, 1.0]
    assert np.isnan(log.quality[[1, 2, 4]]).all()
    assert log.costs["dollars"][[0, 1]].tolist() == [DOLLARS[one.arm] for one in store.made[:2]]
    assert np.isnan(log.costs["dollars"][3])
    assert log.pmf[0].tolist() == list(first.pmf)
    assert log.expected_quality[0].tolist() == [0.1, 0.2, 0.3]
    assert np.isnan(log.expected_quality[4]).all()
    assert log.expected_cost[0].tolist() == [1.0, 2.0, 4.0]
    assert log.left_out == {
        "decided by the arm of an earlier turn": 1,
        "decided by the kill switch": 1,
        "decided by the caller": 1,
        "decided by the arm of their calls of tools": 1,
        "decided by a failover": 1,
        "decided by a limit of the session or task": 1,
        "decided by a rule that left one arm": 1,
        "decided by needs that only one arm meets": 1,
        "decided by the circuit breaker, which left one arm": 1,
        "decided by the only arm on offer": 1,
        "no outcome yet": 1,
    }
    assert [log.tenants[place] for place in log.tenant] == ["default"] * 3 + ["acme", "default"]
    assert log.sample is None
    assert len(read_log(store.database, replace(SCOPE, tenant="acme")).arm) == 1
    assert len(read_log(store.database, replace(SCOPE, since=EPOCH - 1.5 * HOUR)).arm) == 2


@on_sqlite
def test_replaced_and_retracted_ratings_are_no_quality_of_undrawn_answers(store):
    """The quality of answers that the policy did not draw is the mean of the ratings in force."""
    one = {"arms": ("single_step",), "pmf": (1.0,), "arm": "single_step", "propensity": 1.0, "arm_by": "limit"}
    replaced, taken_back = store.add(**one).id, store.add(**one).id
    given = {"settings": Settings.model_validate({}), "rater": "user-17"}
    ratings = [(replaced, {"rating": False}), (replaced, {"rating": True}), (taken_back, {"rating": False})]
    for number, (key, judged) in enumerate([*ratings, (taken_back, {"retract": "rating"})]):
        made = make_feedback(decision_id=key, feedback_id=f"f{number}", now=EPOCH + number, **judged, **given)
        store.store.add_feedback([made])
    (undrawn,) = report(store.database, SCOPE, policy=PolicySettings()).undrawn
    assert (undrawn.questions, undrawn.quality) == (2, 1.0)


def test_unrated_answers_of_an_arm_wait_for_labels(store):
    """Answers of the arm that may be rated begin to wait in the order of their draws, as many as are wanted in all."""
    two = {"arms": ("no_retrieval", "single_step"), "pmf": (0.5, 0.5), "propensity": 0.5}
    open_ones = [store.add(arm="single_step", **two).id for _ in range(9)]
    store.add(arm="no_retrieval", **two)
    store.add(arm="single_step", outcome=False, **two)
    store.add(arm="single_step", query={"tenant": "acme"}, **two)
    store.add(arm="single_step", facts={LabelRequest.key: {"asked": False}}, **two)
    store.add(arm="single_step", arm_by="limit", **two)
    rated = store.add(arm="single_step", **two).id
    settings = Settings.model_validate({})
    good = {"feedback_id": "good", "rating": True, "decision_id": rated, "settings": settings, "now": EPOCH}
    store.store.add_feedback([make_feedback(**good)])
    scope, secret = replace(SCOPE, tenant="default"), shared_secret(store.database, name=DRAWS, now=EPOCH)
    order = sorted(open_ones, key=lambda key: draw_number("rate", key, secret=secret))
    for count, expected in ((3, 3), (3, 3), (5, 5), (50, 9)):
        assert queue_unrated(store.database, scope, arm="single_step", count=count, now=EPOCH + count) == expected
        queued = [one.id for one in waiting_items(store.database, tenant=None, limit=50)]
        with store.database.read() as connection:
            assert stored_counts(connection, label=ALL)["label_due"] == expected
        assert sorted(queued, key=order.index) == order[:expected]
    assert queued == [*order[5:], *order[3:5], *order[:3]]


@on_sqlite
def test_a_report_of_a_store(store):
    """The plain sums, the arm of the holdback, a line for each tenant, price and week, and what is missing."""
    for number in range(150):
        store.add(quality=float(number % 5 > 0), query={"tenant": f"t{number % 2}"}, price=0.25 if number % 3 else None)
    store.add(arms=("no_retrieval", "single_step"), pmf=(0.5, 0.5), arm="single_step", propensity=0.5)
    policy = PolicySettings(holdback=HoldbackSettings(arm="multi_step"))
    page = report(store.database, SCOPE, policy=policy)
    assert page.unit == "dollars"
    spent = sum(DOLLARS[one.arm] for one in store.made[:150])
    assert page.total.cost.first * 150 == pytest.approx(spent)
    assert page.total.cost.second == pytest.approx(0.1)
    assert page.total.cost.high < 0.0
    assert page.total.quality.low < 0.0 < page.total.quality.high
    assert page.total.verdict == "not known yet"
    assert page.total.missing.startswith("about ")
    assert page.left_out == {"multi_step was not offered": 1}
    assert {line.first: line.questions for line in page.tenants} == {"t0": 75, "t1": 75}
    assert [line.questions for line in page.prices] == [100, 50]
    assert sum(line.questions for line in page.weeks) == 150
    assert {line.second for line in page.arms} == {f"always {arm}" for arm in DOLLARS}
    assert "questions that are in no comparison: 1 (multi_step was not offered)" in page.notes
    [spread] = [note for note in page.notes if note.startswith("shares of the compared questions")]
    draws = Counter(one.arm for one in store.made[:151])
    arms = [f"{arm} {percent(count / 151)}, 1 s" for arm, count in draws.most_common()]
    assert sorted(spread.partition(": ")[2].split("; ")) == sorted(arms)
    with pytest.raises(InvalidInput, match="since"):
        report(store.database, replace(SCOPE, until=SCOPE.since), policy=policy)


@on_sqlite
def test_scores_of_a_judge(store):
    """Judge's scores are the quality if people rated few answers; from 20 ratings on only people's ratings count."""
    for number in range(19):
        store.add(quality=number % 2, reward={"judged_by": "human", "surrogates": {"judge": 0.5}})
    store.add(quality=0.25, reward={"judged_by": "judge"}, weight=0.3)
    store.add(quality=0.75, reward={"judged_by": "human"})
    few = read_log(store.database, SCOPE)
    assert few.quality[19:].tolist() == [0.25, 0.75]
    store.add(quality=1.0, reward={"judged_by": "label", "surrogates": {"judge": 0.875}})
    log = read_log(store.database, SCOPE)
    assert np.nan_to_num(log.quality, nan=-1.0).tolist() == [*(float(n % 2) for n in range(19)), -1.0, 0.75, 1.0]
    assert np.isnan(log.reward).tolist() == np.isnan(log.quality).tolist()
    assert log.score[[0, 19, 21]].tolist() == [0.5, 0.25, 0.875]
    assert np.isnan(log.score[20])


@on_sqlite
def test_labels_of_the_queue_count_by_their_probability(store):
    """A label of a decision that the queue asked for stands for share / q rows, 5 at most; everything else for one."""
    queue = {"asked": True, "q": 0.05, "share": 0.1}
    for facts in (
        {LabelRequest.key: queue},
        {LabelRequest.key: {**queue, "asked": False}},
        {LabelRequest.key: {**queue, "q": 1e-3}},
        {},
    ):
        store.add(quality=1.0, facts=facts, reward={"judged_by": "label"})
    store.add(quality=1.0, facts={LabelRequest.key: queue}, reward={"judged_by": "human"})
    assert read_log(store.database, SCOPE).counts.tolist() == [2.0, 1.0, 5.0, 1.0, 1.0]


@on_sqlite
def test_ratings_that_were_retracted(store):
    """A rating that its rater took back before it was learned is read; one that was given again or learned is not."""
    settings = Settings.model_validate({})
    given = {"a": [0.25, None], "b": [True, None, True], "c": [1.0, None], "d": [0.0]}
    for number, (name, values) in enumerate(given.items()):
        learned = {"quality": 1.0, "learned_from": ("c-0",)} if name == "c" else {}
        one = store.add(**learned)
        for place, value in enumerate(values):
            about = {"feedback_id": f"{name}-{place}", "decision_id": one.id, "settings": settings, "rater": "ann"}
            told = {"retract": "rating"} if value is None else {"rating": value}
            store.store.add_feedback([make_feedback(**about, **told, now=EPOCH + 10 * number + place)])
    log = read_log(store.database, SCOPE)
    assert np.nan_to_num(log.retracted, nan=-1.0).tolist() == [0.25, -1.0, -1.0, -1.0]
    assert report(store.database, SCOPE, policy=PolicySettings()).retracted == {
        store.made[0].arm: {"good": 0, "bad": 1}
    }


@on_sqlite
@pytest.mark.parametrize("is_kept", [True, False])
def test_ratings_of_one_key_on_one_question_are_one_cluster(store, is_kept):
    """Rows have one number if one key, the judge, or the people of a session without a key rated the same question; if
    texts are not kept, the same request, which has its session.
    """
    settings = Settings.model_validate({})
    texts = ["a", "a", "b", "a", "a", "a", "a", "a", "a", "a"]
    keys = ["one", "one", "one", "two", None, None, None, None, None, "one"]
    sessions = [None, "s", None, None, None, "s", "s", "s", "t", "t"]
    for number, (text, key, session) in enumerate(zip(texts, keys, sessions, strict=True)):
        by_judge = {"judged_by": "judge" if number in (5, 8) else "human"}
        question = {"text": text if is_kept else "", "context": {"x": text}, "session": session}
        one = store.add(quality=1.0, query=question, reward=by_judge)
        rating = make_feedback(decision_id=one.id, rating=True, settings=settings, now=EPOCH)
        store.store.add_feedback([replace(rating, api_key=key)])
    assert read_log(store.database, SCOPE).cluster is not None
    store.add(quality=None)
    expected = [0, 0, 1, 2, 3, 4, 5, 5, 4, 0, -1] if is_kept else [0, 1, 2, 3, 4, 5, 6, 6, 7, 8, -1]
    assert read_log(store.database, SCOPE).cluster.tolist() == expected
    assert read_log(store.database, replace(SCOPE, since=EPOCH - 0.5 * HOUR)).cluster is None


def test_a_large_period_is_a_uniform_sample(store):
    """A large period is drawn by the seeds of its decisions."""
    for number in range(240):
        facts = {IMPORTED: True} if number % 8 == 7 else {}
        store.add(query={"tenant": "acme" if number % 3 else "default"}, facts=facts)
    traffic = [one for one in store.made if IMPORTED not in one.facts]
    scope = replace(SCOPE, most=60)
    log = read_log(store.database, scope)
    drawn = [one for one in traffic if one.seed % 10**6 < 250_000]  # 210 questions: a quarter is at most 60
    assert log.made_at.tolist() == [one.made_at for one in drawn]
    assert (log.sample, log.scale) == (Sample(questions=len(drawn), out_of=210), 210 / len(drawn))
    assert read_log(store.database, replace(scope, most=210)).sample is None
    assert set(read_log(store.database, replace(scope, most=30)).made_at) < set(log.made_at)
    page = report(store.database, scope, policy=PolicySettings(), now=SCOPE.until)
    assert page.sentence.startswith("Last 30 days: about $5.00 instead of about $21.00 with ")
    assert f", from a sample of {len(drawn)} of 210 questions; " in page.sentence
    acme = report(store.database, replace(scope, tenant="acme"), policy=PolicySettings())
    assert acme.sample.out_of == sum(one.query.tenant == "acme" for one in traffic)


@on_sqlite
def test_sums_of_a_sample_are_scaled_to_the_period(store):
    """A sampled line has the questions of the period, about its dollars, and no forecast that a sample cannot keep."""
    for _ in range(400):
        store.add(quality=1.0)
    policy = PolicySettings(incumbent="multi_step")
    whole = report(store.database, SCOPE, policy=policy)
    part = report(store.database, replace(SCOPE, most=200), policy=policy)
    assert (whole.sample, whole.total.questions, part.total.questions) == (None, 400, 400)
    assert part.sample.questions < 250
    assert part.total.cost.low <= whole.total.cost.estimate <= part.total.cost.high
    tiny = report(store.database, replace(SCOPE, most=12), policy=policy)
    assert tiny.total.missing == "more than this sample; `ragbandit replay` reads every question"


@on_sqlite
def test_what_was_known_before_the_start(database, make_decision):
    """A warm start's comparison follows the live one in the sentence, while the weight of cost is the same."""
    store = Store(database, make_decision)
    for number in range(12):
        store.add(arm=("single_step", "multi_step")[number % 2], quality=1.0)
    reward = Difference(estimate=0.134, low=0.037, high=0.225)
    names = ("routing", "always multi_step")
    known = compare(*names, design="paired outcomes", questions=100, rated=100, reward=reward)
    drawn = compare(*names, design="logged draws", questions=100, rated=100, reward=reward)
    scope = replace(SCOPE, reward=RewardSettings())
    options = {"policy": PolicySettings(), "against": "multi_step"}
    keep_comparisons(database, [drawn], label="main", weight=0.05, now=EPOCH)
    assert report(database, scope, **options).before is None
    keep_comparisons(database, [known], label="main", weight=0.05, now=EPOCH)
    found = report(database, scope, **options)
    start = "Before the start, on 100 labelled questions: +0.134 (+0.037 to +0.225) reward against always multi_step; "
    assert found.before.startswith(f"{start}live so far: ")
    assert found.before in found.sentence
    assert report(database, scope, policy=PolicySettings(), against="single_step").before is None
    changed = replace(SCOPE, reward=RewardSettings(weight=0.1))
    assert report(database, changed, **options).before is None
