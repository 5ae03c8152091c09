"""The arrays of a log: rewards at a weight, parts, and keys that are the same everywhere."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.logs.log_rows import keys_of
from tests.support.logs.replay_logs import array_log


def made_log(**changes):
    """Four rows over three arms; the last row was not offered the third."""
    log = array_log(
        np.array([[0.5, 0.25, 0.25], [0.2, 0.6, 0.2], [0.1, 0.1, 0.8], [0.4, 0.6, 0.0]]),
        action=[0, 1, 2, 1],
        reward=np.array([0.9, -0.2, 0.0, 1.0]),
        offered=np.array([[True] * 3, [True] * 3, [True] * 3, [True, True, False]]),
        quality=np.array([1.0, 0.0, 0.5, 1.0]),
        cost=np.array([1.0, 2.0, 5.0, 0.0]),
        raw=np.array([False, False, False, True]),
        features=np.arange(8, dtype=np.float32).reshape(4, 2),
        fields={"tenant": np.array(["x", "y", "x", ""], dtype=np.object_)},
    )
    return replace(log, **changes)


def test_weighted():
    """At another cost weight the reward is recomputed from its parts and clipped; a reward without parts stays."""
    heavier = made_log().weighted(0.4)
    assert heavier.reward.tolist() == pytest.approx([0.6, -0.8, -1.5, 1.0])
    assert (heavier.minimum, heavier.maximum) == (pytest.approx(-1.5), 1.0)
    assert replace(made_log(), raw=np.zeros(4, dtype=bool)).weighted(0.0).reward.tolist() == [1.0, 0.0, 0.5, 1.0]
    whole = replace(made_log(), raw=np.ones(4, dtype=bool))
    assert whole.weighted(0.7).reward.tolist() == whole.reward.tolist()
    assert made_log().weighted(0.3).cost.tolist() == made_log().cost.tolist()


def test_keys_are_the_same_everywhere():
    """The keys of two ids are these numbers on every machine and in every version: folds must not move."""
    ids = ["a", "0192f3a0-7c1e-7abc-8def-0123456789ab"]
    assert keys_of(ids).tolist() == [755926807046253159, 5337846032755299709]
