"""Inputs of a simulated policy, use of its outputs, and the report, on tables computed by hand."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import HashingEncoder, embedded
from ragbandit.router.offline.logs.tables import LabelledTable
from ragbandit.router.offline.simulation import simulate
from ragbandit.router.offline.simulation.measure import right_arms
from ragbandit.router.offline.simulation.run import SimulationData, split_of
from ragbandit.router.policies import POLICIES
from ragbandit.router.policies.base import PolicyOutput
from ragbandit.router.policies.confusion import shares_by_label
from ragbandit.router.policies.kinds.fixed import Uniform
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import ArmName, TableRow
from tests.support.examples import CountingEncoder, made_table as worked_table

ARMS = ("none", "single_step", "multi_step")
DOC = Path(__file__).parents[5] / "docs" / "simulate.md"


def made_table(count=40, *, seed=0, arms=ARMS):
    """Questions of which some words tell the right arm; every number of correct and steps is another one."""
    rng = random.Random(seed)
    rows = []
    for i in range(count):
        kind = i % len(arms)
        correct = {arm: (0.9 if k == kind else 0.1) + rng.random() / 100 for k, arm in enumerate(arms)}
        steps = {arm: 2.0 * k + rng.random() for k, arm in enumerate(arms)}
        text = f"{('who', 'where', 'why')[kind % 3]} {i}?"
        rows.append(TableRow(id=f"secret-{i}", question=text, correct=correct, steps=steps))
    return LabelledTable(rows=tuple(rows), arms=arms)


#: always-none 25 % at 0, always-single 50 % at 1, always-multi 75 % at 4; the oracle 100 % at 1.25
SMALL = worked_table([[1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 0]], [[0, 1, 2], [0, 1, 4], [0, 1, 4], [0, 1, 6]])


@pytest.fixture
def registered(monkeypatch):
    """Puts a class of this module among the policies for the test."""

    def register(made):
        monkeypatch.setitem(POLICIES, made.algorithm, f"{__name__}:{made.__name__}")
        return {made.algorithm: {}}

    return register


def row_of(rows, policy):
    (found,) = [row for row in rows if row.policy == policy]
    return found


class Spy(Uniform):
    """Keeps everything that it was ever given."""

    algorithm = "spy"
    needs = frozenset({"text", "features"})
    asked: ClassVar = []
    taught: ClassVar = []

    def pmf(self, queries, *, features, arms):
        self.asked.append((tuple(queries), features, tuple(arms)))
        return super().pmf(queries, features=features, arms=arms)

    def learn(self, update):
        self.taught.append(update)
        super().learn(update)


@pytest.fixture
def spied(registered, tmp_path):
    """All that a policy was given in two folds of a table."""
    Spy.asked, Spy.taught = [], []
    table = made_table(30)
    rows = simulate(
        table,
        policies=registered(Spy),
        folds=2,
        seeds=1,
        settings=Settings(data_dir=str(tmp_path)),
        encoder=lambda: HashingEncoder(16),
    )
    return table, rows


# ---------------------------------------------------------------------------------------------- inputs of a policy


def test_policy_sees_no_id(spied):
    """The id of a row, which may spell its data set, is in nothing that a policy is given."""
    assert len(Spy.asked) > 30
    assert len(Spy.taught) == 30
    everything = repr(Spy.asked) + repr(Spy.taught)
    assert "who 0?" in everything
    assert "secret" not in everything


def test_only_the_drawn_arm_is_revealed(spied):
    """An update has the drawn arm's quality and steps, and no number of any other arm, anywhere."""
    table, _ = spied
    by_text = {row.question: row for row in table.rows}
    for update in Spy.taught:
        row = by_text[update.query.text]
        assert (update.reward.quality, update.reward.cost) == (row.correct[update.arm], row.steps[update.arm])
        for arm in set(table.arms) - {update.arm}:
            assert repr(row.correct[arm]) not in repr(update)
            assert repr(row.steps[arm]) not in repr(update)


def test_test_rows_are_not_learned(spied):
    """In each fold what is learned and what is predicted are all rows together, and share none."""
    table, _ = spied
    world = SimulationData(table=table, judged=table, folds=2, settings=Settings())
    for fold in range(2):
        assert sorted(np.concatenate(split_of(world, seed=0, fold=fold))) == list(range(30))
    learned = [update.query.text for update in Spy.taught]
    first, second = learned[:15], learned[15:]
    assert sorted(first + second) == sorted(row.question for row in table.rows)


# ---------------------------------------------------------------------------------------------------- the report


def test_baselines_by_hand():
    """EM, steps, arms and distance from the line of everything that needs no learner, on four questions."""
    rows = simulate(SMALL, policies={"fixed": {"arm": "none"}}, folds=2, seeds=1)
    line = {1.0: 50.0, 4.0: 75.0}

    def stands(policy):
        row = row_of(rows, policy)
        return row.em, row.steps, row.above_line

    assert stands("always-none") == pytest.approx((25.0, 0.0, 25.0 - (50.0 - 25.0 / 3)))
    assert stands("always-single_step") == (line[1.0], 1.0, 0.0)
    assert stands("always-multi_step") == (line[4.0], 4.0, 0.0)
    assert stands("uniform") == pytest.approx((50.0, 5 / 3, 50.0 - (50.0 + 25 / 3 * 2 / 3)))
    assert stands("line") == pytest.approx((62.5, 2.5, 0.0), abs=1e-12)
    assert stands("oracle") == pytest.approx((75.0, 1.25, 75.0 - (50.0 + 25 / 3 * 0.25)))
    assert row_of(rows, "oracle").arms == {"none": 0.5, "single_step": 0.25, "multi_step": 0.25}
    assert row_of(rows, "oracle").oracle_share == 1.0
    assert row_of(rows, "uniform").oracle_share == pytest.approx((-50 / 9) / (75 - 50 - 25 / 12))


class Torn(Uniform):
    """Scores that say which arm is best: two alike, by the question's number."""

    algorithm = "torn"
    needs = frozenset({"text"})

    def pmf(self, queries, *, features, arms):
        return [PolicyOutput(pmf=(0.0, 1.0, 0.0), scores=(0.5, 0.1, 0.5)) for _ in queries]


def test_greedy_goes_by_scores(registered):
    """Where a policy has scores the test goes by them and not by its pmf; equal scores share."""
    row = row_of(simulate(SMALL, policies=registered(Torn), folds=2, seeds=1), "torn")
    assert row.arms == {"none": 0.5, "single_step": 0.0, "multi_step": 0.5}


# --------------------------------------------------------------------------------------------- policies that break


class Broken(Uniform):
    """No pmf for questions with an even number."""

    algorithm = "broken"
    needs = frozenset({"text"})

    def pmf(self, queries, *, features, arms):
        if any(int(query.text.rstrip("?")) % 2 == 0 for query in queries):
            raise RuntimeError("even")
        return [PolicyOutput(pmf=(0.0, 1.0, 0.0)) for _ in queries]


def test_faults_are_counted_and_the_fallback_is_played(registered):
    """A policy that breaks for half of the questions plays the fallback there, in the pass and in the test."""
    settings = Settings(policy={"fallback": "multi_step", "floor": 0.0})
    row = row_of(simulate(SMALL, policies=registered(Broken), folds=2, seeds=1, settings=settings), "broken")
    assert row.arms == {"none": 0.0, "single_step": 0.5, "multi_step": 0.5}
    assert (row.faults, row.reason) == (4, "RuntimeError: even")


class Fitted(Uniform):
    """Plays what was right most often in the rows that it was fitted to."""

    algorithm = "fitted"
    given: ClassVar = []

    def fit(self, rows, *, progress):
        progress(1, 1)
        self.given.append(rows)
        self.best = max(ARMS, key=lambda arm: sum(row.correct[arm] for row in rows))

    def pmf(self, queries, *, features, arms):
        return [PolicyOutput(pmf=tuple(float(arm == self.best) for arm in offered)) for offered in arms]


def test_policies_with_fit_get_full_information(registered):
    """`fit` gets the training rows with all outcomes once for all weights, which the row reports."""
    Fitted.given = []
    table = worked_table([[0, 0, 1], [0, 1, 1]] * 2, [[0, 1, 2]] * 4)
    row = row_of(simulate(table, policies=registered(Fitted), folds=2, seeds=1, weights=[0.1, 0.2]), "fitted")
    assert [len(rows) for rows in Fitted.given] == [2, 2]
    given = sorted(one.question for rows in Fitted.given for one in rows)
    assert given == sorted(row.question for row in table.rows)
    blind = [replace(row, id="") for row in table.rows]  # an id might spell the data set
    assert all(one in blind for rows in Fitted.given for one in rows)
    assert (row.full_information, row.weight) == (True, None)
    assert (row.em, row.first_pass) == (100.0, None)


# ------------------------------------------------------------------------------------------- the same every time


def test_test_table_is_predicted_after_all_rows(registered, tmp_path):
    """With a test table all rows are learned once per seed, and the test judged, whatever the order of its arms."""
    Spy.asked, Spy.taught = [], []
    table, test = made_table(12), made_table(7, seed=5)
    test = replace(test, rows=tuple(replace(row, question=f"new {row.question}") for row in test.rows), arms=ARMS[::-1])
    rows = simulate(
        table,
        policies=registered(Spy),
        test=test,
        seeds=2,
        settings=Settings(data_dir=str(tmp_path)),
        encoder=lambda: HashingEncoder(8),
    )
    texts = [update.query.text for update in Spy.taught]
    assert sorted(texts) == sorted([row.question for row in table.rows] * 2)
    assert texts[:12] != texts[12:]
    asked = {query.text for queries, _, _ in Spy.asked for query in queries}
    assert asked == {row.question for row in (*table.rows, *test.rows)}
    assert row_of(rows, "spy").n == 7
    assert list(row_of(rows, "spy").arms) == list(ARMS)
    assert row_of(rows, "always-none").em == pytest.approx(100 * np.mean([row.correct["none"] for row in test.rows]))


# --------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("given", "error", "field"),
    [
        ({"policies": {}}, InvalidInput, "policy"),
        ({"policies": {"oracle": {}}}, ConfigError, "policy.name"),
        ({"policies": {"fixed": {}}}, ConfigError, "policy.params.arm"),
        ({"policies": {"fixed": {"arm": "x"}}}, ConfigError, "fixed.arm"),
        ({"policies": {"mixture": {"first": "none", "second": "x"}}}, ConfigError, "mixture.second"),
        ({"policies": {"mba": {}}}, ConfigError, "encoder"),
        ({"folds": 1}, InvalidInput, "folds"),
        ({"folds": 5}, InvalidInput, "folds"),
        ({"seeds": 0}, InvalidInput, "seeds"),
        ({"total": 3}, InvalidInput, "total"),
        ({"weights": []}, InvalidInput, "lambda"),
        ({"weights": [0.1, 0.1]}, InvalidInput, "lambda"),
        ({"weights": [-0.1]}, InvalidInput, "lambda"),
        ({"weights": [float("nan")]}, InvalidInput, "lambda"),
        ({"labelled": 0.0}, InvalidInput, "labelled"),
        ({"labelled": 1.01}, InvalidInput, "labelled"),
        ({"labelled": float("nan")}, InvalidInput, "labelled"),
        ({"warm": 2}, InvalidInput, "warm"),
        ({"incumbent": "odd"}, InvalidInput, "incumbent"),
        ({"test": made_table(4, arms=("none", "single_step"))}, InvalidInput, "test"),
        ({"settings": Settings(reward={"cost": {"llm_calls": 1.0}})}, ConfigError, "reward.cost"),
    ],
)
def test_what_cannot_be_simulated_is_refused(given, error, field):
    """A wrong argument is refused before anything is learned, with field and remedy."""
    with pytest.raises(error) as caught:
        simulate(SMALL, **({"policies": {"uniform": {}}, "folds": 2, "seeds": 1} | given))
    assert caught.value.field == field
    assert caught.value.remedy


TEXTS = ["who?", "where?", "who?", "why?"]


def test_features_are_made_once(tmp_path):
    """A second call reads all from disk; a text that is new is encoded alone; each row is the encoder's."""
    encoder = CountingEncoder()
    first = embedded(TEXTS, encoder=encoder, data_dir=tmp_path)
    assert sorted(text for batch in encoder.given for text in batch) == ["where?", "who?", "why?"]
    assert np.array_equal(first, HashingEncoder(8).encode(TEXTS))
    encoder.given = []
    again = embedded([*TEXTS, "when?"], encoder=encoder, data_dir=tmp_path)
    assert encoder.given == [["when?"]]
    assert np.array_equal(again[:4], first)
    assert first.dtype == again.dtype == np.float32


def test_confusion_is_counted_by_the_cheapest_right_arm():
    """The confusion matrix equals a count by hand: for each cheapest right arm the shares sent to every arm. Questions
    without a right arm have their own row; labels without questions have none.
    """
    arms = tuple(map(ArmName, ARMS))
    random = np.random.default_rng(3)
    correct = random.integers(0, 2, (60, 3))
    correct[:, 0] &= correct[:, 1]
    steps = random.integers(0, 5, (60, 3)).astype(float)
    table = worked_table(correct.tolist(), steps.tolist(), arms=arms)
    shares = random.dirichlet(np.ones(3), 60)
    counts, sums = {}, {}
    for row, share in zip(table.rows, shares, strict=True):
        right = [arm for arm in arms if row.correct[arm]]
        label = min(right, key=lambda arm: row.steps[arm]) if right else None
        counts[label] = counts.get(label, 0) + 1
        for arm, part in zip(arms, share, strict=True):
            sums[label, arm] = sums.get((label, arm), 0.0) + part
    found = shares_by_label(right_arms(table), shares=shares, arms=arms, order=arms)
    assert [one.label for one in found] == [*arms, None]
    assert {one.label: one.questions for one in found} == counts
    for one in found:
        expected = {arm: sums[one.label, arm] / one.questions for arm in arms}
        assert one.arms == pytest.approx(expected)
    single = [row for row in zip(right_arms(table), shares, strict=True) if row[0] == "single_step"]
    few = shares_by_label([one[0] for one in single], shares=[one[1] for one in single], arms=arms, order=arms)
    assert few == [one for one in found if one.label == "single_step"]


def test_confusion_of_a_simulated_policy():
    """Every row has its confusion matrix: the oracle's is diagonal, and sends what nobody answers to the cheapest arm;
    a policy's rows, weighted by their questions, are its shares of arms.
    """
    rows = simulate(SMALL, policies={"vw": {}}, folds=2, seeds=3, encoder=lambda: HashingEncoder(16))
    oracle = row_of(rows, "oracle").as_json()["confusion"]
    sent = [(one["label"], one["questions"], [arm for arm in ARMS if one["arms"][arm] == 1.0]) for one in oracle]
    assert sent == [*((arm, 1, [arm]) for arm in ARMS), (None, 1, ["none"])]
    learned = row_of(rows, "vw")
    for arm, share in learned.arms.items():
        assert sum(one.questions * one.arms[arm] for one in learned.confusion) / 4 == pytest.approx(share)


def test_seconds_and_shares_by_label():
    """A table with seconds gives mean seconds of the policy, per arm and per label. Hops and data sets are labels too;
    questions without a label have their own row.
    """
    more = [("nq", 1, (1, 2, 4)), ("nq", 2, (1, 3, 8)), ("hotpotqa", 2, (1, 2, 9)), ("nq", None, (5, 6, 7))]
    rows = tuple(
        replace(row, dataset=dataset, hops=hops, seconds=dict(zip(ARMS, map(float, seconds), strict=True)))
        for row, (dataset, hops, seconds) in zip(SMALL.rows, more, strict=True)
    )
    found = simulate(LabelledTable(rows=rows, arms=ARMS), policies={"uniform": {}}, folds=2, seeds=1)
    oracle = row_of(found, "oracle")  # takes the first arm, the second, the third, and the first again
    assert oracle.seconds == (1 + 3 + 9 + 5) / 4
    assert oracle.arm_seconds == {"none": 3.0, "single_step": 3.0, "multi_step": 9.0}
    assert row_of(found, "always-none").arm_seconds == {"none": 2.0, "single_step": None, "multi_step": None}
    assert [(one.label, one.questions, one.seconds) for one in oracle.by_hops] == [
        (1, 1, 1.0),
        (2, 2, 6.0),
        (None, 1, 5.0),
    ]
    assert [(one.label, one.seconds) for one in oracle.by_dataset] == [("hotpotqa", 9.0), ("nq", 3.0)]
    assert [one.seconds for one in oracle.confusion] == [1.0, 3.0, 9.0, 5.0]
    uniform = row_of(found, "uniform")
    assert uniform.by_dataset[1].arms == dict.fromkeys(ARMS, pytest.approx(1 / 3))
    assert uniform.by_dataset[1].seconds == pytest.approx((7 + 12 + 18) / 9)
    bare = row_of(simulate(SMALL, policies={"uniform": {}}, folds=2, seeds=1), "oracle")
    assert (bare.seconds, bare.arm_seconds, bare.by_hops, bare.by_dataset) == (None, None, [], [])


def test_the_lines_of_the_document(tmp_path, monkeypatch):
    """The Python block in docs/simulate.md runs as it stands on a table of its format."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {"question": f"Which {n}?", "correct": {"a": n % 2, "b": 1}, "steps": {"a": 0, "b": 1 + n % 3}}
        for n in range(20)
    ]
    Path("T.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (block,) = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.S)
    names = {}
    exec(block, names)
    assert {"mba", "uniform"} <= {row.policy for row in names["rows"]}
