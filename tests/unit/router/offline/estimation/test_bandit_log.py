"""The arrays of a log: what cannot be true is named by its row, and the folds are fair."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ragbandit.shared.errors import InvalidInput
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


def changed(name, row, value):
    """That log with one row of one array changed."""
    values = getattr(made_log(), name).copy()
    values[row] = value
    return made_log(**{name: values})


def test_true_log_has_no_fault():
    """A log that can be true passes, and its propensities are those of the drawn arms."""
    made_log().check(named=str)
    assert made_log().propensity.tolist() == [0.5, 0.6, 0.8, 0.6]
    assert len(made_log()) == 4


@pytest.mark.parametrize(
    ("name", "row", "value", "field", "said"),
    [
        ("pmf", 1, [0.6, 0.6, -0.2], "pmf", "is no distribution"),
        ("pmf", 1, [0.0, 1.5, -0.5], "pmf", "is no distribution"),
        ("pmf", 1, [np.nan, 0.5, 0.5], "pmf", "is no distribution"),
        ("pmf", 2, [0.1, 0.1, 0.7], "pmf", "it sums to 0.9"),
        ("pmf", 3, [0.2, 0.6, 0.2], "pmf", "not offered"),
        ("action", 0, 3, "arm", "not among the arms"),
        ("action", 0, -1, "arm", "not among the arms"),
        ("pmf", 0, [0.0, 0.5, 0.5], "propensity", "is 0"),
        ("pmf", 0, [1e-160, 0.5, 0.5], "propensity", "is 1e-160"),
        ("quality", 2, np.nan, "quality", "is nan"),
        ("cost", 2, np.inf, "cost", "is inf"),
        ("made_at", 3, -np.inf, "made_at", "is -inf"),
        ("reward", 1, np.nan, "reward", "is nan"),
        ("reward", 1, 1.1, "reward", r"1.1 lies outside \[-1, 1\]"),
        ("reward", 1, -1.1, "reward", r"-1.1 lies outside \[-1, 1\]"),
        ("features", 0, [np.nan, 0.0], "features", "not finite"),
    ],
)
def test_fault_is_named_with_its_row(name, row, value, field, said):
    """Whatever cannot be true is refused with the row as it is named, the field, the reason and a remedy."""
    log = changed(name, row, value)
    with pytest.raises(InvalidInput, match=said) as caught:
        log.check(named=lambda row: f"row {101 + row}")
    assert caught.value.field == f"row {101 + row} {field}"
    assert caught.value.remedy


def test_weighted():
    """At another cost weight the reward is recomputed from its parts and clipped; a reward without parts stays."""
    heavier = made_log().weighted(0.4)
    assert heavier.reward.tolist() == pytest.approx([0.6, -0.8, -1.5, 1.0])
    assert (heavier.minimum, heavier.maximum) == (pytest.approx(-1.5), 1.0)
    assert replace(made_log(), raw=np.zeros(4, dtype=bool)).weighted(0.0).reward.tolist() == [1.0, 0.0, 0.5, 1.0]
    whole = replace(made_log(), raw=np.ones(4, dtype=bool))
    assert whole.weighted(0.7).reward.tolist() == whole.reward.tolist()
    assert made_log().weighted(0.3).cost.tolist() == made_log().cost.tolist()


@pytest.mark.parametrize("rows", [np.array([2, 0]), np.array([True, False, True, False])])
def test_part(rows):
    """A part has those rows of every array, features and fields too, in the order given."""
    log, cut = made_log(), made_log().part(rows)
    for name in ("keys", "action", "reward", "quality", "cost", "raw", "defaulted", "late", "made_at"):
        assert getattr(cut, name).tolist() == getattr(log, name)[rows].tolist(), name
    for name in ("pmf", "offered", "features"):
        assert np.array_equal(getattr(cut, name), getattr(log, name)[rows]), name
    assert cut.fields["tenant"].tolist() == log.fields["tenant"][rows].tolist()
    assert (len(cut), cut.arms, cut.minimum, cut.maximum) == (2, log.arms, -1.0, 1.0)
    assert replace(log, features=None).part(rows).features is None


def test_keys_are_the_same_everywhere():
    """The keys of two ids are these numbers on every machine and in every version: folds must not move."""
    ids = ["a", "0192f3a0-7c1e-7abc-8def-0123456789ab"]
    assert keys_of(ids).tolist() == [755926807046253159, 5337846032755299709]


@given(st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_keys_do_not_know_the_other_rows(ids, chance):
    """The key of a row depends only on its id, not on the order or the other rows."""
    alone = {name: keys_of([name])[0] for name in ids}
    shuffled = chance.sample(ids, len(ids))
    assert keys_of(shuffled).tolist() == [alone[name] for name in shuffled]
