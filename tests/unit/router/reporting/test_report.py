"""Verdicts and words of a report."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.coverage import forecasts
from benchmarks.report import WORLDS, made
from ragbandit.router.comparison import Difference, about_time
from ragbandit.router.comparison.page import assessment_page, template_values
from ragbandit.router.config.learning import HoldbackSettings, PolicySettings, RewardSettings
from ragbandit.router.learning.monitoring.price import dollars_of_reward
from ragbandit.router.operation.findings import findings_of_report
from ragbandit.router.reporting import words
from ragbandit.router.reporting.deciders import Decider, decider_of, state_of, without_draw
from ragbandit.router.reporting.next_steps import options_of, rating_advice
from ragbandit.router.reporting.prompt_line import prompt_line
from ragbandit.router.reporting.reading import ReportScope
from ragbandit.router.reporting.report import report_of
from ragbandit.shared.errors import NotFound

DAY = 86_400.0
SCOPE = ReportScope(label="main", since=0.0, until=7 * DAY)
REWARD = RewardSettings(weight=10.0, cost={"dollars": 1.0})


def reported(log, **options):
    return report_of(log, options.pop("scope", SCOPE), policy=options.pop("policy", PolicySettings()), **options)


def test_the_sentence_has_money_verdict_and_the_parts_that_are_known():
    """A clear gain has its estimate; what is open has the ends and what is missing; the state comes before both."""
    worse = reported(made(WORLDS[6], count=4_000, seed=1).log, against="premium").sentence
    assert worse.startswith("Last 7 days: 4,000 questions for $")
    assert " with always premium; routing is worse than always premium: -0." in worse
    assert "; quality worse (0." in worse
    assumed = "assumed: nobody chose what to rate by how good it was (31 % rated); `judge.share` would check it."
    assert worse.endswith(f" % less cost; {assumed}")
    log = made(WORLDS[2], count=1_000, seed=1).log
    found = reported(log, against="premium")
    assert found.total.verdict == "not known yet"
    assert "whether routing is better than always premium is not known yet" in found.sentence
    assert found.total.missing in found.sentence
    assert f"{found.total.quality.second:.3f}" not in found.sentence
    held = Decider("safe start", 0.97, "premium", served="premium")
    held = replace(log, deciders=[*[held] * 29, held._replace(served="basic")])
    assert reported(held).sentence.startswith("safe start: 97 % of the questions still go to premium; routing gets ")
    assert words.report_sentence(replace(found, total=None), now=8 * DAY).startswith(
        "1970-01-01 00:00:00 UTC to 1970-01-08"
    )
    unrated = reported(replace(log, quality=np.full(1_000, np.nan)))
    assert "no answer was rated" in unrated.sentence


def test_the_line_of_a_prompt_has_arms_and_dollars_with_their_interval():
    """The line has shares, signed dollars of all compared questions with both ends and their number, and the verdict;
    what decides comes first, and dollars whose interval contains 0 are not known yet.
    """
    found = reported(made(WORLDS[6], count=4_000, seed=1).log, against="premium")
    cost, shares = found.total.cost, {"cheap": 0.784, "premium": 0.216}
    ends = (f"-${-one * 4_000:.2f}" for one in (cost.estimate, cost.low, cost.high))
    line = "cheap 78 %, premium 22 %; {} ({} to {}) against always premium, n 4,000; reward worse".format(*ends)
    assert prompt_line(found, shares=shares).replace("$-", "-$") == line
    unknown = replace(found.total, cost=replace(cost, low=-0.1, high=0.1), verdict="not known yet")
    held = replace(found, total=unknown, state="safe start: 97 % of the questions still go to premium")
    ending = "dollars against always premium: not known yet, n 4,000; reward not known yet"
    assert prompt_line(held, shares=shares) == f"safe start; cheap 78 %, premium 22 %; {ending}"
    assert prompt_line(replace(found, total=None), shares={}) == "no questions that compare two arms"


def test_a_difference_is_also_said_in_money():
    """Sentence, page and line have the interval in dollars per 1,000 questions if dollars are what is rewarded. With
    another charged cost, or while something else decides, they have none.
    """
    found = reported(made(WORLDS[6], count=4_000, seed=1).log, scope=replace(SCOPE, reward=REWARD), against="premium")
    reward = Difference(estimate=0.01, low=-0.0635, high=0.158)
    total = replace(found.total, reward=reward, verdict="as good")
    found = replace(found, total=total)
    flat_text = "-$6.35 to +$15.80 per 1,000 questions"
    assert found.dollars_per_reward == 0.1
    assert words.report_sentence(found, now=found.until).endswith(
        f"it is worth {flat_text}, a right answer at 10 cents."
    )
    shown = words.report_assessment(found, now=found.until)
    assert (shown.number, shown.interval) == ("-$6.35 to +$15.80", "-0.064 to +0.158 a question")
    ways = "routing minus always premium, a right answer at 10 cents"
    assert shown.about == f"interval of the worth of 1,000 questions, costs subtracted: {ways}"
    better = words.report_assessment(replace(found, total=replace(total, verdict="better")), now=found.until)
    assert (better.number, better.about[:24]) == ("+$1.00", "worth of 1,000 questions")
    assert prompt_line(found, shares={"cheap": 1.0}).endswith(f"; reward as good ({flat_text})")
    for other in (replace(found, dollars_per_reward=None), replace(found, state="budget: 60 % ...")):
        assert flat_text not in words.report_sentence(other, now=found.until)
    assert dollars_of_reward(RewardSettings(weight=10.0, cost={"dollars": 1.0, "steps": 0.1})) is None


def test_the_headline_answers_what_people_ask():
    """One line with a capital says what was saved of what, and whether answers are as good. The verdict has its
    interval, and only better and worse have an estimate as the number.
    """
    found = reported(made(WORLDS[6], count=4_000, seed=1).log, against="premium")
    shown = words.report_assessment(found, now=found.until)
    assert re.fullmatch(r"Saved \$\S+ of \$\S+ \(\d+ %\); answers are worse", shown.headline)
    assert (shown.number, shown.interval[:1]) == (f"{found.total.reward.estimate:+.3f}", "-")
    unknown = replace(found.total, quality_verdict="not known yet", verdict="as good")
    unknown = replace(unknown, reward=replace(unknown.reward, low=-0.03, high=0.02, estimate=0.01))
    shown = words.report_assessment(replace(found, total=unknown), now=found.until)
    assert shown.headline.endswith("; not known yet whether answers are as good")
    assert ">reward as good</span> -0.030 to +0.020" in assessment_page(shown)  # the headline is about quality
    assert (shown.number, shown.interval) == ("-0.030 to +0.020", "-0.030 to +0.020 a question")
    assert template_values(shown)["number_colour"] == ""
    nothing = replace(found, total=None)
    assert "there is nothing to compare yet" in words.report_assessment(nothing, now=found.until).headline


def test_what_is_shown_has_no_point_without_a_verdict():
    """Number, forest, frontier and tables of an open comparison have no estimate; a known one has."""
    found = reported(made(WORLDS[2], count=1_000, seed=1).log, against="premium")
    shown = words.report_assessment(found, now=found.until)
    ends = f"{found.total.reward.low:+.3f} to {found.total.reward.high:+.3f}"
    assert (shown.number, shown.verdict, shown.missing) == (ends, "not known yet", found.total.missing)
    assert "always premium" not in {point.name for point in shown.frontier}
    estimates = [f"{one.estimate:+.3f}" for one in (found.total.reward, found.total.quality)]
    assert not [cell for table in shown.tables for row in table.rows for cell in row if cell.startswith(estimates[0])]
    known = reported(made(WORLDS[6], count=4_000, seed=1).log, against="premium")
    shown = words.report_assessment(known, now=known.until)
    assert shown.number == f"{known.total.reward.estimate:+.3f}"
    assert {"always premium", "what was served"} <= {point.name for point in shown.frontier}


def test_questions_that_could_not_draw_the_arm_are_counted():
    """They are compared by bounds, and their costs are left out; without bounds of rewards they are left out."""
    log = made(WORLDS[6], count=1_000, seed=1).log
    place, offered = log.arms.index("premium"), np.ones(log.pmf.shape, dtype=np.bool_)
    offered[-100:, place] = False
    pmf = log.pmf * np.where((np.arange(1_000) >= 600)[:, None] & (np.arange(3) == place), 0.0, 1.0)
    log = replace(log, pmf=pmf / pmf.sum(axis=1)[:, None], offered=offered)
    log = log.part((pmf[np.arange(1_000), log.arm] > 0.0) | (np.arange(1_000) < 600))
    found = reported(replace(log, limits=(-1.0, 1.0)), against="premium")
    refused = int((~log.offered[:, place]).sum())
    compared, bounded = len(log.arm) - refused, len(log.arm) - refused - 600
    assert (found.total.questions, found.total.bounded) == (compared, bounded)
    assert found.sentence.startswith(f"Last 7 days: {len(log.arm)} questions for $")
    assert "; 600 compared questions that could draw premium: $" in found.sentence
    assert found.left_out == {"premium was not offered": refused}
    assert any(f"{bounded} of these questions offered premium" in note for note in found.notes)
    unbounded = reported(replace(log, limits=None), against="premium")
    assert (unbounded.total.questions, unbounded.total.bounded) == (600, 0)
    assert list(unbounded.left_out.values()) == [refused, bounded]


@pytest.mark.parametrize(("early", "scale", "even"), [(0.2, 1, 2_000), (0.2, 3, 6_000), (0.8, 1, None)])
def test_the_learning_curve(early, scale, even):
    """The curve is the running mean of the scores of a plain loop; only what was behind has a break-even."""
    random, n = np.random.default_rng(1), 4_000
    arm = (random.random(n) < 0.3).astype(np.intp)
    own = np.where(np.arange(n) < 1_000, early, 0.8) + random.normal(0.0, 0.02, n)
    values = np.where(arm == 1, np.where(np.arange(n) % 2, 0.4, 0.6), own)
    known = {"arm": arm[::-1], "quality": values[::-1], "reward": None, "expected_quality": np.full((n, 3), np.nan)}
    log = replace(made(WORLDS[0], count=n, seed=1).log, pmf=np.tile([0.7, 0.3, 0.0], (n, 1)), **known)
    found = reported(log if scale == 1 else replace(log, whole=scale * n), against="standard")
    curve, served, always, means = found.curve, 0.0, 0.0, {}
    mean, weight = values[arm == 1].mean(), 1.0 + 0.7 * n / (arm == 1).sum()
    for row in range(n):
        served += values[row]
        always += mean + (arm[row] == 1) * (values[row] - mean) * weight
        means[scale * (row + 1)] = (served / (row + 1), always / (row + 1))
    assert len(curve.questions) == 60
    assert curve.rated == [questions // scale for questions in curve.questions]
    assert curve.rated[0] == np.flatnonzero(np.cumsum(arm) == 10)[0] + 1
    assert np.stack([curve.policy, curve.fixed], 1) == pytest.approx(np.array([means[at] for at in curve.questions]))
    assert (found.total.verdict, curve.break_even) == ("better", even and pytest.approx(even, rel=0.06))
    assert curve.last == pytest.approx(
        [curve.fixed[-1] + end for end in (found.total.reward.low, found.total.reward.high)]
    )
    assert ("Routing was behind and is ahead" in curve.note) == (even is not None)


def test_a_verdict_has_its_assumption():
    """A verdict with fewer than nine tenths of its questions judged says what it assumes and what checks it, and so
    does the advice; one with more, with drawn judgements only, or that is not known, says nothing of it.
    """
    run = made(WORLDS[6], count=2_000, seed=1)
    rows, random = np.arange(2_000), np.random.default_rng(2).random(2_000)
    served = run.quality[rows, run.log.arm]
    some, most = (replace(run.log, quality=np.where(random < share, served, np.nan)) for share in (0.88, 0.92))
    found = reported(some, against="premium").total
    assert found.verdict == "worse"
    assert found.assumption.startswith("assumed: nobody chose what to rate by how good it was (88 % rated)")
    drawn = replace(some, is_drawn=~np.isnan(some.quality))
    mixed = replace(some, is_drawn=drawn.is_drawn & (rows > 100))
    assert [reported(log, against="premium").total.assumption for log in (most, drawn)] == [None, None]
    assert reported(mixed, against="premium").total.assumption == found.assumption
    assert found.assumption in reported(some, against="premium").sentence
    assert reported(some, against="premium", alarm="uneven").total.assumption is None
    best = np.where(np.isnan(some.quality), np.nan, np.where(some.arm == 1, 0.9, 0.2))
    advice = reported(replace(some, reward=best)).advice
    assert advice.startswith(f"fix: always standard earns as much ({found.assumption}); ")


@pytest.fixture
def equal_arms():
    """A log whose arms are right on half of the questions, and these qualities."""
    log = made(WORLDS[6], count=3_000, seed=1).log
    return replace(log, reward=None), (np.random.default_rng(3).random(3_000) < 0.5).astype(np.float64)


def test_a_verdict_that_retractions_turned_says_so(equal_arms):
    """Retracted ratings are counted by arm and value, and a verdict that would be another with them names them."""
    log, right = equal_arms
    is_premium = log.arm == log.arms.index("premium")
    bad = np.where(is_premium, right > 0.5, right < 0.5)
    retracted = np.where(bad, right, np.nan)
    found = reported(replace(log, quality=np.where(bad, np.nan, right), retracted=retracted), against="premium")
    assert found.total.verdict == "better"
    assert "; retracted ratings turned this verdict: with them it is " in found.total.assumption
    assert found.total.assumption in found.sentence
    assert found.retracted["premium"] == {"good": int((bad & is_premium).sum()), "bad": 0}
    assert sum(sum(one.values()) for one in found.retracted.values()) == bad.sum()
    assert any(f"premium {found.retracted['premium']['good']:,} and 0" in note for note in found.notes)
    waiting = replace(log, quality=np.where(np.arange(3_000) < 2_000, np.nan, right), retracted=retracted)
    assert "turned" not in (reported(waiting, against="premium").total.assumption or "")
    worse = replace(log, quality=np.where(is_premium, 0.9, right), retracted=np.full(3_000, np.nan))
    some = np.random.default_rng(4).random(3_000) < 0.02
    kept = replace(
        worse, quality=np.where(some, np.nan, worse.quality), retracted=np.where(some, worse.quality, np.nan)
    )
    assert reported(kept, against="premium").total.verdict == "worse"
    assert reported(kept, against="premium").total.assumption is None


def test_ratings_and_a_drawn_sample_that_exclude_each_other(equal_arms):
    """If the intervals by ratings and by the judge's sample do not overlap, there is no verdict, number or advice, and
    the reason is what is missing; with fewer than 30 answers of a way in one of them the verdict stays.
    """
    log, right = equal_arms
    is_premium, none = log.arm == log.arms.index("premium"), np.zeros(3_000, dtype=np.bool_)
    chosen = np.where(is_premium, right < 0.5, right > 0.5) | (np.arange(3_000) % 9 == 0)
    drawn = np.random.default_rng(5).random(3_000) < 0.6
    log = replace(log, quality=np.where(chosen, right, np.nan), by_judge=none, score_counts=np.ones(3_000))
    apart = reported(replace(log, score=np.where(drawn, right, np.nan)), against="premium")
    assert (apart.total.verdict, apart.total.quality_verdict) == ("not known yet",) * 2
    assert apart.total.missing.startswith("ratings and the judge's drawn sample that agree: +")
    assert apart.total.missing in apart.sentence
    assert (apart.total.reward.low, apart.curve, apart.to_rate, apart.advice) == (None,) * 4
    assert {one.verdict for one in apart.weeks} <= {"not known yet"}
    few = drawn & (~is_premium | (np.cumsum(drawn & is_premium) < 30))
    alone = reported(replace(log, score=np.where(few, right, np.nan)), against="premium")
    agreed = reported(replace(log, score=np.where(drawn & chosen, right, np.nan)), against="premium")
    assert {one.total.verdict for one in (alone, agreed)} == {"better"}


def test_an_alarm_leaves_no_verdict():
    """Where draws or ratings favour an arm, nothing has a verdict or curve, and the reason is what is missing."""
    found = reported(made(WORLDS[6], count=4_000, seed=1).log, alarm="premium is rated twice as often")
    assert {one.verdict for one in found.arms} == {"not known yet"}
    assert found.total.missing == "premium is rated twice as often"
    assert (found.advice, found.curve) == (None, None)


@pytest.mark.parametrize(
    ("policy", "arm", "why"),
    [
        (PolicySettings(holdback=HoldbackSettings(arm="cheap")), "cheap", "the arm of policy.holdback"),
        (PolicySettings(incumbent="standard"), "standard", "policy.incumbent"),
    ],
)
def test_the_arm_to_compare_with(policy, arm, why):
    """The holdback's, else the incumbent, else the one that is surely the best; another where it is asked."""
    log = made(WORLDS[0], count=400, seed=1).log
    found = reported(log, policy=policy)
    assert (found.total.second, found.why) == (f"always {arm}", why)
    assert reported(log, policy=policy, against="standard").why == "as asked"
    with pytest.raises(NotFound, match="was offered 'premiun'"):
        reported(log, policy=policy, against="premiun")
    best = reported(log)
    assert best.total.reward.high == min(one.reward.high for one in best.arms if one.reward.high is not None)


def test_the_advice_fix():
    """Where what was served earned no more than always the best arm, the advice says which, never of few questions."""
    run = made(WORLDS[0], count=4_000, seed=1)
    rows = np.arange(4_000)
    best = np.where(run.log.arm == 1, 0.9, 0.2)
    log = replace(run.log, reward=best)
    assert reported(log).advice.startswith("fix: always standard earns as much")
    for rewards in (best, run.quality[rows, run.log.arm]):
        assert reported(replace(run.at(250), reward=rewards[-250:])).advice is None
    assert reported(log, alarm="uneven").advice is None
    assert reported(replace(log, deciders=[Decider("budget", 1.0)] * 10)).advice is None


@pytest.mark.parametrize(
    ("facts", "factor", "expected"),
    [
        ({}, None, ("policy", 0.0)),
        ({"rebuilding": True, "incumbent": {"arm": "a", "share": 0.1}}, None, ("rebuilt ledger", 1.0)),
        ({"incumbent": {"arm": "a", "share": 0.25}}, None, ("safe start", 0.75)),
        ({"incumbent": {"arm": "a", "share": 1.0}}, 8.0, ("budget", 1.0)),
        ({"incumbent": "?", "cold_start_floor": "?"}, 1.2, ("policy", 0.0)),
        ({"cold_start_floor": {"a": 0.3, "b": 0.3, "c": None}}, None, ("warm-up", 0.6)),
    ],
)
def test_what_decides_a_question(facts, factor, expected):
    """A rebuilt ledger, a safe start, a raised price and raised floors are read from a decision's facts."""
    assert decider_of(facts, budget_factor=factor)[:2] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("share", "holdback", "pmf", "others"),
    [
        (0.5, None, {"a": 0.6, "b": 0.4}, 0.8),
        (1.0, None, {"a": 0.95, "b": 0.05}, 0.05),
        (0.5, {"arm": "a", "share": 0.2}, {"a": 0.68, "b": 0.32}, 0.8),
        (0.5, {"arm": "b", "share": 0.2}, {"a": 0.48, "b": 0.52}, 0.8),
        (0.01, None, {"a": 1.0, "b": 0.0}, 1.0),  # the draw no longer shows what the policy wanted
    ],
)
def test_what_the_policy_wanted_of_other_arms(share, holdback, pmf, others):
    """The policy's own probability of other arms than the incumbent is computed back from the draw's."""
    facts = {"incumbent": {"arm": "a", "share": share}} | ({} if holdback is None else {"holdback": holdback})
    assert decider_of(facts, budget_factor=None, pmf=pmf).others == pytest.approx(others)


def test_the_state_is_what_decides_most_draws():
    """Half of the draws or less is no state; no state says when it ends."""
    assert state_of([]) is None
    assert state_of([Decider("policy", 0.0), Decider("budget", 1.0)]) is None
    falling = [
        Decider("safe start", 0.6 if row < 100 else 0.8, "deep", served=served)
        for row, served in enumerate(["deep", "fast", "deep", "fast", "deep"] * 40)
    ]
    assert state_of(falling) == (
        "safe start: 60 % of the questions still go to deep; routing gets a verdict when it decides most of them"
    )
    for kind in ("rebuilt ledger", "budget", "warm-up"):
        assert state_of([Decider(kind, 0.8)] * 100).startswith(f"{kind}: ")


def test_a_verdict_on_a_new_arm_is_not_foreseen():
    """On its first 249 questions nobody knows how long a verdict on a new arm takes; then at the rate since it came."""
    made_world = forecasts.made(23, family="against the new arm")
    log = forecasts.log_of(made_world, seed=23).rows

    def total(questions):
        rows = log.part(slice(-(made_world.at + questions), None))
        scope = replace(SCOPE, since=-1.0, until=float(len(rows.arm)))
        return reported(rows, scope=scope, against="third").total

    assert total(249).missing == "not known how long: third is new"
    later = total(250)
    time = about_time((520 - later.rated) * 250.0 / later.rated)
    assert later.missing == f"about 130 to 520 rated questions in all (91 so far), within {time} at today's rate"


def test_shares_are_of_all_questions():
    """Questions of an outage, a limit or callers count too. A safe start that decides a third of all questions is not a
    state, but an outage that decides most of them is. Deciders of a tenth or more are named with a safe start.
    """
    held = [Decider("safe start", 0.96, "large", served="large")] * 35
    outage = [without_draw("the circuit breaker, which left one arm")._replace(served="small")] * 65
    by = "the circuit breaker, which left one arm"
    assert state_of([*outage, *held]) == f"outage: 65 % of the questions are decided by {by}"
    failover = [without_draw("a failover")._replace(served="small")] * 5
    assert state_of([*outage, *failover, *held]) == f"outage: 70 % of the questions are decided by {by}, or a failover"
    named = [without_draw("the caller")._replace(served="small")]
    assert state_of([*named * 65, *held]) is None
    assert state_of([*named * 30, *held * 2]).startswith(
        "safe start: 70 % of the questions still go to large, 30 % are decided by the caller; routing gets a verdict"
    )
    assert state_of([*named * 5, *held * 3]).startswith("safe start: 95 % of the questions still go to large; ")


def test_a_raised_price_decides_before_a_safe_start():
    """A question at a price that a budget has raised was decided by the budget, also if a safe start is on."""
    facts = {"incumbent": {"arm": "large", "share": 0.04}}
    assert decider_of(facts, budget_factor=1_000.0, pmf={"large": 0.5, "small": 0.5}).kind == "budget"
    assert decider_of(facts, budget_factor=1.0, pmf={"large": 0.5, "small": 0.5}).kind == "safe start"


def test_a_safe_start_decides_where_the_policy_prefers_other_arms():
    """Questions that the policy gives to the incumbent anyway neither hide a safe start nor make one."""
    agrees = [Decider("policy", 0.0, others=0.02, served="dear")] * 60
    held = [Decider("safe start", 0.68, "dear", others=0.9, served=served) for served in ("dear", "dear", "cheap")]
    assert state_of([*agrees, *held * 13]).startswith("safe start: 87 % of the questions still go to dear")
    assert state_of([*agrees, *[Decider("safe start", 0.3, "dear", others=0.9)] * 40]) is None
    assert state_of([*agrees, Decider("budget", 1.0)]) is None


def test_what_a_safe_start_gives_to_the_incumbent_is_as_good_as_nothing():
    """While something else than the policy decides, two ways that hardly differ are not called as good: the verdict is
    open, the quality has no word, and little of the evidence is there.
    """
    log = made(WORLDS[2], count=400, seed=1).log
    place = log.arms.index("premium")
    rated = np.where(np.arange(400) < 1, 0.0, np.nan)
    pmf = np.tile([0.0, 0.0, 0.0], (400, 1))
    pmf[:, place] = 1.0
    log = replace(log, arm=np.full(400, place), pmf=pmf, quality=rated, offered=np.ones(pmf.shape, dtype=np.bool_))
    log = replace(log, limits=(-1.0, 1.0), deciders=[Decider("safe start", 1.0, "premium", served="premium")] * 100)
    found = reported(log, against="premium")
    assert found.sentence.startswith("safe start: 100 % of the questions still go to premium")
    assert (found.total.verdict, found.total.quality_verdict, found.total.progress) == ("not known yet",) * 2 + (0.0,)
    assert "as good" not in found.sentence
    shown = words.report_assessment(found, now=found.until)
    assert (shown.number, shown.missing) == ("not known yet", found.total.missing)
    decided = reported(replace(log, deciders=[]), against="premium")
    assert decided.total.verdict == "as good"
    assert "0.000 against" not in decided.sentence


def test_no_verdict_on_the_reward_is_false():
    """The interval of the reward holds the truth in 95 of 100 worlds, and better, worse and as good are never false."""
    held, claims = 0, []
    for number in range(100):
        run = made(WORLDS[(0, 2, 6, 7)[number % 4]], count=(300, 1_000, 4_000)[number % 3], seed=number)
        worth = run.quality - 10.0 * run.dollars
        served = worth[np.arange(len(worth)), run.log.arm]
        log = replace(run.log, reward=np.where(np.isnan(run.log.quality), np.nan, served))
        found = reported(log, scope=replace(SCOPE, reward=REWARD), against="premium")
        reward, truth = found.total.reward, float((served - worth[:, 0]).mean())
        held += reward.low is None or reward.low <= truth <= reward.high
        if found.total.verdict != "not known yet":
            claims.append({"better": truth > 0.0, "worse": truth < 0.0, "as good": truth >= -0.05}[found.total.verdict])
        assert found.price == "a right answer is worth 10 cents"
    assert held >= 95
    assert len(claims) >= 10
    assert all(claims)


def test_the_ratings_that_a_verdict_lacks_are_named():
    """A report without a verdict names how many unrated answers of the compared arm to rate, and these ratings settle
    it; the notes have each arm's share of rated answers.
    """
    run = made(WORLDS[6], count=2_000, seed=1)
    found = reported(run.log, against="premium")
    text = rating_advice(found, options=options_of(found, now=found.until))
    shown = words.report_assessment(found, now=found.until, steps=[text])
    days = math.ceil((found.until - found.since) / 86_400.0)
    assert text == (
        f"rate {found.to_rate} more answers of premium: then it is perhaps known; `ragbandit report --since {days}d "
        "--against premium --rate` puts them on the page Labels"
    )
    assert (found.total.verdict, text in shown.actions) == ("not known yet", True)
    assert [finding.what for finding in findings_of_report(found)] == [text]
    assert any(note.startswith("rated: ") for note in shown.notes)
    premium = run.log.arms.index("premium")
    unrated = np.flatnonzero((run.log.arm == premium) & np.isnan(run.log.quality))
    rated = np.random.default_rng(1).choice(unrated, found.to_rate, replace=False)
    quality = run.log.quality.copy()
    quality[rated] = run.quality[rated, premium]
    after = reported(replace(run.log, quality=quality), against="premium")
    assert (after.total.verdict, after.to_rate) == ("worse", None)
