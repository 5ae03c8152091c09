"""The judge's share: answers of the control arm are judged more often, since comparisons have too few of them.

Let p be the probability of the drawn arm, `is_a` 1 if the control arm was drawn, else 0, and `share` the setting
`judge.share`. An answer is judged with probability q = clip(c * |1 - is_a / p|, LEAST_JUDGED * share, 1); c makes the
mean of q equal `share`. Scores have the weight share / q. Replay uses only scores that the smallest q also draws.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from ragbandit.router.serving.deciding.steps.labels import compared_arm, scales_of, use_for_estimate
from ragbandit.router.serving.deciding.steps.step import Batch, Step
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.router.storage.access.shared_secrets import draw_number
from ragbandit.router.storage.sql.counters import stored_counts
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.types import ArmName, JudgeRequest

#: least probability of being judged / `judge.share`; the rest of the share goes to answers that the comparison needs
LEAST_JUDGED: Final = 0.8
#: number of newest questions from which the means and c are computed
_NEWEST: Final = 300


class JudgeShare(Step):
    """Draws the decisions that the judge scores, after the first `judge.first` ones."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._share, self._first, self._label = 0.0, 0, ""
        self._against: str | None = None
        self._uses: deque[float] = deque(maxlen=_NEWEST)
        #: c; 0 before the first `refresh`, and while every answer is judged
        self._scale = 0.0

    def configure(self, served: ServedPolicy) -> None:
        settings = served.settings
        against = compared_arm(settings.policy) if settings.judge.generator is not None else None
        if self._against != against:
            self._uses.clear()
            self._scale = 0.0
        self._share, self._first, self._against = settings.judge.share, settings.judge.first, against
        self._label = str(settings.policy.label)
        self.is_on = against is not None and 0.0 < self._share < 1.0

    def after(self, batch: Batch) -> None:
        if batch.secret is None or self._against is None:
            return
        share, scale = self._share, self._scale
        for question in batch.questions:
            decision = question.decision
            if decision is None or not question.is_drawn or self._against not in decision.arms:
                continue
            use = use_for_estimate(decision, against=self._against)
            self._uses.append(use)
            if scale == 0.0:
                continue
            q = min(1.0, max(LEAST_JUDGED * share, scale * use))
            draw = draw_number("judge", decision.id, secret=batch.secret)
            uniform = draw < LEAST_JUDGED * share
            question.add(JudgeRequest(asked=draw < q, draw=draw, q=q, share=share, uniform=uniform))

    def refresh(self, *, arms: Sequence[ArmName], now: float) -> None:
        del arms, now
        if not self.is_on:
            return
        scale = 0.0
        with self.database.read() as connection:
            counts = stored_counts(connection, label=self._label)
        if counts["learned"] + counts["judge_due"] >= self._first:
            uses = np.array([(0.0, use) for use in self._uses]).reshape(-1, 2)
            scale = scales_of(uses, share=self._share, min_mean=LEAST_JUDGED)[1]
        self._scale = scale
