"""What the intervals promise, measured: they hold the truth as often as they say, in worlds made to break them."""

import functools
import math
from collections.abc import Mapping

import numpy as np
import pytest

from tests.support.interval_worlds import PRINTED, shares, worlds

NAMES = tuple(world.name for world in worlds())
#: runs by number of rows: the long ones cost most and miss least
RUNS = {500: 100, 2_000: 40, 10_000: 20}
FEW = (500, 2_000)
#: the least coverage asked for at 95 %
LEAST = 0.93


def error(share: float, runs: int) -> float:
    """Two standard errors of a share."""
    return 2.0 * math.sqrt(share * (1.0 - share) / runs)


@functools.cache
def coverage(name: str, count: int) -> Mapping[str, float]:
    """Share of runs in which each interval holds the truth."""
    results = shares(NAMES.index(name), count=count, seeds=range(RUNS[count]))
    return {kind: float(np.mean([holds for holds, _ in runs])) for kind, runs in results.items()}


@pytest.mark.parametrize("count", [*FEW, pytest.param(10_000, marks=pytest.mark.slow)])
def test_what_we_print_covers(count):
    """Every interval that is printed holds the truth in .93 of the runs or more, from 500 rows on, in every world."""
    least = LEAST - error(LEAST, RUNS[count])
    measured = {(name, kind): coverage(name, count)[kind] for name in NAMES for kind in PRINTED}
    assert not {place: share for place, share in measured.items() if share < least}


def test_not_by_being_endless():
    """Where nothing is hard, the fixed intervals miss as well: they hold the truth in .99 of the runs at most."""
    for count in FEW:
        measured = coverage("benign", count)
        for kind in PRINTED:
            assert measured[kind] <= 0.99 + error(0.99, RUNS[count]), kind


def test_the_usual_intervals_miss():
    """The same measure finds fault: the delta method on 500 skewed rows and the normal one on rare successes miss."""
    assert coverage("skewed", 500)["delta method, SNIPS"] < LEAST - error(LEAST, RUNS[500])
    assert coverage("rare", 2_000)["normal, DR"] < LEAST - error(LEAST, RUNS[2_000])
