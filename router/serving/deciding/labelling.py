"""Decisions that people are asked to label: those whose label changes most, each by a probability that is logged.

A label changes learning most if the two best arms are close and their difference is uncertain; it changes the report
most if the decision weighs most in the difference to the arm a (of the holdback, or the incumbent). If D is the
difference of the two best arms in posterior samples, and the arm was drawn with the probability p,

    learning = sd(D) * share of the samples in which the second is ahead,    estimate = |1 - [arm = a] / p|,
    use = learning / its mean + estimate / its mean,    q = clip(c * use, LEAST * share, 1),

share = labels a day / decisions a day, means over the newest questions, and c such that q is `share` on average there.
Without samples, or without an arm a, that part is the same for all questions.

Learning and estimates weigh each label by share / q (`label_weight`), so that labels represent all questions (Horvitz
and Thompson 1952). Replay and the evidence of versions, which do not weigh, take only the uniform part of the queue:
the labels that the least q would have drawn.
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
from sqlalchemy import func, select

from ragbandit.router.learning.sources import LEAST_LABELLED
from ragbandit.router.policies.base import PolicyOutput
from ragbandit.router.serving.deciding.question import Question
from ragbandit.router.storage.rows.outcome_rows import drawn_for
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.types import Matrix

#: questions whose uses c follows from
_NEWEST: Final = 300
#: most decisions that are counted for the traffic of a day
_COUNTED: Final = 10_000
_DAY_S: Final = 86_400.0
#: the traffic is counted again after that long, seconds
_COUNT_S: Final = 60.0
#: steps of c towards its share: each is a fixed-point step, and a few suffice
_STEPS: Final = 12


class LabelSampler:
    """Asks for `per_day` labels a day. `choose` is called by the thread that decides, `refresh` by another."""

    def __init__(self, per_day: int, *, against: str | None = None) -> None:
        """against: the arm a."""
        self.per_day, self.against = per_day, against
        #: labels for each decision, in (0, 1]
        self.share = 1.0
        #: c over the mean of each part of the use; 0: not known yet
        self._scales: tuple[float, float] = (0.0, 0.0)
        self._uses: deque[tuple[float, float]] = deque(maxlen=_NEWEST)
        self._count_at = 0.0

    def choose(
        self, questions: Sequence[Question], outputs: Sequence[PolicyOutput | Exception], *, secret: bytes
    ) -> None:
        """Note in each question whose arm was drawn its q, the share, and whether it is asked for: draw < q."""
        share, (learning, estimate) = self.share, self._scales
        for question, output in zip(questions, outputs, strict=True):
            decision = question.decision
            if decision is None or len(decision.arms) < 2 or question.stay is not None or question.query.forced:
                continue
            weight = 1.0 / decision.propensity if decision.arm == self.against else 0.0
            learned = 1.0 if decision.fault is not None or isinstance(output, Exception) else _learning(output)
            use = learned, abs(1.0 - weight) if self.against in decision.arms else 0.0
            self._uses.append(use)
            wanted = learning * use[0] + estimate * use[1] if learning + estimate > 0.0 else share
            q = min(1.0, max(LEAST_LABELLED * share, wanted))
            draw = drawn_for("label", decision.id, secret=secret)
            uniform = draw < LEAST_LABELLED * share
            question.label = {"asked": draw < q, "draw": draw, "q": q, "share": share, "uniform": uniform}

    def refresh(self, database: Database, *, now: float) -> None:
        """Follow the traffic and the newest questions. Raises StoreError."""
        if time.monotonic() >= self._count_at:
            self._count_at = time.monotonic() + _COUNT_S
            self.share = min(1.0, self.per_day / max(1.0, _decisions_per_day(database, now=now)))
        self._scales = scaled(np.array(list(self._uses)).reshape(-1, 2), share=self.share)


def _learning(output: PolicyOutput) -> float:
    """How much a label of this question may change what is learned; 1 if the policy has no posterior."""
    if output.scores is None or output.deviations is None or len(output.scores) < 2:
        return 1.0
    first, second = np.argsort(-np.array(output.scores), kind="stable")[:2]
    ahead = output.scores[first] - output.scores[second] + output.deviations[first] - output.deviations[second]
    return float(ahead.std() * (ahead < 0.0).mean())


def scaled(parts: Matrix, *, share: float) -> tuple[float, float]:
    """C over the mean of each part; 0 where no use is known, or everything is asked for. parts: shape (n, 2)."""
    if share >= 1.0 or not len(parts) or parts.max() <= 0.0:
        return 0.0, 0.0
    each = [1.0 / mean if mean > 0.0 else 0.0 for mean in parts.mean(axis=0).tolist()]
    uses = parts @ np.array(each)
    scale: float = share / float(uses.mean())
    for _ in range(_STEPS):
        scale *= share / float(np.minimum(np.maximum(scale * uses, LEAST_LABELLED * share), 1.0).mean())
    return scale * each[0], scale * each[1]


def _decisions_per_day(database: Database, *, now: float) -> float:
    """Decisions of the last day; if more than _COUNTED, by the pace of the newest ones."""
    made_at = decisions.c.made_at
    with database.read() as connection:
        edge = connection.execute(select(made_at).order_by(made_at.desc()).offset(_COUNTED - 1).limit(1)).scalar()
        if edge is not None and edge > now - _DAY_S:
            return _COUNTED * _DAY_S / max(now - float(edge), 1.0)
        lately = select(func.count()).select_from(decisions).where(made_at > now - _DAY_S)
        return float(connection.execute(lately).scalar_one())
