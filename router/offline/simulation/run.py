"""One run: a pass over the training rows that reveals only the drawn arm's outcome, then predictions of the test rows.

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
from ragbandit.router.offline.logs.tables import LabelledTable, arm_rows, table_query
from ragbandit.router.offline.processes import process_executor
from ragbandit.router.offline.simulation.measure import rewards_of
from ragbandit.router.policies import CONSERVATIVE, make_policy, protected
from ragbandit.router.policies.base import Policy, TableTrained, apply
from ragbandit.router.policies.draw import Drawn, Offer, draw, made_decisions, outputs_of, seed_of
from ragbandit.router.serving.checks.reports import made_feedback, made_outcome
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

BATCH = 64
#: time of a run's first decision; each decision takes a second. Policies read no times, but rows of a ledger have them
EPOCH = 1_700_000_000.0

Places = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationData:
    """Data that all runs share. Every process receives it once."""

    table: LabelledTable
    judged: LabelledTable  #: table whose rows are predicted; its arms are in the order of `table`
    #: number of folds, each predicted after the others are learned; 1 if the whole `table` is learned first
    folds: int
    settings: Settings
    #: features of the questions of `table` and of `judged`, shape (n, d); None if no policy needs them
    features: FeatureRows | None = None
    judged_features: FeatureRows | None = None
    encoder_hash: str = ""
    warm: int = 0  #: number of first rows of a pass that are learned with the outcomes of all arms
    labelled: float = 1.0  #: probability that the outcome of a decision is learned, in (0, 1]


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationRun:
    """A policy with its cost weight, a seed, and the fold to predict (0 if the judged rows are another table)."""

    policy: str
    params: Mapping[str, Json]
    weight: float
    seed: int
    fold: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    test: Places
    #: shape (tests, arms): 1 for the arm with the best score, shared by equal arms; the pmf of a policy without scores
    shares: Matrix
    order: Places  #: indices of the learned rows, in the order of the pass; empty without a pass
    drawn: Places  #: index of the arm drawn for each row of `order`
    earned: Vector  #: reward of each row of `order`
    faults: int  #: number of decisions by the fallback, in the pass and in the test
    refused: int
    reason: str | None
    #: True if the policy was trained on the outcomes of all arms (TableTrained), and did not learn row by row
    full_information: bool
    labels: int = 0  #: number of decisions of the pass whose outcome was learned


def split_of(world: SimulationData, *, seed: int, fold: int) -> tuple[Places, Places]:
    """Returns (rows to learn, in the order of the pass; judged rows to predict), the same for every policy."""
    order = np.random.default_rng(seed).permutation(len(world.table.rows))
    if world.folds == 1:
        return order, np.arange(len(world.judged.rows))
    mine = np.arange(len(order)) % world.folds == fold
    return order[~mine], order[mine]


def decision_id(row: TableRow, *, seed: int, fold: int) -> DecisionId:
    """The id of a row's decision. It differs by seed and fold, so that draws differ, and hides the row's id."""
    digest = hashlib.sha256(f"{seed}/{fold}/{row.id}".encode("utf-8", "surrogatepass")).hexdigest()
    return DecisionId(f"simulated-{digest[:40]}")


def chance_of(decision_id: DecisionId, *, what: str) -> float:
    """A number in [0, 1) for an event of a decision, the same for every policy and independent of the draw."""
    return (seed_of(f"{what}/{decision_id}") >> 11) / 2**53


def play(
    run: SimulationRun,
    *,
    world: SimulationData,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    learning: "Learning | None" = None,
) -> Played:
    """Learn, then predict. progress: receives (training rows done, total). learning: None for a new `Learning`."""
    train, test = split_of(world, seed=run.seed, fold=run.fold)
    learning = learning or Learning(run, world=world)
    policy = learning.policy
    full_information = isinstance(policy, TableTrained)
    if not isinstance(policy, TableTrained):
        for row in train[: world.warm]:
            learning.show(int(row))
        for done, row in enumerate(train[world.warm :], start=world.warm + 1):
            learning.step(int(row))
            progress(done, len(train))
    elif policy.params.get("trained") is None:  # a policy that `ragbandit policy train` has made is judged as it is
        # A policy must not learn from the data set's name, which serves reports only; an id might contain this name.
        policy.fit([replace(world.table.rows[row], id="", dataset=None) for row in train], progress=progress)
    drawn = learning.predicted(test)
    return Played(
        test=test,
        shares=np.array([_greedy_shares(one) for one in drawn]),
        order=np.array(learning.order, dtype=np.intp),
        drawn=np.array(learning.drawn, dtype=np.intp),
        earned=np.array(learning.earned, dtype=np.float64),
        faults=learning.faults,
        refused=learning.refused,
        reason=learning.reason,
        full_information=full_information,
        labels=learning.labels,
    )


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

    def show(self, place: int) -> None:
        """Learn the outcomes of all arms on one training row, as `ragbandit advise --warm` does."""
        rows = arm_rows(
            self.world.table.rows[place],
            arms=self.world.table.arms,
            features=self._features(place),
            encoder_hash=self.world.encoder_hash,
            settings=self.settings,
            now=EPOCH,
        )
        for row in rows:
            if not apply(self.policy, self._update(row.decision, row.reward)):
                self._refuse("the policy would not learn it")

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

    def predicted(self, places: Places) -> list[Drawn]:
        """The policy's output on the test rows, without a floor."""
        arms, rows, features = self.world.table.arms, self.world.judged.rows, self.world.judged_features
        drawn: list[Drawn] = []
        for start in range(0, len(places), BATCH):
            batch = places[start : start + BATCH]
            outputs = outputs_of(
                self.policy,
                [table_query(rows[place]) for place in batch],
                features=features[batch] if self._sees and features is not None else None,
                arms=[arms] * len(batch),
            )
            fallback = self.settings.policy.fallback
            drawn += [draw(output, arms=arms, floor=0.0, fallback=fallback, seed=0) for output in outputs]
        for one in drawn:
            self._note(one.fault)
        return drawn

    def _decision(self, row: TableRow, *, place: int) -> Decision:
        arms = self.world.table.arms
        query = replace(table_query(row), id=decision_id(row, seed=self.run.seed, fold=self.run.fold))
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
    """The policy as it is served: held back by the incumbent, if one is set and the policy is not fitted to a table."""
    policy = make_policy(run.policy, params=run.params)
    if isinstance(policy, TableTrained) or settings.policy.incumbent is None or run.policy == CONSERVATIVE:
        return policy
    return protected(run.policy, params=run.params, settings=settings.policy)


def _greedy_shares(drawn: Drawn) -> tuple[float, ...]:
    if drawn.scores is None:
        return drawn.pmf
    best = max(drawn.scores)
    ties = sum(score == best for score in drawn.scores)
    return tuple(1.0 / ties if score == best else 0.0 for score in drawn.scores)


#: in a process of the pool: data of its runs, set when the process begins
_world: SimulationData | None = None


def played(
    runs: Sequence[SimulationRun],
    *,
    world: SimulationData,
    jobs: int,
    here: frozenset[str] = frozenset(),
    progress: Progress = no_progress,
) -> list[Played]:
    """The result of every run, in the order of the runs.

    jobs: number of processes. here: names of policies whose runs stay in this process, since a model uses all cores.
    """
    away = [] if jobs == 1 else [index for index, run in enumerate(runs) if run.policy not in here]
    results: dict[int, Played] = {}
    progress("runs", 0, len(runs))
    if away:
        with process_executor(min(jobs, len(away)), begin=_begin, given=(world,)) as pool:
            futures = {pool.submit(_play, runs[index]): index for index in away}
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                progress("runs", len(results), len(runs))
    for index, run in enumerate(runs):
        if index not in results:
            name = f"{run.policy}, seed {run.seed}, fold {run.fold}"
            results[index] = play(run, world=world, progress=partial(progress, name))
            progress("runs", len(results), len(runs))
    return [results[index] for index in range(len(runs))]


def _begin(world: SimulationData) -> None:
    global _world
    _world = world


def _play(run: SimulationRun) -> Played:
    assert _world is not None
    return play(run, world=_world)
