"""Charts of pages: which points they have, and what their axes hold."""

from ragbandit.router.api.ui.charts import around_zero, earned_charts, sequence_of
from ragbandit.router.serving.overview import Overview, Point
from ragbandit.router.storage.totals.traffic import Progress
from ragbandit.shared.types import ArmTotals, PolicyLabel


def found(decided: list[int]) -> Overview:
    points = [Point(at=3600.0 * n, totals=ArmTotals(decided=count), arms={}) for n, count in enumerate(decided)]
    told = {
        "policy": PolicyLabel("main"),
        "totals": ArmTotals(),
        "arms": (),
        "progress": Progress(decided_to=None, behind_s=0.0, updates_behind=0),
    }
    return Overview(since=0.0, until=3600.0 * len(decided), step=3600, points=tuple(points), **told)


def test_lines_begin_where_there_is_something():
    """Empty steps before the first decision are left out, those between are not; one step alone is no line."""
    chart = earned_charts(found([0, 0, 5, 0, 2]))[2]
    assert chart.times == (7200.0, 10_800.0, 14_400.0)
    assert chart.lines[0].values == (5.0, 0.0, 2.0)
    assert chart.in_words == "Decisions. Newest: decisions 2"
    for nothing in ([], [0, 0], [0, 7]):
        assert all(chart.empty for chart in earned_charts(found(nothing)))


def test_one_wide_interval_leaves_room_for_the_others():
    """An axis holds zero, all middles, and what is near the narrowest in size; a far wider one runs beyond it."""
    low, high = around_zero([(0.1, 0.15, 0.2), (0.15, 0.3, 0.4)])
    assert low < 0.0 < 0.4 < high < 0.5
    assert around_zero([(0.1, 0.15, 0.2), (-3.0, 0.5, 4.0)])[1] < 0.6
    assert around_zero([]) == (-0.1, 0.1)
    assert around_zero([(0.2, 0.2, 0.2)])[1] >= 0.2


def test_the_first_intervals_of_a_sequence_do_not_set_its_scale():
    """The picture's scale is that of the last interval; what is far wider ends at the edge."""
    points = [[10 * n, 0.0, -2.0 if n < 5 else -0.1, 2.0 if n < 5 else 0.1] for n in range(1, 11)]
    picture = sequence_of(points)
    assert max(float(label) for _, label in picture.across) <= 0.1
    assert all(0.0 <= float(pair.split(",")[1]) <= picture.height for pair in picture.band.split())
