"""The rule of evidence: from 10 effective rows on there is an interval; below, one sentence says what lacks."""

import math

import pytest

from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE, SampleSize, asymptotic_width

NO_END = "at this rate it will not be known"


def test_what_lacks_is_said_until_it_is_enough():
    """The sentence has the counts and a forecast that rises with what lacks; enough has none."""
    for effective, shown, forecast in (
        (0.0, "0", NO_END),
        (0.001, "0", NO_END),
        (0.5, "0.5", "tens of thousands more questions at this rate"),
        (5.0, "5", "about 600 more questions at this rate"),
        (9.9999, "9.9", "about 1 more question at this rate"),
        (math.nan, "0", NO_END),
    ):
        tried = SampleSize(draws=2, judged=0, effective=effective, questions=600)
        counts = f"2 draws, 0 rated, {shown} effective rows of 10 needed"
        assert (tried.enough, tried.missing) == (False, f"not tried enough: {counts}; {forecast}"), effective
    enough = SampleSize(draws=20, judged=10, effective=float(FEWEST_EFFECTIVE), questions=600)
    assert (enough.enough, enough.missing) == (True, None)


@pytest.mark.other_processor
def test_the_asymptotic_width_is_the_published_one():
    """For variance 0.25 and alpha 0.05, tightest at 5,000 rows: the values of the paper's formula, computed apart."""
    rows = (100.0, 500.0, 1000.0, 5000.0, 20000.0)
    widths = [0.5 * asymptotic_width(count, alpha=0.05, tightest_at=5000.0) for count in rows]
    assert widths == pytest.approx([0.334719, 0.086202, 0.053188, 0.021462, 0.011056], abs=2e-6)
