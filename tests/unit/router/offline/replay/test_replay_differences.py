"""What a replay says of differences: against the log, pairwise, by segment, with holes, and at every look."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.support.logs.log_rows import with_extra
from tests.support.logs.replay_logs import ARMS, judged, lived_rows, rows_from, with_text

# ---------------------------------------------------------------------------------------------------------- comparisons


# ---------------------------------------------------------------------------------------------------- segments and time


def test_logged_probabilities_are_the_same_policy():
    """A candidate with the probabilities of what it is compared with, in every row, differs by nothing at all."""
    even = lived_rows(60, pmf=(1 / 3,) * 3)
    same, other = judged(even, "uniform", "fixed:deep").candidates
    reward = same.comparison.reward
    assert (same.same_policy, reward.low, reward.high) == (True, 0.0, 0.0)
    assert not other.same_policy
    rows = with_extra(even, "mine", [[0.0, 1.0, 0.0]] * 60)
    beside = judged(rows, "fixed:deep", "column:mine", baseline="fixed:deep").candidates[1]
    assert beside.same_policy


@pytest.mark.parametrize("field", ["device", "number", "version"])
def test_segments_sum_to_the_whole(field):
    """A field's segments, the small ones together as others, have all rows, and their values average to the whole."""
    rows = [with_text(row, f"question {number}") for number, row in enumerate(lived_rows(300))]
    (replayed,) = judged(rows, "fixed:deep", segments=(field,)).candidates
    segments = replayed.segments[field]
    assert len(segments) == {"device": 2, "number": 12, "version": 3}[field]
    assert sum(one.questions for one in segments.values()) == 300
    for part in ("first", "estimate"):
        total = sum(one.questions * getattr(one.reward, part) for one in segments.values())
        assert total / 300 == pytest.approx(getattr(replayed.comparison.reward, part))
    if field == "number":  # 20 questions of a number have too few effective rows, mostly
        unknown = [one for one in segments.values() if not one.reward.is_known]
        assert (len(unknown) >= 9, [*segments][-1]) == (True, "others")
        assert max(one.reward.effective_rows for one in unknown) < 10.0


# ----------------------------------------------------------------------------------------------------- holes and faults


@cache
def holed_rows(count, *, seed, hidden):
    """Every other row cannot draw slow, whose reward there would be `hidden`; elsewhere each arm is worth a half."""
    random = np.random.default_rng(seed)
    records, truth = [], []
    for number in range(count):
        pmf = [0.5, 0.5, 0.0] if number % 2 else [0.4, 0.3, 0.3]
        drawn = int(random.choice(3, p=pmf))
        records.append({"arms": list(ARMS), "pmf": pmf, "arm": ARMS[drawn], "reward": float(random.random() < 0.5)})
        truth.append(hidden if number % 2 else 0.5)
    return rows_from(records), float(np.mean(truth))


def test_hole_is_named_and_bounded():
    """What the log never tried is named by its arm, and the value stands with bounds that hold at the very worst."""
    inside = 0
    for seed in range(6):
        hidden = -1.0 if seed % 2 else 1.0
        rows, truth = holed_rows(200, seed=seed, hidden=hidden)
        (replayed,) = judged(rows, "fixed:slow").candidates
        assert replayed.unsupported == {"slow": 0.5}
        assert replayed.bounds == (replayed.reward.low, replayed.reward.high)
        low, high = replayed.bounds
        assert -1.0 <= low <= replayed.reward.estimate <= high <= 1.0
        assert replayed.reward.estimate == pytest.approx(0.25, abs=0.15), "what was never tried counts as the middle, 0"
        assert 1.0 < replayed.comparison.reward.high - replayed.comparison.reward.low < 1.5
        inside += low <= truth <= high
    assert inside == 6
    assert judged(rows, "fixed:deep").candidates[0].bounds is None


@pytest.mark.parametrize("candidate", ["uniform", "fixed:fast"])
def test_wrong_propensities_are_found(candidate):
    """A log whose pmfs are not those that drew is called wrong, by its arms; the same log with the true ones is not."""
    rows = lived_rows(600)
    assert judged(rows, candidate).faults == ()
    wrong = [replace(row, decision=relabelled(row.decision)) for row in rows]
    replayed = judged(wrong, candidate)
    assert any(fault.startswith("fast has") for fault in replayed.faults)
    assert not replayed.arms[0].plausible


def relabelled(decision):
    """With the probabilities of the first and the last arm exchanged."""
    pmf = decision.pmf[::-1]
    return replace(decision, pmf=pmf, propensity=pmf[decision.arms.index(decision.arm)])


# ------------------------------------------------------------------------------------------------ forecasts
