"""Percentiles of latencies lie within what was observed, however totals are added up, and by whatever version."""

import json

import pytest
from hypothesis import given, strategies as st

from ragbandit.router.storage.totals import Deltas, totals_value
from ragbandit.shared.types import ArmTotals, sum_totals

KEY = ("main", 0, "a")
SHARES = (0.0, 0.01, 0.5, 0.95, 0.99, 1.0)


def row(latencies) -> dict[str, object]:
    """Stored totals of outcomes with these durations."""
    deltas = Deltas()
    for seconds in latencies:
        deltas.add_duration(KEY, seconds)
    return deltas[KEY]


def totals(latencies) -> ArmTotals:
    return totals_value(json.dumps(row(latencies)))


@given(st.lists(st.lists(st.floats(0.001, 500.0), min_size=1, max_size=20), min_size=1, max_size=4))
def test_no_percentile_lies_outside_what_was_observed(parts):
    """Percentiles of any hours rise from the smallest to the largest value, added in the store or when read."""
    stored = Deltas()
    for part in parts:
        stored.add(KEY, **row(part))
    everything = [seconds for part in parts for seconds in part]
    for one in (sum_totals(map(totals, parts)), totals_value(json.dumps(stored[KEY]))):
        found = [one.latency_at(share) for share in SHARES]
        assert found == sorted(found)
        assert min(everything) <= found[0]
        assert found[-1] <= max(everything)
        assert found[-1] == pytest.approx(max(everything))


def test_latencies_come_from_buckets():
    """Within a bucket they rise evenly, between the least and the largest that were observed; none give none."""
    assert ArmTotals().latency_at(0.5) is None
    filled = ArmTotals(latency=(0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0), fastest=0.25, slowest=0.5)
    assert filled.latency_at(0.5) == pytest.approx(0.375)
    assert ArmTotals(latency=(0,) * 12 + (3,), fastest=121.0, slowest=180.0).latency_at(1.0) == 180.0
