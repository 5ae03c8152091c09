"""Charts of pages: which points they have, and what their axes hold."""

from ragbandit.router.api.ui.charts import around_zero


def test_one_wide_interval_leaves_room_for_the_others():
    """An axis holds zero, all middles, and what is near the narrowest in size; a far wider one runs beyond it."""
    low, high = around_zero([(0.1, 0.15, 0.2), (0.15, 0.3, 0.4)])
    assert low < 0.0 < 0.4 < high < 0.5
    assert around_zero([(0.1, 0.15, 0.2), (-3.0, 0.5, 4.0)])[1] < 0.6
    assert around_zero([]) == (-0.1, 0.1)
    assert around_zero([(0.2, 0.2, 0.2)])[1] >= 0.2
