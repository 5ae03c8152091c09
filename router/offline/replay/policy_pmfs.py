"""Probabilities of policies on the rows of a log. Copies of a policy are cross-fitted: each learns some questions, and
is asked about the others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ragbandit.router.config.learning import PolicyDefinition, PolicySettings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.encoders.feature_cache import embed_texts
from ragbandit.router.learning.examples import make_update
from ragbandit.router.offline.estimation import Progress
from ragbandit.router.offline.replay.opening import MemoryLog
from ragbandit.router.offline.replay.plan import CandidateSpec, Plan
from ragbandit.router.policies import CONSERVATIVE, untrained_policy
from ragbandit.router.policies.base import Policy, apply_update
from ragbandit.router.policies.draw import DrawResult, draw_each, outputs_of
from ragbandit.router.storage.sql.json_columns import object_at
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import Decision, Indices, Json, Matrix, ModelPick, PolicyLabel, Query, Sent, Update

MakeEncoder = Callable[[], Encoder]

#: maximum number of questions in one call of a policy
ASKED_AT_ONCE = 256


def row_updates(log: MemoryLog, *, plan: Plan) -> list[Update]:
    """The update of each row, with its question, and its reward at the plan's weight of cost."""
    updates = []
    for index, row in enumerate(log.rows):
        decision, asked = row.decision, row.decision.query
        # Rewards are not read at a request's own weight, since a budget may have raised it.
        own = plan.weight is None and decision.cost_weight is not None
        weight = plan.usual_weight if own else plan.weight
        update = make_update(
            decision,
            row.reward if weight is None else row.reward.at(weight),
            label=PolicyLabel("replay"),
            seq=index + 1,
            now=decision.made_at,
            decided=row.decided,
            restarts=row.restarts,
        )
        query = Query(
            text=asked.text,
            id=decision.id,
            context=asked.context,
            budget=asked.budget,
            tenant=asked.tenant,
            cost_weight=plan.weight,
            sent=Sent(pick=_pick(decision)),
        )
        features = None if log.log.features is None else log.log.features[index]
        updates.append(replace(update, query=query, features=features))
    return updates


def _pick(decision: Decision) -> Mapping[str, Json]:
    """A model's pick of the arm, as the service hands it to a policy; {} if no model was asked."""
    return decision.query.sent.pick or object_at(decision.facts, ModelPick.key)


class CandidatePolicy:
    """A policy under evaluation: gives probabilities for rows, learns rows, and counts its faults."""

    def __init__(
        self,
        policy: Policy,
        *,
        log: MemoryLog,
        updates: Sequence[Update],
        settings: PolicySettings,
        share: float,
    ) -> None:
        """share: share of the log's rows that the policy learns."""
        self.policy, self.updates = policy, updates
        self._features = log.log.features if "features" in policy.needs else None
        self._settings, self._share = settings, share * log.share
        self._columns = {arm: index for index, arm in enumerate(log.log.arms)}
        self.faults = 0
        self.reason: str | None = None
        self.refused: set[int] = set()

    def ask(self, rows: Indices) -> Matrix:
        """Probabilities as served now, with floors, shape (len(rows), K)."""
        pmf = np.zeros((len(rows), len(self._columns)))
        for start in range(0, len(rows), ASKED_AT_ONCE):
            batch = rows[start : start + ASKED_AT_ONCE]
            for number, draw in enumerate(self._draw(batch), start=start):
                pmf[number, [self._columns[arm] for arm in self.updates[rows[number]].arms]] = draw.pmf
        return pmf

    def _draw(self, batch: Indices) -> list[DrawResult]:
        queries = [self.updates[index].query for index in batch]
        arms = [self.updates[index].arms for index in batch]
        features = None if self._features is None else self._features[batch]
        outputs = outputs_of(self.policy, queries, features=features, arms=arms)
        draws = draw_each(outputs, arms=arms, seeds=None, settings=self._settings, learned=self.policy.seen)
        for draw in draws:
            if draw.fault is not None:
                self.faults += 1
                self.reason = self.reason or draw.fault
        return draws

    def learn(self, index: int) -> None:
        update = self.updates[index]
        if update.decided is not None:
            update = replace(update, decided=round(update.decided * self._share))
        if not apply_update(self.policy, update):
            self.refused.add(index)


def notes_of(*candidates: CandidatePolicy) -> tuple[str, ...]:
    notes = []
    faults = sum(candidate.faults for candidate in candidates)
    refused = set[int]().union(*(candidate.refused for candidate in candidates))
    if faults:
        reason = next(candidate.reason for candidate in candidates if candidate.reason)
        notes.append(f"{faults} decisions were the fallback's: {reason}")
    if refused:
        notes.append(f"the policy would not learn {len(refused)} rows")
    return tuple(notes)


def cross_fit(
    log: MemoryLog,
    *,
    name: str,
    make: Callable[[], Policy],
    updates: Sequence[Update],
    folds: Indices,
    settings: PolicySettings,
    progress: Progress,
) -> tuple[Matrix, tuple[str, ...]]:
    """Cross-fit a policy: a copy learns all folds except one, and gives probabilities for that fold.

    make: makes an untrained copy. folds: the fold of each row, shape (n,). settings: give the floors.
    Returns (probabilities (n, K), notes on faults).
    """
    candidates, pmf = list[CandidatePolicy](), np.zeros(log.log.pmf.shape)
    count = int(folds.max()) + 1
    total = len(folds) * count
    for fold in range(count):
        share = float(np.mean(folds != fold))
        candidate = CandidatePolicy(make(), log=log, updates=updates, settings=settings, share=share)
        for done, index in enumerate(np.flatnonzero(folds != fold)):
            candidate.learn(int(index))
            if done % ASKED_AT_ONCE == 0:
                progress(f"{name} learns", fold * len(folds) + done, total)
        rows = np.flatnonzero(folds == fold)
        pmf[rows] = candidate.ask(rows)
        candidates.append(candidate)
    progress(f"{name} learns", total, total)
    return pmf, notes_of(*candidates)


def with_features(log: MemoryLog, *, encoder: MakeEncoder | None, progress: Progress) -> MemoryLog:
    """The log with the encoder's features of its questions. Raises InvalidInput, ConfigError."""
    for row in log.rows:
        if not row.decision.query.text.strip():
            message = f"{row.decision.id} has no question, and its features are missing or another encoder's"
            remedy = "log questions or features, or judge candidates that read neither, with --baseline logged"
            raise InvalidInput(message, field="text", remedy=remedy)
    if encoder is None:
        remedy = "pass encoder=, a function that makes an encoder"
        raise ConfigError("a policy needs features", field="encoder", remedy=remedy)
    loaded, texts = encoder(), [row.decision.query.text for row in log.rows]
    features = embed_texts(texts, encoder=loaded, progress=progress)
    return replace(log, log=replace(log.log, features=features, encoder_hash=loaded.hash))


def make_served_policy(spec: CandidateSpec, *, definition: PolicyDefinition) -> Policy:
    """Make the untrained policy of a service with this definition. Raises ConfigError."""
    changes: dict[str, Any] = {"name": spec.what, "params": dict(spec.params)}
    if spec.what == CONSERVATIVE:  # a param of this policy names the incumbent
        changes["incumbent"] = None
    return untrained_policy(replace(definition, settings=definition.settings.model_copy(update=changes)))
