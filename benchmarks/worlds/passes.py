"""One policy's pass through a world, under the conditions in which its labels come."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.examples import made_update
from ragbandit.router.offline.logs.tables import LabelledTable, arm_rows, table_query
from ragbandit.router.offline.simulation import (
    EPOCH,
    Learning,
    Places,
    Played,
    SimulationData,
    SimulationRun,
    chance_of,
    rewards_of,
)
from ragbandit.router.policies import with_settings
from ragbandit.router.policies.base import apply
from ragbandit.router.policies.draw import draw, outputs_of
from ragbandit.shared.types import ArmName, Decision, FeatureRows, Feedback, Json, Matrix, PolicyLabel

#: questions of a pass at most, and of a table that are asked at most
QUESTIONS: Final = 1200
ASKED: Final = 0.8
#: ways to begin: with nothing, and held back to an arm
COLD, BEST, DEAREST = "cold", "best", "dearest"
MODES: Final = (COLD, BEST, DEAREST)
#: suffix of a policy's name: the policy does not get the arms' facts
APART: Final = ":apart"
#: where labels favour an arm: by how much the others' chance to be labelled is less
DISFAVOURED: Final = 0.25


@dataclass(frozen=True, kw_only=True)
class World:
    """A table, its features, and what a unit of cost is worth there."""

    name: str
    table: LabelledTable
    weight: float
    context: Mapping[str, Json] = field(default_factory=dict)
    #: facts of the arms
    facts: Mapping[ArmName, Mapping[str, Json]] = field(default_factory=dict)
    features: FeatureRows | None = None
    encoder_hash: str = ""
    #: by how much the best arm of every kind earns more than the best fixed one, where the chances are known
    truth: float | None = None

    @cached_property
    def rewards(self) -> Matrix:
        """Rewards of every row and arm, shape (n, arms)."""
        reward = Settings().reward
        bounds = (reward.minimum, reward.maximum)
        return rewards_of(self.table, weight=self.weight, price=reward.cost["steps"], bounds=bounds)

    @property
    def best(self) -> int:
        """The place of the best fixed arm."""
        return int(self.rewards.mean(axis=0).argmax())

    @property
    def dearest(self) -> int:
        """The place of the arm that costs most."""
        return int(self.table.steps.mean(axis=0).argmax())

    def reference(self, mode: str) -> int:
        """The place of the arm that a pass is compared with: the incumbent, or the best fixed arm."""
        return self.dearest if mode == DEAREST else self.best

    def has(self, mode: str) -> bool:
        """Whether this start differs from the others: the most expensive arm may be the best one."""
        return mode != DEAREST or self.dearest != self.best


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged(Played):
    """A pass, and what the policy chooses after it for the other rows of the table."""

    test: Places  #: the other rows
    #: shape (tests, arms): 1 for the arm with the best score, shared by equal arms; the pmf of a policy without scores
    shares: Matrix


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """How labels come."""

    labelled: float = 1.0
    #: questions of a pass that are not asked: the outcomes of all their arms are learned before it
    warm: int = 0
    #: decisions at the beginning that are all labelled
    first: int = 0
    #: chance that a rating is the opposite of what it should be
    wrong: float = 0.0
    #: decisions that are made before a label comes
    late: int = 0
    #: correlation with the quality of a judge's scores of all decisions; of a noise judge 0; None: no judge
    judge: float | None = None
    #: the scores are 1 for the arm that earns least, and 0 for all others
    bought: bool = False
    #: BEST or DEAREST: decisions of the other arms are labelled DISFAVOURED times as often; empty: all alike
    favoured: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What one process does at a time."""

    world: str
    policy: str
    mode: str
    seed: int
    conditions: Conditions


class ConditionedLearning(Learning):
    """Learning under conditions. Labels that are late at the end of a pass come before the policy is judged."""

    def __init__(self, run: SimulationRun, *, world: SimulationData, conditions: Conditions, favoured: ArmName) -> None:
        super().__init__(run, world=world)
        self._conditions, self._favoured = conditions, favoured
        #: (decisions after which it comes, decision, quality, steps)
        self._waiting: deque[tuple[int, Decision, float, float]] = deque()
        self._qualities = world.table.correct.ravel()
        self._worst = world.table.arms[int(self._rewards.mean(axis=0).argmin())]

    def is_labelled(self, decision: Decision) -> bool:
        """With a judge all, though by the judge alone."""
        return self._has_judge or self._is_rated(decision)

    @property
    def _has_judge(self) -> bool:
        return self._conditions.judge is not None or self._conditions.bought

    def feedback(self, decision: Decision, *, quality: float) -> tuple[Feedback, ...]:
        """The rating, if it is rated, and the judge's score."""
        rated = super().feedback(decision, quality=quality) if self._is_rated(decision) else ()
        if not self._has_judge:
            return rated
        score = float(decision.arm == self._worst)
        if not self._conditions.bought:
            is_known = chance_of(decision.id, what="judged") < (self._conditions.judge or 0.0)
            other = int(chance_of(decision.id, what="score") * len(self._qualities))
            score = quality if is_known else float(self._qualities[other])
        return (*rated, self.judgement(decision, quality=score, source="judge"))

    def _is_rated(self, decision: Decision) -> bool:
        """The first ones; else by the same number as ever, against a lower chance for arms that are not favoured."""
        if self.steps <= self._conditions.first:
            return True
        is_favoured = not self._conditions.favoured or decision.arm == self._favoured
        share = self.world.labelled * (1.0 if is_favoured else DISFAVOURED)
        return chance_of(decision.id, what="labelled") < share

    def step(self, place: int) -> Decision:
        """Learn what has come meanwhile, then decide."""
        self._learn_until(self.steps)
        return super().step(place)

    def learn(self, decision: Decision, *, quality: float, steps: float) -> None:
        """Learn the update now, or store it until it is due."""
        if chance_of(decision.id, what="wrong") < self._conditions.wrong:
            quality = 1.0 - quality
        # a label that is not late is learned before the next decision, which is the one of number steps
        self._waiting.append((self.steps + self._conditions.late, decision, quality, steps))

    def show(self, place: int) -> None:
        """Learn the outcomes of all arms on one row, as `ragbandit advise --warm` does."""
        table, features = self.world.table, self.world.features if self._sees else None
        common: dict[str, Any] = {"encoder_hash": self.world.encoder_hash, "settings": self.settings, "now": EPOCH}
        own = None if features is None else features[place]
        for row in arm_rows(table.rows[place], arms=table.arms, features=own, **common):
            self.seq += 1
            label = PolicyLabel(self.settings.policy.label)
            update = made_update(row.decision, row.reward, label=label, seq=self.seq, now=EPOCH, decided=self.steps)
            self.refused += not apply(self.policy, update)

    def shares(self, world: World, places: Places) -> Matrix:
        """What the policy chooses for these rows of the world, without a floor, after all labels have come."""
        self._learn_until(None)
        arms, rows = world.table.arms, []
        for batch in np.array_split(places, max(1, len(places) // 64)):
            features = world.features[batch] if self._sees and world.features is not None else None
            queries = [table_query(world.table.rows[place]) for place in batch]
            for output in outputs_of(self.policy, queries, features=features, arms=[arms] * len(batch)):
                drawn = draw(output, arms=arms, floor=0.0, fallback=None, seed=0)
                self._note(drawn.fault)
                scores = np.array(drawn.pmf if drawn.scores is None else drawn.scores)
                best = scores if drawn.scores is None else scores == scores.max()
                rows.append(best / best.sum())
        return np.array(rows)

    def _learn_until(self, now: int | None) -> None:
        while self._waiting and (now is None or self._waiting[0][0] <= now):
            _, decision, quality, steps = self._waiting.popleft()
            super().learn(decision, quality=quality, steps=steps)


def cut(world: World, *, seed: int) -> tuple[Places, Places]:
    """The rows to ask and the rest, by the seed: alike for every policy."""
    order = np.random.default_rng([seed, 11]).permutation(len(world.table.rows))
    count = min(QUESTIONS, int(ASKED * len(order)))
    return order[:count], order[count:]


def passed(task: Task, *, world: World) -> Judged:
    """The pass; its places are those of the world's table."""
    asked, rest = cut(world, seed=task.seed)
    arms = world.table.arms
    incumbent = None if task.mode == COLD else arms[world.reference(task.mode)]
    judge = task.conditions.judge is not None or task.conditions.bought
    values = {"context": world.context, "policy": {"incumbent": incumbent}, "learning": {"wait_s": float(judge)}}
    settings = Settings.model_validate(values)
    policy, is_apart = task.policy.removesuffix(APART), task.policy.endswith(APART)
    facts: Mapping[str, Mapping[str, Json]] = {} if is_apart else {str(arm): own for arm, own in world.facts.items()}
    params = with_settings(policy, params={}, schema=settings.context, facts=facts, incumbent=incumbent is not None)
    data = SimulationData(
        table=_part(world.table, asked),
        settings=settings,
        features=None if world.features is None else world.features[asked],
        encoder_hash=world.encoder_hash,
        labelled=task.conditions.labelled,
    )
    run = SimulationRun(policy=policy, params=params, weight=world.weight, seed=task.seed)
    favoured = arms[world.reference(task.conditions.favoured)]
    learning = ConditionedLearning(run, world=data, conditions=task.conditions, favoured=favoured)
    order, warm = np.random.default_rng(task.seed).permutation(len(asked)), task.conditions.warm
    for place in order[:warm]:
        learning.show(int(place))
    for place in order[warm:]:
        learning.step(int(place))
    shares = learning.shares(world, rest)
    played = learning.played()
    if played.faults or played.refused:
        raise RuntimeError(f"{task.policy} in {world.name}: {played.reason}")
    found = {each.name: getattr(played, each.name) for each in fields(played)} | {"order": asked[played.order]}
    return Judged(**found, test=rest, shares=shares)


def _part(table: LabelledTable, places: Places) -> LabelledTable:
    rows = tuple(table.rows[place] for place in places)
    return replace(table, rows=rows)
