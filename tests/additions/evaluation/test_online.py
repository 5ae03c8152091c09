"""Measures of online routers: reward, regret and quality per dollar of passes, against numbers computed by hand."""

from dataclasses import replace

import numpy as np
import pytest

from ragbandit.additions.evaluation.routers.online import online_rows
from ragbandit.additions.evaluation.routers.play import PolicyPlay
from ragbandit.additions.evaluation.routers.report import routers_assessment
from ragbandit.additions.evaluation.routers.routing_table import RoutingTable
from ragbandit.additions.evaluation.routers.rows import Estimate, baseline_rows
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.logs.tables import LabelledTable
from ragbandit.router.offline.passes import table_rows
from ragbandit.shared.types import TableRow

ARMS = ("small", "large")
#: question -> quality and dollars of both arms; rewards at weight 0.5 are (1, .75), (0, .5), (.5, .25), (0, -.5)
QUALITY = ((1, 1), (0, 1), (0.5, 0.5), (0, 0))
DOLLARS = ((0.0, 0.5), (0.0, 1.0), (0.0, 0.5), (0.0, 1.0))


@pytest.fixture
def outcomes():
    def by_arm(values):
        return dict(zip(ARMS, values, strict=True))

    rows = [
        TableRow(id=f"q{n}", question=f"q {n}?", correct=by_arm(q), steps={}, costs={"dollars": by_arm(d)})
        for n, (q, d) in enumerate(zip(QUALITY, DOLLARS, strict=True))
    ]
    table = LabelledTable(rows=tuple(rows), arms=ARMS)
    settings = Settings(reward={"weight": 0.5, "cost": {"dollars": 1.0}})
    logged = table_rows(table, features=None, encoder_hash="", reward=settings.reward, label=settings.policy.label)
    return RoutingTable(table=table, measure="correct", rows=logged)


def play(order, drawn):
    nothing = np.empty(0, dtype=np.intp)
    return PolicyPlay(
        test=nothing, shares=np.empty((0, 2)), order=np.array(order), drawn=np.array(drawn), seconds=0.0, fault=None
    )


def test_no_minus_zero(outcomes):
    """A lead and a regret that are rounded to zero, and a gain of nothing, are printed without a minus."""
    nothing = Estimate(mean=-1e-15, error=1e-15)
    online = [
        replace(row, above_best=nothing, regret=nothing)
        for row in online_rows({"mba": {0: [play([0, 1], [0, 0])]}}, outcomes=outcomes)
    ]
    shown = routers_assessment(
        [*baseline_rows(outcomes, at=None)], outcomes=outcomes, online=online, notes=(), full=True
    )
    cells = {cell for row in shown.tables[0].rows for cell in row}
    assert {"+0.0 ± 0.0", "0.0 ± 0.0"} <= cells
    assert not [cell for cell in cells if "-0.0" in cell]


def test_sums_of_a_pass(outcomes):
    """Reward, lead over always the best arm, regret against each question's best arm, and quality per dollar are sums
    over the pass; their errors are over the orders.
    """
    plays = {"mba": {0: [play([0, 1, 2, 3], [0, 1, 1, 0])], 1: [play([3, 2, 1, 0], [1, 1, 1, 1])]}}
    mba, small, large = online_rows(plays, outcomes=outcomes)
    assert (mba.name, mba.kind, mba.questions) == ("mba", "pass", 4)
    assert (mba.reward.mean, mba.reward.error) == pytest.approx((1.375, 0.375))
    assert mba.above_best.mean == pytest.approx(1.375 - 1.5)
    assert mba.regret.mean == pytest.approx((0.25 + 1.0) / 2)
    assert mba.quality_per_dollar.mean == pytest.approx((2.5 / 1.5 + 2.5 / 3.0) / 2)
    assert [row.name for row in (small, large)] == ["small", "large"]
    assert (small.reward.mean, small.above_best.mean, small.regret.mean) == pytest.approx((1.5, 0.0, 0.5))
    assert small.quality_per_dollar is None
    assert (large.reward.mean, large.regret.mean) == pytest.approx((1.0, 1.0))
    assert large.quality_per_dollar.mean == pytest.approx(2.5 / 3.0)


def test_the_curve_of_a_pass(outcomes):
    """A curve has the mean reward and the summed regret after each number of questions, and those of the best arm."""
    [mba, *_] = online_rows({"mba": {0: [play([0, 1, 2, 3], [0, 1, 1, 0])]}}, outcomes=outcomes)
    curve = mba.curve
    assert curve.questions == (1, 2, 3, 4)
    assert curve.reward == pytest.approx((1.0, 1.5 / 2, 1.75 / 3, 1.75 / 4))
    assert curve.fixed == pytest.approx((1.0, 1.0 / 2, 1.5 / 3, 1.5 / 4))
    assert curve.regret == pytest.approx((0.0, 0.0, 0.25, 0.25))
    assert curve.fixed_regret == pytest.approx((0.0, 0.5, 0.5, 0.5))
    assert mba.break_even == 1


def test_a_policy_without_a_pass_has_no_online_measures(outcomes):
    """Classifiers, which learn nothing in a pass, have no such row, and alone no table."""
    assert online_rows({"multi_label": {0: [play([], [])]}}, outcomes=outcomes) == ()


def test_rows_have_regret_and_quality_per_dollar(outcomes):
    """Every way of answering has a mean regret; the oracle has none here, and the free arm no quality per dollar."""
    rows = {row.name: row for row in baseline_rows(outcomes, at=None)}
    assert rows["large"].all["regret"].mean == pytest.approx(0.25)
    assert rows["large"].quality_per_dollar.mean == pytest.approx(2.5 / 3.0)
    assert rows["small"].quality_per_dollar is None
    assert rows["oracle"].all["regret"].mean == pytest.approx(0.0)
