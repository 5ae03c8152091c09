"""Labels: chooses the decisions that people are asked to label, each with a probability q, which is logged.

A label helps learning most if the two best arms are close, and uncertain. Let D be the difference of their values in
the policy's posterior samples. A label helps the report most if its decision has a large weight in the comparison with
arm a, which is the arm of the holdback or the incumbent. Let p be the probability of the drawn arm, and `is_a` 1 if arm
a was drawn, else 0. `share` is labels a day / draws a day. With means over the newest questions, and the number c
for which the mean of q is `share`:

    learning = sd(D) * share of the samples in which the second arm is ahead,    estimate = |1 - is_a / p|,
    use = learning / its mean + estimate / its mean,    q = clip(c * use, LEAST_LABELLED * share, 1).

Policies without posterior samples have learning = 1. Questions to which arm a was not offered have estimate = 0. Labels
have the weight share / q, so that they represent all questions (Horvitz and Thompson 1952). Replay and the evidence of
versions use no weights, but only labels that would also have been chosen with the smallest q ("uniform").
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
from sqlalchemy import and_, case, func, select

from ragbandit.router.config.learning import PolicySettings
from ragbandit.router.learning.sources import LEAST_LABELLED
from ragbandit.router.policies.base import PolicyOutput
from ragbandit.router.serving.deciding.steps.step import Batch, Step
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.router.storage.access.shared_secrets import draw_number
from ragbandit.router.storage.rows.queried_facts import or_unfilled
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.types import MOST_FACTOR, ArmName, Decision, LabelRequest, Matrix

#: number of newest questions from which the means and c are computed
_NEWEST: Final = 300
#: maximum number of decisions and turns that are read for the estimate of draws per day
_COUNTED: Final = 10_000
_DAY_S: Final = 86_400.0


class Labels(Step):
    """Chooses decisions for `learning.labels_per_day` labels a day."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._per_day = 0
        #: arm a of the module's formulas; None without a holdback and without an incumbent
        self._against: str | None = None
        self._reset()

    def _reset(self) -> None:
        self.share = 1.0
        #: factors of `learning` and `estimate` in c * use, see `scales_of`; 0 before the first `refresh`
        self._scales: tuple[float, float] = (0.0, 0.0)
        self._uses: deque[tuple[float, float]] = deque(maxlen=_NEWEST)
        self._count_at = 0.0

    def configure(self, served: ServedPolicy) -> None:
        learning, policy = served.settings.learning, served.settings.policy
        against = compared_arm(policy)
        if (self._per_day, self._against) != (learning.labels_per_day, against):
            self._per_day, self._against = learning.labels_per_day, against
            self._reset()
        self.is_on = self._per_day > 0

    def after(self, batch: Batch) -> None:
        """Request a label for each drawn decision whose random `draw` is below q."""
        if batch.secret is None:
            return
        share, (learning, estimate) = self.share, self._scales
        for question, output in zip(batch.questions, batch.outputs, strict=True):
            decision = question.decision
            if decision is None or len(decision.arms) < 2 or not question.is_drawn or question.query.terms.is_spent:
                continue  # a label would teach the policy nothing
            learning_use = (
                1.0 if isinstance(output, Exception) or decision.fault is not None else _use_for_learning(output)
            )
            estimate_use = use_for_estimate(decision, against=self._against)
            self._uses.append((learning_use, estimate_use))
            q = learning * learning_use + estimate * estimate_use if learning + estimate > 0.0 else share
            q = min(1.0, max(LEAST_LABELLED * share, q))
            draw = draw_number("label", decision.id, secret=batch.secret)
            uniform = draw < LEAST_LABELLED * share
            question.add(LabelRequest(asked=draw < q, draw=draw, q=q, share=share, uniform=uniform))

    def refresh(self, *, arms: Sequence[ArmName], now: float) -> None:
        del arms
        if not self._per_day:
            return
        if time.monotonic() >= self._count_at:
            self._count_at = time.monotonic() + 60.0
            self.share = min(1.0, self._per_day / max(1.0, _draws_per_day(self.database, now=now)))
        self._scales = scales_of(np.array(list(self._uses)).reshape(-1, 2), share=self.share)


def use_for_estimate(decision: Decision, *, against: str | None) -> float:
    """The number `estimate` of the module's formulas."""
    if against not in decision.arms:
        return 0.0
    return abs(1.0 - (1.0 / decision.propensity if decision.arm == against else 0.0))


def compared_arm(policy: PolicySettings) -> str | None:
    """Arm a of the module's formulas; None without a holdback and without an incumbent."""
    return policy.incumbent if policy.holdback is None else policy.holdback.arm


def _use_for_learning(output: PolicyOutput) -> float:
    """The number `learning` of the module's formulas; 1 if the policy has no posterior samples."""
    if output.scores is None or output.deviations is None or len(output.scores) < 2:
        return 1.0
    first, second = np.argsort(-np.array(output.scores), kind="stable")[:2]
    ahead = output.scores[first] - output.scores[second] + output.deviations[first] - output.deviations[second]
    return float(ahead.std() * (ahead < 0.0).mean())


def scales_of(parts: Matrix, *, share: float, min_mean: float = LEAST_LABELLED) -> tuple[float, float]:
    """Returns (c / mean of the column `learning`, c / mean of the column `estimate`) for the c at which the mean
    probability is `share`. Both are 0 if there is no data, or if every decision gets a label.

    parts: `learning` and `estimate` of the newest questions, (questions, 2). min_mean: lower limit of q / share
    """
    if share >= 1.0 or not len(parts) or parts.max() <= 0.0:
        return 0.0, 0.0
    inverse = [1.0 / mean if mean > 0.0 else 0.0 for mean in parts.mean(axis=0).tolist()]
    uses = parts @ np.array(inverse)
    scale: float = share / float(uses.mean())
    for _ in range(12):  # fixed-point iterations
        scale *= share / float(np.minimum(np.maximum(scale * uses, min_mean * share), 1.0).mean())
    return scale * inverse[0], scale * inverse[1]


def _draws_per_day(database: Database, *, now: float) -> float:
    """Number of decisions of the last day that the policy drew, since only these are labelled. If there are more than
    _COUNTED decisions and turns, it is estimated from the newest ones.
    """
    is_spent = func.coalesce(decisions.c.budget_factor, 1.0) >= MOST_FACTOR
    drawn = or_unfilled(and_(decisions.c.arm_by.is_(None), decisions.c.turn_of.is_(None), ~is_spent))
    newest = select(decisions.c.made_at, case((drawn, 1), else_=0).label("drawn"))
    newest = newest.where(decisions.c.made_at > now - _DAY_S).order_by(decisions.c.made_at.desc())
    rows = newest.limit(_COUNTED).subquery()
    sums = select(func.count(), func.coalesce(func.sum(rows.c.drawn), 0), func.min(rows.c.made_at)).select_from(rows)
    with database.read() as connection:
        count, draws, oldest = connection.execute(sums).one()
    return float(draws) if count < _COUNTED else draws * _DAY_S / max(now - oldest, 1.0)
