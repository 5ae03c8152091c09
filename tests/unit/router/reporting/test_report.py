"""Verdicts and words of a report."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.report import WORLDS, made
from ragbandit.router.config.settings import HoldbackSettings, PolicySettings, RewardSettings
from ragbandit.router.reporting import words
from ragbandit.router.reporting.estimates import Comparison
from ragbandit.router.reporting.reading import ReportScope
from ragbandit.router.reporting.report import exploration, line_of, report_of
from ragbandit.shared.confidence_sequences import Tried
from ragbandit.shared.errors import NotFound
from ragbandit.shared.formats import counted, money, roughly
from tests.support.cases import every_case

DAY = 86_400.0
SCOPE = ReportScope(label="main", since=0.0, until=7 * DAY)


def comparison(low, high, *, always=1.0, questions=12_480, effective=500.0):
    middle = (low + high) / 2
    tried = Tried(draws=600, judged=500, effective=effective, questions=questions)
    counts = {"draws": 600, "seen": 500, "effective_rows": effective, "missing": tried.missing}
    return Comparison(served=always + middle, always=always, difference=middle, low=low, high=high, **counts)


UNTRIED = replace(comparison(0.0, 0.0, effective=4.0), always=None, difference=None, low=None, high=None)
CHEAPER, SAME, DEARER = (-0.7, -0.6), (-0.01, 0.01), (0.1, 0.2)
BETTER, GOOD, WORSE, OPEN = (0.01, 0.03), (-0.04, 0.02), (-0.09, -0.05), (-0.2, 0.1)


def line(quality, cost, alarm=None):
    given = {"questions": 12_480, "quality": quality, "cost": cost, "unit": "dollars", "days": 7.0, "alarm": alarm}
    return line_of("always premium", "premium", **given)


def test_the_closed_set_of_verdicts():
    """The verdict needs both intervals; if one is open, or labels favour an arm, there is no verdict but a reason."""
    cases = [
        (BETTER, CHEAPER, "better, cheaper"),
        (GOOD, CHEAPER, "as good, cheaper"),
        (GOOD, SAME, "as good, same cost"),
        (BETTER, DEARER, "better, more expensive"),
        (WORSE, CHEAPER, "worse, cheaper"),
        (WORSE, DEARER, "worse, more expensive"),
        (OPEN, CHEAPER, "cannot tell yet"),
        (GOOD, (-0.1, 0.1), "cannot tell yet"),
    ]
    with every_case() as case:
        for quality, cost, expected in cases:
            with case(quality, cost):
                found = line(comparison(*quality), comparison(*cost))
                assert found.verdict == expected
                assert (found.missing is not None) == (expected == "cannot tell yet")
    alarmed = line(comparison(*GOOD), comparison(*CHEAPER), alarm="premium is rated twice as often")
    assert (alarmed.verdict, alarmed.missing) == ("cannot tell yet", "premium is rated twice as often")
    assert line(comparison(*GOOD), comparison(0.0, 0.0, always=0.0)).missing == "cost: none was reported"


def test_what_is_missing_is_a_forecast():
    """Half of the interval has to shrink to what settles it: as the root of the questions, at the pace of the time."""
    missing = line(comparison(-0.15, 0.15), comparison(*CHEAPER)).missing  # half .15 to .05: 9 times as many
    assert missing == "quality: hundreds of thousands more rated questions, 60 d at this rate"
    missing = line(UNTRIED, comparison(*CHEAPER)).missing
    assert missing.startswith("quality: not tried enough: 600 draws, 500 judged")
    missing = line(comparison(-0.0401, 0.4399), comparison(-0.1, 0.1)).missing
    assert "cost: the difference is too small to settle at this rate" in missing


def test_the_sentence():
    """One sentence has the questions, both sums with what was saved, both qualities, and the verdict."""
    cost = comparison(-731 / 12_480, -689 / 12_480, always=1020 / 12_480)
    quality = replace(comparison(-0.012, 0.006, always=0.874), served=0.871)
    log = made(WORLDS[0], count=400, seed=1).log
    found = replace(report_of(log, SCOPE, policy=PolicySettings()), total=line(quality, cost), unit="dollars")
    assert words.sentence(found, now=7 * DAY) == (
        "Last 7 days: 12,480 questions for $310 instead of $1,020 with always premium (saved $710, between $689 and "
        "$731); quality 0.871 against 0.874 (difference -0.003, between -0.012 and +0.006); verdict: as good, 70 % "
        "cheaper."
    )
    worse = line(comparison(-0.09, -0.05), comparison(-0.7, -0.6)).words
    assert worse == "worse by 0.070, 65 % cheaper"
    assert line(comparison(*GOOD), comparison(*SAME)).words == "as good, same cost"
    assert words.sentence(replace(found, total=None), now=8 * DAY).startswith("1970-01-01 00:00:00 UTC to 1970-01-08")


@pytest.mark.parametrize(
    ("policy", "arm", "why"),
    [
        (PolicySettings(holdback=HoldbackSettings(arm="cheap")), "cheap", "the arm of policy.holdback"),
        (PolicySettings(incumbent="standard"), "standard", "policy.incumbent"),
        (PolicySettings(), "premium", "the most expensive arm that is tried enough"),
    ],
)
def test_the_arm_to_compare_with(policy, arm, why):
    """The holdback's, else the incumbent, else the most expensive that can be compared; another where it is asked."""
    log = made(WORLDS[0], count=400, seed=1).log
    found = report_of(log, SCOPE, policy=policy)
    assert (found.total.against, found.why) == (arm, why)
    assert report_of(log, SCOPE, policy=policy, against="standard").why == "as asked"
    with pytest.raises(NotFound, match="was offered 'premiun'"):
        report_of(log, SCOPE, policy=policy, against="premiun")


def test_units_where_no_dollars_are_reported():
    """Steps, or seconds where every answer took the same steps."""
    log = made(WORLDS[0], count=400, seed=1).log
    free = {"dollars": 0.0 * log.costs["dollars"], "steps": 1.0 + log.arm, "seconds": 2.0 + log.arm}
    steps = report_of(replace(log, costs=free), SCOPE, policy=PolicySettings())
    assert (steps.unit, set(steps.costs)) == ("steps", {"steps", "seconds"})
    assert "steps instead of 400 steps with always premium" in words.sentence(
        report_of(replace(log, costs=free), SCOPE, policy=PolicySettings(), against="premium"), now=7 * DAY
    )
    even = replace(log, costs=free | {"steps": 1.0 + 0.0 * log.arm})
    assert report_of(even, SCOPE, policy=PolicySettings()).unit == "seconds"


def test_the_verdict_fix():
    """Where what was served earned no more than always the best arm, a note says which, never of few questions."""
    run = made(WORLDS[0], count=4_000, seed=1)
    rows = np.arange(4_000)
    best = np.where(run.log.arm == 1, 0.9, 0.2)
    for rewards, count, expected in (
        (best, 4_000, True),
        (best, 250, False),
        (run.quality[rows, run.log.arm], 250, False),
    ):
        log = replace(run.log, reward=rewards) if count == 4_000 else replace(run.at(count), reward=rewards[-count:])
        notes = report_of(log, SCOPE, policy=PolicySettings()).notes
        assert ("fix: always standard earns as much; see `ragbandit advise`" in notes) == expected
    alarmed = report_of(replace(run.log, reward=best), SCOPE, policy=PolicySettings(), alarm="uneven")
    assert not any(note.startswith("fix") for note in alarmed.notes)


def test_a_judge_is_named():
    """The note says how many answers the judge scored, and how far it agrees with people."""
    log = made(WORLDS[4], count=8_000, seed=1).log
    both = ~np.isnan(log.quality)
    notes = report_of(log, SCOPE, policy=PolicySettings()).notes
    alike = np.corrcoef(log.quality[both], log.judge[both])[0, 1]
    told = f"the judge's scores of 8,000 answers narrow these intervals; correlation with ratings {alike:.2f}"
    assert told in notes
    assert not any(
        "judge" in note for note in report_of(replace(log, judge=None), SCOPE, policy=PolicySettings()).notes
    )


def test_what_exploration_cost():
    """Against always the likeliest arm of each question; the intervals hold the truth in 18 of 20 runs at least."""
    held = {"quality": 0, "cost": 0}
    for seed in range(20):
        run = made(WORLDS[0], count=1_500, seed=seed)
        rows, likeliest = np.arange(1_500), run.log.pmf.argmax(axis=1)
        for name, found in zip(held, exploration(run.log, unit="dollars"), strict=True):
            known = run.quality if name == "quality" else run.dollars
            truth = float((known[rows, run.log.arm] - known[rows, likeliest]).mean())
            held[name] += found.low <= truth <= found.high
            assert found.high - found.low < (0.4 if name == "quality" else 0.01)
    assert min(held.values()) >= 18


REWARD = RewardSettings(weight=10.0, cost={"dollars": 1.0})


def earning(world, *, seed, count):
    """A report of a made world at a price of 10 cents, and the true reward per question above always premium."""
    run = made(world, count=count, seed=seed)
    worth, rows = run.quality - 10.0 * run.dollars, np.arange(count)
    served = worth[rows, run.log.arm]
    log = replace(run.log, reward=np.where(np.isnan(run.log.quality), np.nan, served))
    scope = replace(SCOPE, reward=REWARD)
    return report_of(log, scope, policy=PolicySettings(), against="premium"), float((served - worth[:, 0]).mean())


def test_an_honest_report_never_claims_earnings_that_routing_did_not_have():
    """The interval of earnings contains the truth in 95 of 100 worlds, and "earned more" or "less" is never false."""
    held, claims = 0, []
    for number in range(100):
        found, truth = earning(WORLDS[(0, 2, 7, 8)[number % 4]], seed=number, count=(300, 1_000, 4_000)[number % 3])
        value, text = found.total.value, found.total.earned
        held += value.low is None or value.low <= truth <= value.high
        if text is not None and text.startswith("routing earned"):
            claims.append((" more than always" in text) == (truth > 0.0))
            assert found.sentence.startswith(f"Last 7 days: a right answer is worth 10 cents; {text}; ")
    assert held >= 95
    assert len(claims) >= 10
    assert all(claims)


def test_earnings_are_told_only_as_far_as_they_are_known():
    """A clear gain leads with its amount, an open one has both ends, and an interval of everything is not known yet."""

    def earned(low, high, **reward):
        value = replace(comparison(low, high), served=0.8)
        price = words.price_of(RewardSettings(**{"weight": 10.0, "cost": {"dollars": 1.0}, **reward}))
        given = {"questions": 1_000, "unit": "dollars", "days": 7.0, "rated": 0.3, "value": value, "price": price}
        one = line_of("always mid", "mid", quality=comparison(-0.3, 0.9), cost=comparison(*DEARER), **given)
        return one.earned, one.words

    clear, verdict = earned(0.8, 1.4)
    assert clear == "routing earned $110 more than always mid, between $80.00 and $140"
    assert verdict.startswith("what the higher cost bought is not known yet; cannot tell yet: quality: ")
    assert "expensive" not in verdict
    assert earned(-0.3, -0.1)[0] == "routing earned $20.00 less than always mid, between $10.00 and $30.00"
    assert earned(-0.2, 0.4)[0] == (
        "whether routing earned more than always mid is open: between $20.00 less and $40.00 more"
    )
    assert earned(-1.0, 1.0)[0].startswith("what routing earned against always mid is not known yet: ")
    assert "100 steps more" in earned(0.05, 0.15, cost={"steps": 0.1, "dollars": 0.0}, weight=10.0)[0]
    assert "10 units of cost more" in earned(0.05, 0.15, cost={"steps": 1.0, "dollars": 1.0})[0]
    assert "100 right answers more" in earned(0.05, 0.15, weight=0.0)[0]


def test_rests_of_rounding_and_single_counts():
    """A difference below a billionth of the means is nothing, one is singular, and large forecasts are magnitudes."""
    log = made(WORLDS[0], count=400, seed=1).log
    even = replace(
        log, costs={"dollars": 0.0 * log.made_at, "steps": 0.1 + 0.2 * np.ones(400), "seconds": 0.0 * log.made_at}
    )
    found = report_of(even, SCOPE, policy=PolicySettings(), against="premium")
    assert found.total.cost.difference == 0.0
    assert "saved 0 steps, " in found.sentence
    assert (money(1.0, "steps"), money(0.0, "dollars")) == ("1 step", "$0")
    assert [roughly(count) for count in (0.2, 1_250, 36_966, 98_000, 4e5, 7e8)] == [
        "about 1", "about 1,000", "tens of thousands", "hundreds of thousands", "hundreds of thousands", "millions"
    ]  # fmt: skip
    assert (counted(1, "question"), counted(1_200, "question")) == ("1 question", "1,200 questions")
