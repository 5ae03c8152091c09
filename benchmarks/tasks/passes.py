"""A policy decides the tasks of a world, by turn or by task, and learns the reported outcomes.

The functions of the live service decide and learn, without a database. The outcome of a task is known after its last
turn. With the unit `task` it is learned once, with the cost of all turns. With the unit `turn` every turn is a decision
that learns the task's outcome with the cost of the turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.tasks.worlds import ARMS, Questions, Task, World
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.adjustments import AdjustedRow, Basis
from ragbandit.router.learning.examples import Joining, make_update
from ragbandit.router.policies import untrained_policy
from ragbandit.router.policies.base import apply_update
from ragbandit.router.policies.draw import Offer, make_decisions, outputs_of
from ragbandit.router.serving.checks.reports import make_feedback, make_outcome
from ragbandit.shared.types import Decision, DecisionUnit, JoinedDecision, Matrix, PolicyLabel, Query, Vector

#: time of the first task, and seconds between two tasks; longer than any task and its idle time
EPOCH: Final = 1_700_000_000.0
TASK_S: Final = 10_000.0
#: secret of the store, so that a service draws the same arms
SECRET: Final = bytes(32)

Array = npt.NDArray[np.float64]


def settings_of(world: World, *, unit: DecisionUnit, **more: Any) -> Settings:
    """The settings of a service for this world."""
    arms = {arm: {"run_by": "caller"} for arm in ARMS}
    weight = world.turn_weight if unit == "turn" else world.weight
    return Settings.model_validate({"arms": arms, "reward": {"weight": weight, "cost": {"dollars": 1.0}}, **more})


def decision_id(world: World, number: int, turn: int) -> str:
    return f"task-{world.seed}-{number}-{turn}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Decisions of a pass: n tasks or turns, in their order. Vectors have shape (n,), matrices (n, arms)."""

    task: npt.NDArray[np.intp]  #: number of the task
    question: npt.NDArray[np.intp]
    arm: npt.NDArray[np.intp]
    pmf: Matrix
    dollars: Vector
    solved: Vector  #: 1 if the task was solved, else 0
    reported: npt.NDArray[np.bool_]
    expected_quality: Matrix  #: predictions of the policy; NaN without one
    expected_cost: Matrix
    #: expected reward of the decision's part of the task as it was served, and with always the same arm
    served: Vector
    always: Matrix


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """A pass. Vectors have shape (tasks,)."""

    world: World
    unit: DecisionUnit
    dollars: Vector
    chance: Vector  #: chance that the task is solved
    changes: Vector  #: share of the later turns that have another arm than the turn before
    rows: Rows

    @property
    def reward(self) -> Vector:
        """Expected reward of each task."""
        return self.chance - self.world.weight * self.dollars


def always(world: World) -> tuple[Matrix, Matrix]:
    """(dollars, chance to be solved) of each task if always the same arm answers, shape (tasks, arms)."""
    arms = range(len(ARMS))
    dollars = [[task.dollars([arm] * len(task.kind)).sum() for arm in arms] for task in world.tasks]
    chance = [world.chance[task.kind].mean(axis=0) for task in world.tasks]
    return np.array(dollars), np.array(chance)


def played(world: World, *, unit: DecisionUnit, known: Questions) -> Played:
    """Serve all tasks of the world."""
    one = _Pass(world, unit=unit, known=known)
    for number, task in enumerate(world.tasks):
        one.serve(number, task)
    return Played(
        world=world,
        unit=unit,
        dollars=np.array(one.dollars),
        chance=np.array(one.chance),
        changes=np.array(one.changes),
        rows=Rows(**{name: np.array(values) for name, values in one.columns.items()}),
    )


@dataclass(kw_only=True)
class _Columns:
    """Lists that become vectors."""

    dollars: list[float] = field(default_factory=list)
    chance: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)
    columns: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in Rows.__dataclass_fields__})


class _Pass(_Columns):
    def __init__(self, world: World, *, unit: DecisionUnit, known: Questions) -> None:
        super().__init__()
        self._world, self._unit, self._known = world, unit, known
        self._settings = settings_of(world, unit=unit)
        self._joining = Joining(
            self._settings.learning, reward=self._settings.reward, has_texts=self._settings.log.text != "none"
        )
        self._policy = untrained_policy(self._settings.policy_definition)
        self._seq = self._decided = 0

    def serve(self, number: int, task: Task) -> None:
        turns = len(task.kind)
        decisions = self._decisions(number, task, turns=turns if self._unit == "turn" else 1)
        drawn = [ARMS.index(decision.arm) for decision in decisions]
        arms = drawn if self._unit == "turn" else drawn * turns
        by_turn = task.dollars(arms)
        chance = float(self._world.chance[task.kind, arms].mean())
        solved = float(task.luck < chance)
        dollars = by_turn if self._unit == "turn" else np.array([by_turn.sum()])
        if task.is_reported:
            for decision, spent in zip(decisions, dollars.tolist(), strict=True):
                self._learn(decision, dollars=spent, solved=solved)
        self.dollars.append(float(by_turn.sum()))
        self.chance.append(chance)
        self.changes.append(float(np.mean(np.diff(arms) != 0)) if turns > 1 else 0.0)
        self._add_rows(number, task, decisions, drawn=drawn, dollars=dollars, solved=solved, chance=chance)

    def _decisions(self, number: int, task: Task, *, turns: int) -> list[Decision]:
        places = task.question[:turns]
        queries = [
            Query(text=self._known.texts[place], id=decision_id(self._world, number, turn))
            for turn, place in enumerate(places.tolist())
        ]
        features = self._known.features[places]
        self._decided += turns
        made = make_decisions(
            [Offer(query=query, run_by="caller", arms=ARMS) for query in queries],
            outputs=outputs_of(self._policy, queries, features=features, arms=[ARMS] * turns),
            features=features,
            settings=self._settings.policy,
            learned=self._policy.seen,
            version="simulated",
            encoder_hash=self._known.encoder_hash,
            now=EPOCH + TASK_S * number,
            secret=SECRET,
        )
        faults = [decision.fault for decision in made if decision.fault is not None]
        if faults:
            raise RuntimeError(faults[0])
        return made

    def _learn(self, decision: Decision, *, dollars: float, solved: float) -> None:
        key, at = decision.id, decision.made_at
        outcome = make_outcome(decision_id=key, now=at, status="answered", cost={"dollars": dollars})
        feedback = make_feedback(decision_id=key, rating=solved, source="code", settings=self._settings, now=at)
        joined = JoinedDecision(decision=decision, outcome=outcome, feedback=(feedback,))
        basis = Basis(now=at, needs_features=True, encoder_hash=decision.encoder_hash)
        learned = self._joining.adjust(AdjustedRow(joined=joined), basis=basis)
        if not isinstance(learned, AdjustedRow) or learned.example is None:
            raise RuntimeError(f"not learned: {learned}")
        self._seq += 1
        label = PolicyLabel(self._settings.policy.label)
        update = make_update(
            decision, learned.example.reward, label=label, seq=self._seq, now=at, decided=self._decided
        )
        if not apply_update(self._policy, update):
            raise RuntimeError("the policy would not learn an outcome")

    def _add_rows(
        self,
        number: int,
        task: Task,
        decisions: Sequence[Decision],
        *,
        drawn: Sequence[int],
        dollars: Vector,
        solved: float,
        chance: float,
    ) -> None:
        turns = len(task.kind)
        fixed = np.stack([task.dollars([arm] * turns) for arm in range(len(ARMS))], axis=1)
        worth = self._world.chance[task.kind]
        if self._unit == "task":
            fixed, worth = fixed.sum(axis=0, keepdims=True), worth.mean(axis=0, keepdims=True)
        alone = self._earned(worth, dollars=fixed)
        by_decision = self._earned(np.full(len(dollars), chance), dollars=dollars)
        for place, decision in enumerate(decisions):
            is_task = self._unit == "task"  # then the mean over the draw is known
            served = float(np.dot(decision.pmf, alone[0])) if is_task else by_decision[place]
            row = {
                "task": number,
                "question": task.question[place],
                "arm": drawn[place],
                "pmf": decision.pmf,
                "dollars": dollars[place],
                "solved": solved,
                "reported": task.is_reported,
                "expected_quality": _prediction(decision, "quality"),
                "expected_cost": _prediction(decision, "cost"),
                "served": served,
                "always": alone[place],
            }
            for name, value in row.items():
                self.columns[name].append(value)

    def _earned(self, chance: Array, *, dollars: Array) -> Array:
        """Expected reward of decisions whose task is solved with this chance."""
        setting = self._settings.reward
        solved, failed = (
            np.clip(quality - setting.weight * dollars, setting.minimum, setting.maximum) for quality in (1.0, 0.0)
        )
        earned: Array = chance * solved + (1.0 - chance) * failed
        return earned


def _prediction(decision: Decision, name: str) -> Any:
    return decision.facts.get(name) or (np.nan,) * len(ARMS)
