"""Plays of policies on tables: learned outcomes, predicted questions, hidden fields."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from ragbandit.additions.evaluation.routers import play as plays
from ragbandit.additions.evaluation.routers.play import PlayTask, Setup, make_policies, make_tasks, play
from ragbandit.additions.evaluation.routers.routing_table import RoutingTable
from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.passes import table_rows
from ragbandit.router.policies.algorithms.fixed import Uniform
from ragbandit.router.policies.base import PolicyOutput
from ragbandit.shared.errors import ConfigError
from tests.support.examples import made_table

ARMS = ("none", "single_step", "multi_step")


class Watching(Uniform):
    """Draws uniformly, and records what it learns."""

    def __init__(self, **params):
        super().__init__(**params)
        self.learned = []

    def learn(self, update):
        self.learned.append((update.query.text, update.arm, update.reward.value))
        super().learn(update)


class Fitted(Watching):
    """Is trained on tables, and then takes the second arm."""

    trained_arms = ()

    def save(self, folder):
        return ""

    def fit(self, rows, *, progress=None):
        self.fitted = rows
        return {}

    def output(self, query, *, features, arms):
        return PolicyOutput(pmf=tuple(float(place == 1) for place in range(len(arms))))


@pytest.fixture
def setup(monkeypatch):
    """A setup whose policies "watching" and "fitted" are these classes; the made instances in `made`."""
    random = np.random.default_rng(0)
    table = made_table(random.integers(0, 2, (20, 3)).tolist(), random.integers(0, 5, (20, 3)).tolist(), arms=ARMS)
    table = replace(table, rows=tuple(replace(row, dataset="nq") for row in table.rows))
    known = RoutingTable(
        table=table,
        measure="correct",
        rows=table_rows(table, features=None, encoder_hash="", reward=RewardSettings(), label="main"),
    )
    made = []

    def make_policy(name, *, params):
        made.append({"watching": Watching, "fitted": Fitted}[name](**params))
        return made[-1]

    monkeypatch.setattr(plays, "make_policy", make_policy)
    names = {"watching": {}, "fitted": {}}
    return Setup(train=known, test=known, folds=4, policy=Settings().policy, policies=names), made


def test_a_policy_that_learns_online_sees_the_drawn_arm_only(setup):
    """The pass draws one arm for each training question, and the policy learns this arm's reward and no other."""
    world, made = setup
    played = play(PlayTask(policy="watching", seed=3, fold=1), setup=world)
    rows, policy = world.train.table.rows, made[-1]
    drawn = [(rows[place].question, ARMS[arm]) for place, arm in zip(played.order, played.drawn, strict=True)]
    assert [(text, arm) for text, arm, _ in policy.learned] == drawn
    rewards = [world.train.reward[place, arm] for place, arm in zip(played.order, played.drawn, strict=True)]
    assert [value for *_, value in policy.learned] == pytest.approx(rewards)
    assert len({*played.order.tolist()} | {*played.test.tolist()}) == 20
    assert not {*played.order.tolist()} & {*played.test.tolist()}


def test_folds_predict_every_question_once(setup):
    """The folds of a seed are disjoint and cover the table; another seed has another order."""
    world, _ = setup
    tests = [play(PlayTask(policy="watching", seed=0, fold=fold), setup=world).test for fold in range(4)]
    assert sorted(np.concatenate(tests).tolist()) == list(range(20))
    assert tests[0].tolist() != play(PlayTask(policy="watching", seed=1, fold=0), setup=world).test.tolist()


def test_another_table_is_predicted_whole(setup):
    """With a table of its own for the training, one fold learns all of it and predicts the other table."""
    world, _ = setup
    played = play(PlayTask(policy="watching", seed=0, fold=0), setup=replace(world, folds=1))
    assert played.test.tolist() == list(range(20))
    assert sorted(played.order.tolist()) == list(range(20))


def test_a_classifier_is_trained_on_the_other_folds(setup):
    """A policy that is fitted to tables gets the rows of the other folds, without ids and data sets, and no pass."""
    world, made = setup
    played = play(PlayTask(policy="fitted", seed=0, fold=2), setup=world)
    policy = made[-1]
    texts = [row.question for row in policy.fitted]
    asked = [world.train.table.rows[place].question for place in played.test]
    assert len(texts) == 15
    assert not {*texts} & {*asked}
    assert {(row.id, row.dataset) for row in policy.fitted} == {("", None)}
    assert (policy.learned, len(played.order)) == ([], 0)
    assert played.shares.tolist() == [[0.0, 1.0, 0.0]] * 5


def test_every_policy_gets_the_same_questions(setup):
    """Policies with the same seed and fold are asked the same questions, and are trained on the same."""
    world, _ = setup
    first, second = (play(PlayTask(policy=name, seed=5, fold=0), setup=world) for name in ("watching", "fitted"))
    assert first.test.tolist() == second.test.tolist()


@pytest.mark.parametrize("policy", ["watching", "fitted"])
def test_plays_are_read_back(setup, policy):
    """A play that was written as JSON is the same after reading."""
    world, _ = setup
    task = PlayTask(policy=policy, seed=2, fold=1)
    played = play(task, setup=world).as_json()
    assert plays.read_play(json.loads(json.dumps(played)), task=task, setup=world).as_json() == played


@pytest.mark.parametrize(
    ("field", "change", "said"),
    [
        ("test", lambda old: old[::-1], "questions of the fold"),
        ("test", lambda old: old[:-1], "questions of the fold"),
        ("test", lambda old: [float(one) for one in old], "test"),
        ("test", lambda old: [old[0] + 0.5, *old[1:]], "test"),
        ("test", lambda old: [10**400, *old[1:]], "test"),
        ("test", lambda old: [True, *old[1:]], "test"),
        ("test", lambda old: [str(one) for one in old], "test"),
        ("test", lambda _: None, "test"),
        ("order", lambda old: old[1:], "questions of the pass"),
        ("order", lambda _: {}, "order"),
        ("drawn", lambda old: old[1:], "an arm for each question"),
        ("drawn", lambda old: [3, *old[1:]], "an arm for each question"),
        ("drawn", lambda old: [-1, *old[1:]], "drawn"),
        ("shares", lambda old: old[1:], "shares"),
        ("shares", lambda old: [row[1:] for row in old], "shares"),
        ("shares", lambda old: [old[0][0], *old[1:]], "shares"),
        ("shares", lambda old: [[0.5, 0.5, 0.5], *old[1:]], "do not add up to 1"),
        ("shares", lambda old: [[2.0, -1.0, 0.0], *old[1:]], "shares"),
        ("shares", lambda old: [[math.nan, 1.0, 0.0], *old[1:]], "shares"),
        ("shares", lambda old: [[math.inf, 0.0, 0.0], *old[1:]], "shares"),
        ("shares", lambda old: [[10**400, 0, 0], *old[1:]], "shares"),
        ("seconds", lambda _: math.nan, "seconds"),
        ("seconds", lambda _: -1.0, "seconds"),
        ("seconds", lambda _: "0.1", "seconds"),
        ("seconds", lambda _: None, "seconds"),
        ("fault", lambda _: 5, "fault"),
    ],
)
def test_a_play_with_wrong_values_is_refused(setup, field, change, said):
    """A play with other questions, shapes, types or numbers than its task has is refused with the name of the field."""
    world, _ = setup
    task = PlayTask(policy="watching", seed=2, fold=1)
    played = play(task, setup=world).as_json()
    with pytest.raises(ValueError, match=said):
        plays.read_play({**played, field: change(played[field])}, task=task, setup=world)
    del played[field]
    with pytest.raises(ValueError, match=field):
        plays.read_play(played, task=task, setup=world)


def test_policies_that_do_not_fit_the_table_are_refused():
    """A policy that names an arm that the table lacks is refused before anything is played."""
    with pytest.raises(ConfigError, match="flare"):
        make_policies({"fixed": {"arm": "flare"}}, arms=ARMS)


def test_each_policy_is_played_for_every_seed_and_fold(setup):
    """A policy that learns is played once per seed and fold; one that was trained before, once per fold."""
    world, _ = setup
    trained = Fitted()
    trained.trained_arms = ARMS
    tasks = make_tasks(replace(world, folds=2), policies={"watching": Watching(), "fitted": trained}, seeds=2)
    found = [(task.policy, task.seed, task.fold) for task in tasks]
    assert found == [
        *(("watching", seed, fold) for seed in range(2) for fold in range(2)),
        ("fitted", 0, 0),
        ("fitted", 0, 1),
    ]
