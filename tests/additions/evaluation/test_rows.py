"""Rows of routers: means, standard errors, mixture, labels and totals, against numbers computed by hand."""

import math

import numpy as np
import pytest

from ragbandit.additions.evaluation.routers.play import PolicyPlay
from ragbandit.additions.evaluation.routers.routing_table import (
    RoutingTable,
    check_has_charged_cost,
    mixture_shares,
    question_totals,
)
from ragbandit.additions.evaluation.routers.rows import Shares, baseline_rows, row_of, rows_of_policy
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.labels import NONE_RIGHT
from ragbandit.router.offline.logs.tables import LabelledTable, with_hops, with_measure
from ragbandit.router.offline.passes import table_rows
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import TableRow

ARMS = ("none", "one", "many")
#: question -> (data set, exact match, F1, steps and seconds of each arm)
ROWS = (
    ("nq", (1, 1, 1), (1.0, 1.0, 1.0), (0, 1, 3), (1.0, 2.0, 6.0)),
    ("nq", (0, 1, 1), (0.2, 1.0, 1.0), (0, 1, 5), (1.0, 4.0, 8.0)),
    ("hotpot", (0, 0, 1), (0.0, 0.5, 1.0), (0, 1, 4), (1.0, 3.0, 9.0)),
    ("hotpot", (0, 0, 0), (0.0, 0.4, 0.4), (0, 1, 2), (1.0, 3.0, 7.0)),
    ("hotpot", (0, 1, 0), (0.0, 1.0, 0.1), (0, 1, 4), (1.0, 3.0, 9.0)),
)


def table_of(rows=ROWS, **fields):
    by_arm = [dict(zip(ARMS, values, strict=True)) for row in rows for values in row[1:]]
    quadruples = [by_arm[start : start + 4] for start in range(0, len(by_arm), 4)]
    made = [
        TableRow(
            id=f"q{place}",
            question=f"question {place}",
            correct=f1,
            steps=steps,
            seconds=seconds,
            dataset=row[0],
            measures={"exact_match": exact, "f1": f1},
            **fields,
        )
        for place, (row, (exact, f1, steps, seconds)) in enumerate(zip(rows, quadruples, strict=True))
    ]
    return LabelledTable(rows=tuple(made), arms=ARMS)


def outcomes(*, total=None, measure=None, table=None, **settings):
    known, name = with_measure(table or table_of(), measure)
    totals = question_totals(known, total=total or {})
    made = Settings.model_validate(settings)
    check_has_charged_cost(known, reward=made.reward)
    rows = table_rows(known, features=None, encoder_hash="", reward=made.reward, label=made.policy.label)
    return RoutingTable(table=known, measure=name, rows=rows, totals=totals, time_one="one")


def chosen(*arms, seconds=0.0):
    """What was chosen for the questions in their order, one arm each."""
    return Shares(places=np.arange(len(arms)), shares=np.eye(3)[[ARMS.index(arm) for arm in arms]], seconds=seconds)


MIXED = ("none", "one", "many", "none", "many")


def test_the_measure_of_a_table_is_exact_match_if_it_has_it():
    """Papers' tables are judged by exact match, other tables by `correct`; a measure that a row lacks is refused."""
    table = table_of()
    assert with_measure(table, None)[1] == "exact_match"
    assert [row.correct for row in with_measure(table, "f1")[0].rows] == [row.correct for row in table.rows]
    without = LabelledTable(
        rows=tuple(TableRow(id="a", question="a", correct={"x": 1}, steps={"x": 1}) for _ in "a"), arms=("x",)
    )
    assert with_measure(without, None)[1] == "correct"
    with pytest.raises(InvalidInput, match="measure"):
        with_measure(without, "f1")


def test_means_of_a_way_of_answering():
    """EM, F1, steps, seconds and Time are means of the chosen arms; Time is relative and has the time of choosing."""
    row = row_of("router", [chosen(*MIXED, seconds=0.5)], outcomes=outcomes(), kind="policy")
    means = {name: one.mean for name, one in row.all.items()}
    assert means["exact_match"] == pytest.approx((1 + 1 + 1 + 0 + 0) / 5)
    assert means["f1"] == pytest.approx((1 + 1 + 1 + 0 + 0.1) / 5)
    assert means["steps"] == pytest.approx((0 + 1 + 4 + 0 + 4) / 5)
    assert means["seconds"] == pytest.approx((1 + 4 + 9 + 1 + 9) / 5 + 0.5)
    assert means["time"] == pytest.approx(means["seconds"] / ((2 + 4 + 3 + 3 + 3) / 5))
    assert means["reward"] == pytest.approx((1 + 0.95 + 0.8 + 0 - 0.2) / 5)
    assert row.all["f1"].error is None


def test_means_by_data_set():
    """A data set's mean is over its questions; the mean of data sets gives each the same weight."""
    row = row_of("router", [chosen(*MIXED)], outcomes=outcomes(), kind="policy")
    assert {name: means["exact_match"].mean for name, means in row.by_dataset.items()} == {
        "nq": pytest.approx(1.0),
        "hotpot": pytest.approx(1 / 3),
    }
    assert row.mean_of_datasets["exact_match"].mean == pytest.approx(2 / 3)
    assert row.mean_of_datasets["steps"].mean == pytest.approx((0.5 + 8 / 3) / 2)


def test_standard_errors_are_over_seeds():
    """With two seeds a mean has the standard error of the seeds' means."""
    row = row_of("router", [chosen(*MIXED), chosen(*["one"] * 5)], outcomes=outcomes(), kind="policy")
    assert row.all["exact_match"].mean == pytest.approx(0.6)
    assert row.all["exact_match"].error == pytest.approx(0.0)
    assert row.all["steps"].mean == pytest.approx((9 / 5 + 1) / 2)
    assert row.all["steps"].error == pytest.approx(np.std([9 / 5, 1.0], ddof=1) / math.sqrt(2))


@pytest.mark.parametrize("total", [{"": 20}, {"nq": 10, "hotpot": 10}])
def test_questions_that_the_table_leaves_out_are_wrong(total):
    """With --total qualities are divided by the number of all questions, steps by the questions of the table."""
    row = row_of("router", [chosen(*MIXED)], outcomes=outcomes(total=total), kind="policy")
    assert row.all["exact_match"].mean == pytest.approx(3 / 20)
    assert row.all["steps"].mean == pytest.approx(9 / 5)
    assert row.by_dataset["nq"]["exact_match"].mean == pytest.approx(2 / 10)
    assert row.mean_of_datasets["exact_match"].mean == pytest.approx((2 / 10 + 1 / 10) / 2)


@pytest.mark.parametrize("total", [{"": 4}, {"nq": 10}, {"nq": 10, "hotpot": 2}])
def test_totals_that_cannot_be(total):
    """A total below the table's number of questions, or without one of the data sets, is refused."""
    with pytest.raises(InvalidInput) as error:
        outcomes(total=total)
    assert error.value.field == "total"


def test_the_mixture_line():
    """A mixture of two arms is the line through them; above the best arm's cost nothing is gained."""
    costs, qualities = np.array([0.0, 1.0, 4.0]), np.array([0.2, 0.3, 0.8])
    quality = {
        at: float(mixture_shares(at, costs=costs, qualities=qualities) @ qualities) for at in (-1, 0, 1, 2, 4, 9)
    }
    # none with many has .2 + at * .15, above `one`
    assert quality == {k: pytest.approx(v) for k, v in {-1: 0.2, 0: 0.2, 1: 0.35, 2: 0.5, 4: 0.8, 9: 0.8}.items()}
    concave = np.array([0.2, 0.6, 0.8])
    assert float(mixture_shares(2.5, costs=costs, qualities=concave) @ concave) == pytest.approx(0.7)


def test_distance_to_mixture_and_oracle():
    """`above_mixture` is 0 for an arm; `oracle_share` is 1 for the oracle."""
    rows = {row.name: row for row in baseline_rows(outcomes(), at=1.0)}
    assert rows["none"].above_mixture.mean == pytest.approx(0.0)
    assert rows["oracle"].oracle_share == pytest.approx(1.0)
    # exact match .8 with 1.2 steps; at 1.2 steps a mixture of one (.6, 1) and many (.6, 3.6) has .6
    assert rows["oracle"].above_mixture.mean == pytest.approx(0.8 - 0.6)
    assert rows["uniform"].all["exact_match"].mean == pytest.approx((0.2 + 0.6 + 0.6) / 3)
    assert rows["mixture"].all["cost"].mean == pytest.approx(1.0)


def test_labels_and_confusion_matrix():
    """The label is the cheapest right arm; accuracy counts questions with a label, and the others are apart."""
    row = row_of("router", [chosen("none", "many", "many", "one", "none")], outcomes=outcomes(), kind="policy")
    labels = row.confusion.labels
    assert {name: one.questions for name, one in labels.items()} == {"none": 1, "one": 2, "many": 1, NONE_RIGHT: 1}
    assert labels["one"].chosen == {"none": 0.5, "one": 0.0, "many": 0.5}
    assert labels[NONE_RIGHT].chosen == {"none": 0.0, "one": 1.0, "many": 0.0}
    assert row.confusion.accuracy == pytest.approx(2 / 4)
    assert row.confusion.accuracies == {"none": 1.0, "one": 0.0, "many": 1.0}
    assert row.arms == {"none": 0.4, "one": 0.2, "many": 0.4}
    assert row.arm_seconds == {"none": 1.0, "one": 3.0, "many": 8.5}


def test_a_policy_has_a_row_after_its_pass_and_one_of_the_pass():
    """Folds are put together; the first pass counts the drawn arms on the questions of the pass."""
    known = outcomes()
    folds = [
        PolicyPlay(
            test=np.array(test), shares=np.eye(3)[arms], order=np.array(order), drawn=np.array(drawn), seconds=0.0
        )
        for test, arms, order, drawn in (
            ([0, 1], [0, 1], [2, 3, 4], [0, 0, 0]),
            ([2, 3, 4], [2, 0, 2], [1, 0], [2, 2]),
        )
    ]
    greedy, first = rows_of_policy("mba", {0: folds}, train=known, test=known)
    assert (greedy.name, first.name, first.kind) == ("mba", "mba, first pass", "first pass")
    assert greedy.all["exact_match"].mean == pytest.approx(3 / 5)
    assert first.all["exact_match"].mean == pytest.approx(2 / 5)
    assert first.all["steps"].mean == pytest.approx(8 / 5)


def test_tables_without_measures_or_seconds():
    """A table with `correct` and steps only has these means, no Time and no data sets."""
    rows = tuple(
        TableRow(id=row.id, question=row.question, correct=row.measures["exact_match"], steps=row.steps)
        for row in table_of().rows
    )
    row = row_of(
        "router", [chosen(*MIXED)], outcomes=outcomes(table=LabelledTable(rows=rows, arms=ARMS)), kind="policy"
    )
    assert set(row.all) == {"correct", "steps", "cost", "reward", "regret"}
    assert (row.by_dataset, row.mean_of_datasets) == ({}, row.all)
    assert row.arm_seconds == dict.fromkeys(ARMS)


def test_other_costs_than_steps():
    """A table with dollars is compared by dollars; a charged cost that it lacks is refused."""
    rows = tuple(
        TableRow(id=row.id, question=row.question, correct=row.correct, steps={}, costs={"dollars": row.steps})
        for row in table_of().rows
    )
    table = LabelledTable(rows=rows, arms=ARMS)
    with pytest.raises(ConfigError, match="charges"):
        outcomes(table=table)
    priced = outcomes(table=table, reward={"cost": {"dollars": 2.0}, "weight": 0.1})
    row = row_of("router", [chosen(*MIXED)], outcomes=priced, kind="policy")
    assert row.all["cost"].mean == pytest.approx(2 * 9 / 5)
    assert row.all["dollars"].mean == pytest.approx(9 / 5)


def test_hops_of_data_sets():
    """--hops gives hops to rows without hops, by data set; an unknown data set is refused."""
    assert [row.hops for row in with_hops(table_of(), {"nq": 1, "hotpot": 2}).rows] == [1, 1, 2, 2, 2]
    assert [row.hops for row in with_hops(table_of(hops=3), {"nq": 1}).rows] == [3] * 5
    with pytest.raises(InvalidInput, match="squad"):
        with_hops(table_of(), {"squad": 1})
