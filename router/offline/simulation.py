"""A simulated service on a full-information table: each question is asked once, and only the drawn arm's outcome is
learned.

The functions of the live service decide and learn (`made_decisions`, `join`, `made_update`, `apply`), without database.
Every decision is made by a policy that has learned all earlier decisions.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.examples import Example, join, made_update
from ragbandit.router.offline.estimation import Progress, no_progress
from ragbandit.router.offline.logs.tables import LabelledTable, table_query
from ragbandit.router.offline.processes import process_executor
from ragbandit.router.policies import CONSERVATIVE, make_policy, protected
from ragbandit.router.policies.base import Policy, apply
from ragbandit.router.policies.draw import Offer, made_decisions, outputs_of, seed_of
from ragbandit.router.serving.checks.reports import made_feedback, made_outcome
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import (
    Decision,
    DecisionId,
    FeatureRows,
    Features,
    Feedback,
    FeedbackId,
    FeedbackSource,
    JoinedDecision,
    Json,
    Matrix,
    PolicyLabel,
    Reward,
    TableRow,
    Update,
    Vector,
)

#: time of a run's first decision; each decision takes a second. Policies read no times, but rows of a ledger have them
EPOCH = 1_700_000_000.0

Places = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationData:
    """Data that all runs share. Every process receives it once."""

    table: LabelledTable
    settings: Settings
    #: features of the questions, shape (n, d); None if no policy needs them
    features: FeatureRows | None = None
    encoder_hash: str = ""
    labelled: float = 1.0  #: probability that the outcome of a decision is learned, in (0, 1]


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationRun:
    """A policy with its cost weight, and the seed of the order and the draws."""

    policy: str
    params: Mapping[str, Json]
    weight: float
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """A pass over the table."""

    order: Places  #: indices of the rows, in the order of the pass
    drawn: Places  #: index of the arm drawn for each row of `order`
    earned: Vector  #: reward of each row of `order`
    faults: int = 0  #: number of decisions by the fallback
    refused: int = 0  #: number of updates that the policy refused
    reason: str | None = None  #: the first fault or refusal
    labels: int = 0  #: number of decisions whose outcome was learned


def rewards_of(table: LabelledTable, *, weight: float, price: float, bounds: tuple[float, float]) -> Matrix:
    """Reward of every arm, shape (n, arms), as `ragbandit.router.learning.reward` computes it."""
    return np.clip(table.correct - weight * (price * table.steps), *bounds)


def check_labelled(share: float) -> None:
    if not 0.0 < share <= 1.0:
        remedy = "use more than 0 and at most 1, for example 0.3"
        raise InvalidInput(f"{share!r} is no share of the decisions", field="labelled", remedy=remedy)


def decision_id(row: TableRow, *, seed: int) -> DecisionId:
    """The id of a row's decision. It differs by seed, so that draws differ, and hides the row's id."""
    digest = hashlib.sha256(f"{seed}/0/{row.id}".encode("utf-8", "surrogatepass")).hexdigest()
    return DecisionId(f"simulated-{digest[:40]}")


def chance_of(decision_id: DecisionId, *, what: str) -> float:
    """A number in [0, 1) for an event of a decision, the same for every policy and independent of the draw."""
    return (seed_of(f"{what}/{decision_id}") >> 11) / 2**53


def play(
    run: SimulationRun, *, world: SimulationData, progress: Callable[[int, int], None] = lambda _done, _total: None
) -> Played:
    """A pass in the order of the seed, which is the same for every policy. progress: receives (rows done, total)."""
    learning = Learning(run, world=world)
    order = np.random.default_rng(run.seed).permutation(len(world.table.rows))
    for done, row in enumerate(order, start=1):
        learning.step(int(row))
        progress(done, len(order))
    return learning.played()


class Learning:
    def __init__(self, run: SimulationRun, *, world: SimulationData) -> None:
        self.run, self.world = run, world
        self.policy: Policy = _policy_of(run, settings=world.settings)
        reward = world.settings.reward.model_copy(update={"weight": run.weight})
        self.settings = world.settings.model_copy(update={"reward": reward})
        bounds = (reward.minimum, reward.maximum)
        self._rewards = rewards_of(world.table, weight=run.weight, price=reward.cost["steps"], bounds=bounds)
        self._sees = "features" in self.policy.needs
        self.order: list[int] = []
        self.drawn: list[int] = []
        self.earned: list[float] = []
        self.steps = self.seq = self.labels = self.faults = self.refused = 0
        self.reason: str | None = None

    def step(self, place: int) -> Decision:
        row = self.world.table.rows[place]
        decision = self._decision(row, place=place)
        self.steps += 1
        if self.is_labelled(decision):
            self.learn(decision, quality=row.correct[decision.arm], steps=row.steps[decision.arm])
        self.order.append(place)
        self.drawn.append(self.world.table.arms.index(decision.arm))
        self.earned.append(float(self._rewards[place, self.drawn[-1]]))
        return decision

    def is_labelled(self, decision: Decision) -> bool:
        """Whether the outcome is learned. This depends only on the id, so it does not differ between policies."""
        return chance_of(decision.id, what="labelled") < self.world.labelled

    def played(self) -> Played:
        return Played(
            order=np.array(self.order, dtype=np.intp),
            drawn=np.array(self.drawn, dtype=np.intp),
            earned=np.array(self.earned, dtype=np.float64),
            faults=self.faults,
            refused=self.refused,
            reason=self.reason,
            labels=self.labels,
        )

    def _decision(self, row: TableRow, *, place: int) -> Decision:
        arms = self.world.table.arms
        query = replace(table_query(row), id=decision_id(row, seed=self.run.seed))
        features = self._features(place)
        rows = None if features is None else features[None, :]
        [decision] = made_decisions(
            [Offer(query=query, run_by="caller", arms=arms)],
            outputs=outputs_of(self.policy, [query], features=rows, arms=[arms]),
            features=[features],
            settings=self.settings,
            seen=self.policy.seen,
            version="simulated",
            encoder_hash=self.world.encoder_hash,
            now=EPOCH + self.steps,
        )
        self._note(decision.fault)
        return decision

    def _features(self, place: int) -> Features | None:
        return self.world.features[place] if self._sees and self.world.features is not None else None

    def learn(self, decision: Decision, *, quality: float, steps: float) -> None:
        """Learn the outcome of the drawn arm, as if a caller had reported it."""
        at = decision.made_at
        joined = JoinedDecision(
            decision=decision,
            outcome=made_outcome(decision_id=decision.id, now=at, status="answered", steps=steps),
            feedback=self.feedback(decision, quality=quality),
        )
        verdict = join(
            joined,
            settings=self.settings,
            needs_features=self._sees,
            encoder_hash=self.world.encoder_hash,
            now=at + self.settings.learning.wait_s,  # after the time in which feedback is collected
        )
        if not isinstance(verdict, Example):
            self._refuse("the learner waits" if verdict is None else verdict.reason)
        elif apply(self.policy, self._update(decision, verdict.reward)):
            self.labels += 1
        else:
            self._refuse("the policy would not learn it")

    def feedback(self, decision: Decision, *, quality: float) -> tuple[Feedback, ...]:
        return (self.judgement(decision, quality=quality, source="code"),)

    def judgement(self, decision: Decision, *, quality: float, source: FeedbackSource) -> Feedback:
        key, at = FeedbackId(f"{source}-{decision.id}"), decision.made_at
        return made_feedback(
            decision_id=decision.id, settings=self.settings, now=at, feedback_id=key, rating=quality, source=source
        )

    def _update(self, decision: Decision, reward: Reward) -> Update:
        self.seq += 1
        label = PolicyLabel(self.settings.policy.label)
        return made_update(decision, reward, label=label, seq=self.seq, now=decision.made_at, decided=self.steps)

    def _note(self, fault: str | None) -> None:
        if fault is not None:
            self.faults += 1
            self.reason = self.reason or fault

    def _refuse(self, reason: str) -> None:
        self.refused += 1
        self.reason = self.reason or reason


def _policy_of(run: SimulationRun, *, settings: Settings) -> Policy:
    """The policy as it is served: held back by the incumbent, if one is set."""
    if settings.policy.incumbent is None or run.policy == CONSERVATIVE:
        return make_policy(run.policy, params=run.params)
    return protected(run.policy, params=run.params, settings=settings.policy)


#: in a process of the pool: data of its runs, set when the process begins
_world: SimulationData | None = None


def played(
    runs: Sequence[SimulationRun], *, world: SimulationData, jobs: int, progress: Progress = no_progress
) -> list[Played]:
    """The pass of every run, in the order of the runs. jobs: number of processes."""
    if jobs == 1:
        return [play(run, world=world, progress=partial(progress, f"{run.policy}, seed {run.seed}")) for run in runs]
    results: dict[int, Played] = {}
    with process_executor(min(jobs, len(runs)), begin=_begin, given=(world,)) as pool:
        futures = {pool.submit(_play, run): index for index, run in enumerate(runs)}
        for future in as_completed(futures):
            results[futures[future]] = future.result()
            progress("runs", len(results), len(runs))
    return [results[index] for index in range(len(runs))]


def _begin(world: SimulationData) -> None:
    global _world
    _world = world


def _play(run: SimulationRun) -> Played:
    assert _world is not None
    return play(run, world=_world)
