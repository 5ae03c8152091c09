"""The rule of evidence: from 10 effective rows on there is an interval; below, one sentence says what lacks."""

import math

from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE, Tried

NEEDED = "10 effective rows needed"
NO_END = f"{NEEDED}, at this rate it will not be known"


def test_what_lacks_is_said_until_it_is_enough():
    """The sentence has the counts and a forecast that rises with what lacks; enough has none."""
    for effective, forecast in (
        (0.0, NO_END),
        (0.001, NO_END),
        (0.5, f"{NEEDED}, tens of thousands more questions at this rate"),
        (5.0, f"{NEEDED}, about 600 more questions at this rate"),
        (9.9999, f"{NEEDED}, about 1 more question at this rate"),
        (math.nan, NO_END),
    ):
        tried = Tried(draws=2, judged=0, effective=effective, questions=600)
        assert (tried.enough, tried.missing) == (False, f"not tried enough: 2 draws, 0 judged; {forecast}"), effective
    enough = Tried(draws=20, judged=10, effective=float(FEWEST_EFFECTIVE), questions=600)
    assert (enough.enough, enough.missing) == (True, None)
    longer = Tried(draws=1, judged=1, effective=10.0, questions=100, needed=50)
    assert longer.missing == (
        "not tried enough: 1 draw, 1 judged; 50 effective rows needed, about 400 more questions at this rate"
    )
