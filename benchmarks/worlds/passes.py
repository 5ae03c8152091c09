"""One policy's pass through a world, under the conditions in which its labels come."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from ragbandit.examples.handbook.side_by_side import rewards_of
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.adjustments import AdjustedRow, Basis
from ragbandit.router.learning.examples import Joining
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.logs.tables import LabelledTable, table_query
from ragbandit.router.offline.passes import (
    Learning,
    Played,
    chance_of,
    decision_id,
    greedy_shares,
    table_rows,
)
from ragbandit.router.policies import untrained_policy
from ragbandit.router.policies.settings_check import check_arms
from ragbandit.router.serving.checks.reports import make_feedback, make_outcome
from ragbandit.shared.types import ArmName, Decision, FeatureRows, FeedbackId, Indices, JoinedDecision, Json, Matrix

#: questions of a pass at most (default), and share of a table that is asked at most
QUESTIONS: Final = 1200
ASKED: Final = 0.8
#: ways to begin: with nothing, and held back to an arm
COLD, BEST, DEAREST = "cold", "best", "dearest"
MODES: Final = (COLD, BEST, DEAREST)
#: suffix of a policy's name: the policy does not get the arms' facts
APART: Final = ":apart"


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
    #: chance of every arm to be right on every row, shape (n, arms), where it is known
    chances: Matrix | None = None
    #: a pass draws rows with replacement, and each outcome by the chance that the table has
    repeats: bool = False

    @cached_property
    def rewards(self) -> Matrix:
        """Rewards of every row and arm, shape (n, arms)."""
        return rewards_of(self.table, reward=Settings().reward.model_copy(update={"weight": self.weight}))

    @cached_property
    def worth(self) -> Matrix | None:
        """Expected rewards of every row and arm, shape (n, arms), where the chances are known."""
        return None if self.chances is None else self.chances - self.weight * self.table.steps

    @property
    def truth(self) -> float | None:
        """By how much the best arm of every row earns more than the best fixed one, where the chances are known."""
        return None if self.worth is None else float(self.worth.max(axis=1).mean() - self.worth.mean(axis=0).max())

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

    test: Indices  #: the other rows
    #: shape (tests, arms): 1 for the arm with the best score, shared by equal arms; the pmf of a policy without scores
    shares: Matrix


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """How long a pass is, and how labels come."""

    #: number of questions of a pass, at most
    questions: int = QUESTIONS
    labelled: float = 1.0
    #: questions of a pass that are not asked: the outcomes of all their arms are learned before it
    warm: int = 0
    #: chance that a rating is the opposite of what it should be
    wrong: float = 0.0
    #: decisions that are made before a label comes
    late: int = 0


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

    def __init__(self, *given: Any, settings: Settings, conditions: Conditions, repeats: bool, **more: Any) -> None:
        super().__init__(*given, settings=settings.policy, **more)
        self._whole = settings
        self._joining = Joining(settings.learning, reward=settings.reward, has_texts=settings.log.text != "none")
        self._conditions, self._repeats = conditions, repeats
        #: (decisions after which it comes, decision, outcome of its arm)
        self._waiting: deque[tuple[int, Decision, Logged]] = deque()

    def _quality(self, row: Logged, *, of: Decision) -> float:
        """The row's quality; if rows repeat, 1 with this chance and else 0, by the decision's id."""
        quality = row.reward.quality
        return float(chance_of(of.id, event="right") < quality) if self._repeats else quality

    def warm(self, row: Logged) -> None:
        quality = self._quality(row, of=self._numbered(self._numbered(row, self.decided), self.seed).decision)
        value = row.reward.value + quality - row.reward.quality
        super().warm(replace(row, reward=replace(row.reward, quality=quality, value=value)))

    def _decision(self, row: Logged) -> Decision:
        """Decisions on a question that repeats have ids of their own."""
        return super()._decision(self._numbered(row, self.decided) if self._repeats else row)

    @staticmethod
    def _numbered(row: Logged, number: int) -> Logged:
        return replace(row, decision=replace(row.decision, id=decision_id(row, seed=number)))

    def step(self, question: int) -> Decision:
        """Learn what has come meanwhile, then decide."""
        self._learn_until(self.decided)
        return super().step(question)

    def reveal(self, decision: Decision, *, row: Logged) -> None:
        """Learn the outcome now, or store it until it is due."""
        # a label that is not late is learned before the next decision, which is the one of number decided
        self._waiting.append((self.decided + self._conditions.late, decision, row))

    def shares(self, world: World, places: Indices) -> Matrix:
        """What the policy chooses for these rows of the world, without a floor, after all labels have come."""
        self._learn_until(None)
        queries = [table_query(world.table.rows[place]) for place in places]
        needs = "features" in self.policy.needs
        features = world.features[places] if needs and world.features is not None else None
        shares, fault = greedy_shares(self.policy, queries, features=features, arms=world.table.arms)
        self.fault = self.fault or fault
        return shares

    def _learn_until(self, now: int | None) -> None:
        while self._waiting and (now is None or self._waiting[0][0] <= now):
            _, decision, row = self._waiting.popleft()
            is_wrong = chance_of(decision.id, event="wrong") < self._conditions.wrong
            quality = self._quality(row, of=decision)
            quality = 1.0 - quality if is_wrong else quality
            at = decision.made_at
            outcome = make_outcome(decision_id=decision.id, now=at, status="answered", steps=row.reward.cost)
            rating = make_feedback(
                feedback_id=FeedbackId("rating"),
                rating=quality,
                source="code",
                decision_id=decision.id,
                settings=self._whole,
                now=at,
            )
            joined = JoinedDecision(decision=decision, outcome=outcome, feedback=(rating,))
            has_features = decision.features is not None
            basis = Basis(now=at, needs_features=has_features, encoder_hash=decision.encoder_hash)
            learned = self._joining.adjust(AdjustedRow(joined=joined), basis=basis)
            if not isinstance(learned, AdjustedRow) or learned.example is None:
                raise RuntimeError(f"not learned: {learned}")
            self.labels += self.learn(decision, learned.example.reward)


def cut(world: World, *, seed: int, questions: int = QUESTIONS) -> tuple[Indices, Indices]:
    """The rows to ask and the rest, by the seed: alike for every policy."""
    order = np.random.default_rng([seed, 11]).permutation(len(world.table.rows))
    count = int(ASKED * len(order))
    count = count if world.repeats else min(questions, count)
    return order[:count], order[count:]


def passed(task: Task, *, world: World) -> Judged:
    """The pass; its places are those of the world's table."""
    questions, warm = task.conditions.questions, task.conditions.warm
    asked, rest = cut(world, seed=task.seed, questions=questions)
    arms = world.table.arms
    incumbent = None if task.mode == COLD else arms[world.reference(task.mode)]
    values = {"context": world.context, "reward": {"weight": world.weight}, "policy": {"incumbent": incumbent}}
    settings = Settings.model_validate({**values, "learning": {"wait_s": 0.0}})
    name, is_apart = task.policy.removesuffix(APART), task.policy.endswith(APART)
    facts: Mapping[str, Mapping[str, Json]] = {} if is_apart else {str(arm): own for arm, own in world.facts.items()}
    features = None if world.features is None else world.features[asked]
    part = replace(world.table, rows=tuple(world.table.rows[place] for place in asked))
    rows = table_rows(
        part, features=features, encoder_hash=world.encoder_hash, reward=settings.reward, label=settings.policy.label
    )
    chosen = settings.policy.model_copy(update={"name": name})
    policy = untrained_policy(replace(settings.policy_definition, settings=chosen, facts=facts))
    check_arms(policy, arms=arms, where=name)
    learning = ConditionedLearning(
        policy,
        rows=rows,
        settings=settings,
        seed=task.seed,
        labelled=task.conditions.labelled,
        conditions=task.conditions,
        repeats=world.repeats,
    )
    random, count = np.random.default_rng(task.seed), len(asked)
    order = random.integers(count, size=questions) if world.repeats else random.permutation(count)
    for place in order[:warm]:
        for row in rows[place * len(arms) : (place + 1) * len(arms)]:
            learning.warm(row)
    for place in order[warm:]:
        learning.step(int(place))
    shares = learning.shares(world, rest)
    played = learning.played()
    if played.fault is not None:
        raise RuntimeError(f"{task.policy} in {world.name}: {played.fault}")
    found = {each.name: getattr(played, each.name) for each in fields(played)} | {"order": asked[played.order]}
    return Judged(**found, test=rest, shares=shares)
