"""Simulated passes: a policy decides known questions one by one, and learns the outcome of the drawn arm only.

The functions of the live service decide and learn (`make_decisions`, `make_update`, `apply_update`), without database.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ragbandit.router.config.learning import PolicySettings, RewardSettings
from ragbandit.router.learning.examples import make_update
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.logs.tables import LabelledTable, arm_rows
from ragbandit.router.policies.base import Policy, apply_update
from ragbandit.router.policies.draw import Offer, draw, make_decisions, outputs_of, seed_of
from ragbandit.shared.types import (
    ArmName,
    Decision,
    DecisionId,
    FeatureRows,
    Indices,
    Matrix,
    PolicyLabel,
    Query,
    Reward,
    Vector,
)

#: time of a pass's first decision; each decision takes a second. Policies read no times, but rows of a ledger have them
EPOCH: Final = 1_700_000_000.0

#: largest number of questions that a policy is asked at once
BATCH: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """A pass, question by question."""

    order: Indices  #: number of each question
    drawn: Indices  #: index of the drawn arm
    earned: Vector  #: reward of this arm
    labels: int = 0  #: number of decisions whose outcome was learned
    fault: str | None = None  #: why the fallback decided, or an outcome was not learned; the first reason


def table_rows(
    table: LabelledTable, *, features: FeatureRows | None, encoder_hash: str, reward: RewardSettings, label: str
) -> list[Logged]:
    """A row for each question and arm. Rows of a question keep its id in the table, so that draws can be repeated."""
    common: dict[str, Any] = {"arms": table.arms, "encoder_hash": encoder_hash, "reward": reward, "label": label}
    rows: list[Logged] = []
    for place, row in enumerate(table.rows):
        own = None if features is None else features[place]
        made = arm_rows(row, features=own, now=EPOCH, **common)
        rows += [replace(one, decision=replace(one.decision, id=DecisionId(row.id))) for one in made]
    return rows


def decision_id(row: Logged, *, seed: int) -> DecisionId:
    """The id of the decision on a row's question. It differs by seed, so that draws differ, and hides the row's id."""
    digest = hashlib.sha256(f"{seed}/0/{row.decision.id}".encode("utf-8", "surrogatepass")).hexdigest()
    return DecisionId(f"simulated-{digest[:40]}")


def chance_of(decision_id: DecisionId, *, event: str) -> float:
    """A pseudo-random number in [0, 1) for an event of a decision, the same for every policy. event: its name"""
    return (seed_of(f"{event}/{decision_id}") >> 11) / 2**53


class Learning:
    """A policy that learns while it decides.

    rows: the outcomes of all arms on the first question, then on the second, ...; the arms always in the same order.
    labelled: probability that the outcome of a decision is learned, in (0, 1].
    """

    def __init__(
        self, policy: Policy, *, rows: Sequence[Logged], settings: PolicySettings, seed: int = 0, labelled: float = 1.0
    ) -> None:
        self.policy, self.rows, self.settings, self.seed, self.labelled = policy, rows, settings, seed, labelled
        self.arms = rows[0].decision.arms
        self.order: list[int] = []
        self.drawn: list[int] = []
        self.decided = self.learned = self.labels = 0
        self.fault: str | None = None

    def warm(self, row: Logged) -> None:
        """Learn a row as a warm start does."""
        self.decided += 1
        self.learn(row.decision, row.reward)

    def step(self, question: int) -> Decision:
        """Decide a question, and learn the outcome of the drawn arm if it is labelled. question: its index"""
        decision = self._decision(self.rows[question * len(self.arms)])
        self.decided += 1
        self.order.append(question)
        self.drawn.append(self.arms.index(decision.arm))
        self.fault = self.fault or decision.fault
        if self.is_labelled(decision):
            self.reveal(decision, row=self.rows[question * len(self.arms) + self.drawn[-1]])
        return decision

    def _decision(self, row: Logged) -> Decision:
        known = row.decision
        query = replace(known.query, id=decision_id(row, seed=self.seed))
        features = known.features if "features" in self.policy.needs else None
        rows = None if features is None else features[None, :]
        [decision] = make_decisions(
            [Offer(query=query, run_by="caller", arms=self.arms)],
            outputs=outputs_of(self.policy, [query], features=rows, arms=[self.arms]),
            features=[features],
            settings=self.settings,
            learned=self.policy.seen,
            version="simulated",
            encoder_hash=known.encoder_hash,
            now=EPOCH + len(self.order),
        )
        return decision

    def is_labelled(self, decision: Decision) -> bool:
        """Whether the outcome is learned. All policies get the same outcomes, since only the id decides."""
        return chance_of(decision.id, event="labelled") < self.labelled

    def reveal(self, decision: Decision, *, row: Logged) -> None:
        """Learn the outcome of the drawn arm. row: this arm's row of the question."""
        self.labels += self.learn(decision, row.reward)

    def learn(self, decision: Decision, reward: Reward) -> bool:
        """Learn a reward. Returns False if the policy would not learn it."""
        self.learned += 1
        label = PolicyLabel(self.settings.label)
        update = make_update(
            decision, reward, label=label, seq=self.learned, now=decision.made_at, decided=self.decided
        )
        is_learned = apply_update(self.policy, update)
        if not is_learned:
            self.fault = self.fault or "the policy would not learn an outcome"
        return is_learned

    def played(self) -> Played:
        order, drawn = np.array(self.order, dtype=np.intp), np.array(self.drawn, dtype=np.intp)
        places = order * len(self.arms) + drawn
        earned = np.array([self.rows[place].reward.value for place in places], dtype=np.float64)
        return Played(order=order, drawn=drawn, earned=earned, labels=self.labels, fault=self.fault)


def greedy_shares(
    policy: Policy, queries: Sequence[Query], *, features: FeatureRows | None, arms: tuple[ArmName, ...]
) -> tuple[Matrix, str | None]:
    """The choices of a policy without exploration: (share of each arm for each question, fault).

    The shares, shape (n, arms), are 1 for the arm with the best score, divided evenly between ties; the pmf of a policy
    without scores. The fault is the first reason why the fallback decided; None if it never did.
    """
    rows: list[Vector] = []
    fault: str | None = None
    for start in range(0, len(queries), BATCH):
        batch = slice(start, start + BATCH)
        asked = queries[batch]
        own = None if features is None else features[batch]
        for output in outputs_of(policy, asked, features=own, arms=[arms] * len(asked)):
            drawn = draw(output, arms=arms, floor=0.0, fallback=None, seed=None)
            fault = fault or drawn.fault
            scores = np.array(drawn.pmf if drawn.scores is None else drawn.scores)
            best = scores if drawn.scores is None else scores == scores.max()
            rows.append(best / best.sum())
    return np.array(rows, dtype=np.float64).reshape(len(queries), len(arms)), fault


def break_even(passes: Sequence[Played], *, fixed: Vector) -> tuple[int | None, float]:
    """When routing has earned what a fixed arm earns, and stays ahead.

    Returns (number of questions in the median pass, or None if fewer than half of the passes get there; share of the
    passes that do). fixed: reward of the fixed arm for every question.
    """
    even = []
    for one in passes:
        # not 0: equal rewards that are summed in another order differ by rounding
        behind = np.flatnonzero(np.cumsum(one.earned - fixed[one.order]) < -1e-9)
        first = int(behind[-1]) + 2 if len(behind) else 1
        if first <= len(one.order):
            even.append(first)
    middle = (len(passes) + 1) // 2  # the lower median
    return (sorted(even)[middle - 1] if len(even) >= middle else None), len(even) / len(passes)


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns (mean, its standard error; None for one value)."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, float(np.std(values, ddof=1)) / math.sqrt(len(values))
