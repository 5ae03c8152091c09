"""Every place that prints an interval keeps its promise on a few made lives of each kind, or prints none."""

import pytest

from benchmarks.coverage.lives import KINDS
from benchmarks.coverage.places import PLACES, Line, Look, Tally, tallies
from tests.support.cases import every_case

#: lives of every kind in a run of the tests, and in a run of the slow tests; the published table has more
FEW, MANY = 1, 40
#: other numbers of lives, by place: a life of "report" has 20 reports
RUNS = {("replay", FEW): 2, ("warm", FEW): 8, ("report", MANY): 20}


@pytest.mark.parametrize("runs", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("place", PLACES)
def test_what_is_printed_holds(place, runs):
    """In every kind of life, at one look or at every look as the line promises."""
    printed, lives = 0, RUNS.get((place, runs), runs)
    with every_case() as case:
        for kind in KINDS:
            for line, tally in tallies(place, kind=kind, seeds=range(lives)).items():
                printed += tally.printed
                with case(kind, line.name):
                    assert tally.keeps(line)
    assert printed > 0


def test_an_arm_that_was_hardly_tried_has_no_interval():
    """A shadow that likes arms which were hardly drawn is not judged, nor is replay's rarest arm by segment."""
    for place, name in (("rollouts", "difference in reward"), ("replay", "segment, always the rarest")):
        found = {line.name: tally for line, tally in tallies(place, kind="untried", seeds=range(3)).items()}
        assert (found[name].ever, found[name].looks > 0) == (0, True)


def test_ratings_that_follow_the_arm_leave_no_interval():
    """Where some arms are rated five times as often as others, replay says that the log is wrong, and no more."""
    assert all(tally.ever == 0 for tally in tallies("replay", kind="rated by arm", seeds=range(3)).values())


def test_the_tally_finds_fault():
    """An interval that misses counts, at the last look or at any, as promised; one that is missing does not."""
    good, bad, none = (Look(truth=0.5, low=low, high=high) for low, high in ((0.4, 0.6), (0.6, 0.7), (None, None)))
    always, once = (Line(name="made", confidence=0.9, every_look=every) for every in (True, False))
    assert Tally.of([bad, good], every_look=True) == Tally(looks=1, printed=1, covered=1, ever=1, always=0)
    assert Tally.of([bad, none], every_look=False) == Tally(looks=2, printed=1, covered=0, ever=1, always=0)
    assert not Tally(looks=20, printed=20, covered=20, ever=20, always=13).keeps(always)
    assert Tally(looks=20, printed=20, covered=20, ever=20, always=13).keeps(once)
    assert not Tally(looks=20, printed=20, covered=13, ever=20, always=13).keeps(once)
