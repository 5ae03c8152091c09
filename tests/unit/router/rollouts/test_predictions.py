"""Predictions of rewards that rollouts bet with."""

import numpy as np
import pytest

from ragbandit.router.rollouts.evidence import Predictions


def test_a_prediction_knows_earlier_rows_alone():
    """A prediction changes with what earlier rows earned; with the row itself and later ones it does not."""
    rng = np.random.default_rng(6)
    arm, value = rng.integers(0, 2, 40), rng.random(40)
    scores = np.where(rng.random((40, 1)) < 0.2, np.nan, np.full((40, 2), 0.5))
    changed = value.copy()
    changed[20:] = 1.0 - changed[20:]
    first, second = (
        Predictions().before(("one", "two"), arm=arm, value=told, scores=scores) for told in (value, changed)
    )
    assert np.array_equal(first[:21], second[:21])
    assert not np.array_equal(first[21:], second[21:])
    paged = Predictions()
    pages = [
        paged.before(("one", "two"), arm=arm[here], value=value[here], scores=scores[here])
        for here in (slice(0, 3), slice(3, 30), slice(30, 40))
    ]
    assert np.concatenate(pages) == pytest.approx(first)
