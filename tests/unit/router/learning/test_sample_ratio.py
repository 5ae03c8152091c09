"""Sample ratios: few clean logs alarm at any look, a side that is favoured is noticed, and the sentence says which."""

import numpy as np

from ragbandit.router.learning.monitoring.sample_ratio import first_uneven_stage
from ragbandit.shared.types import ArmTotals
from tests.support.cases import every_case
from tests.support.sample_ratio import FAULTS, first_alarms


def test_clean_logs_rarely_alarm_and_faulty_ones_do():
    """At most 5 % of 400 clean worlds alarm within 200 looks at alpha .05; rating 9 % instead of 61 % is detected."""
    small = {"worlds": 400, "rows": 2_000, "rare": 0.3}
    assert np.isfinite(first_alarms(lost=FAULTS["none"], alpha=0.05, **small)).mean() <= 0.05
    small["worlds"] = 40
    seen = first_alarms(lost=FAULTS["its answers are rated 9 % instead of 61 %"], alpha=0.001, **small)
    assert np.isfinite(seen).all()


def totals(*, p, decided=20_000, drawn=1.0, ended=1.0, rated=0.3):
    """Totals of two arms without random error; the first arm has only these shares of its expected rows."""
    counts = {"drawn": decided * drawn, "ended": decided * drawn * ended, "judged": decided * drawn * ended * rated}
    base = {"drawn": decided, "ended": decided, "judged": decided * 0.3}
    arms = {}
    for name, own in (("cheap", True), ("premium", False)):
        q, mine = (p, counts) if own else (1.0 - p, base)
        told = {"decided": "drawn", "answered": "ended", "learned": "judged"}
        sums = {name_of: round(q * mine[stage]) for name_of, stage in told.items()}
        for stage in base:
            rows = p * counts[stage] + (1.0 - p) * base[stage]
            sums[f"{stage}_excess"] = q * (mine[stage] - rows)
            sums[f"{stage}_spread"] = rows * p * (1.0 - p)
        arms[name] = ArmTotals(**sums)
    return arms


def test_the_sentence_says_which_side_is_favoured_and_by_how_much():
    """The first uneven stage is reported; small differences of outcomes and ratings are not."""
    cases = {
        "even": (totals(p=0.3), None),
        "nothing": ({}, None),
        "of before": (
            {"cheap": ArmTotals(decided=500, learned=3), "premium": ArmTotals(decided=500, learned=400)},
            None,
        ),
        "named": (
            {
                "cheap": ArmTotals(named_excess=-50.0, named_spread=20.0),
                "dear": ArmTotals(named_excess=50.0, named_spread=20.0),
            },
            "under ids that callers named, arm dear was drawn more often and cheap less often than",
        ),
        "lost": (
            totals(p=0.5, drawn=0.9),
            "arm cheap was drawn 9,000 times where the logged probabilities promise 9,500",
        ),
        "outcomes": (totals(p=0.3, ended=0.6), "arm premium has 100 % of its draws with an outcome and cheap 60 %"),
        "ratings": (
            totals(p=0.5, rated=0.09),
            "arm premium has 30 % of its answers rated and cheap 9 %: comparisons of",
        ),
        "favoured": (totals(p=0.02, rated=0.9), "arm cheap has 90 % of its answers rated and premium 30 %"),
        "small": (totals(p=0.5, decided=10**7, rated=0.29), None),
    }
    with every_case() as case:
        for name, (arms, told) in cases.items():
            with case(name):
                one = first_uneven_stage(arms)
                assert (one and one.sentence.startswith(told)) if told else one is None
