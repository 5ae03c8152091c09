"""What the intervals of completed rewards promise, measured: they hold the truth as often as they say."""

import functools
import math
from collections.abc import Mapping

import numpy as np
import pytest

from benchmarks.coverage.methods import worlds
from benchmarks.judged_coverage import HIDDEN, KINDS, WAYS, shares

NAMES = tuple(world.name for world in worlds())
RUNS, ROWS = 40, 2_000
#: the least coverage asked for at 95 %
LEAST = 0.92


@functools.cache
def coverage(way: str, number: int) -> Mapping[str, float]:
    """Share of runs in which each interval holds the truth."""
    (asked,) = [one for one in (*WAYS, HIDDEN) if one.name == way]
    found = shares(number, way=asked, count=ROWS, seeds=range(RUNS))
    return {kind: float(np.mean([holds for holds, _ in runs])) for kind, runs in found.items()}


@pytest.mark.parametrize("way", [way.name for way in WAYS])
@pytest.mark.slow
def test_what_we_print_covers(way):
    """Every interval that is printed holds the truth in .92 of the runs or more, however rows come to be rated."""
    slack = 2.0 * math.sqrt(LEAST * (1.0 - LEAST) / RUNS)
    for number in (0, 2, 4):
        found = coverage(way, number)
        assert all(found[kind] >= LEAST - slack for kind in KINDS), (NAMES[number], found)
        assert found["warned"] <= (1.0 if way == "by score and arm, not told" else 0.1)


def test_the_judge_uncorrected_misses():
    """The same measure finds fault: without the correction by ratings the truth is missed in most runs somewhere."""
    assert coverage(WAYS[0].name, 4)["Cressie-Read, DR, judge uncorrected"] < 0.7


def test_no_log_tells_all():
    """Where being rated hangs on the answer itself the intervals miss, and the warning comes in most runs."""
    found = coverage(HIDDEN.name, 4)
    assert found["Cressie-Read, DR"] < LEAST
    assert found["warned"] > 0.8
