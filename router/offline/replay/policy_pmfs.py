"""Probabilities of policies and snapshots on the rows of a log. Copies of a policy are cross-fitted: each learns some
questions, and is asked about the others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.encoders.feature_cache import embedded
from ragbandit.router.learning.examples import policy_of
from ragbandit.router.offline.estimation import Choices, Flags, Progress
from ragbandit.router.offline.estimation.bandit_log import Log, folds_of
from ragbandit.router.offline.logs.batches import row_named
from ragbandit.router.offline.logs.cells import converted, mapping
from ragbandit.router.offline.logs.columns import DECIDED, PARTS, RESTARTS
from ragbandit.router.offline.replay.opening import MemoryLog
from ragbandit.router.offline.replay.plan import CandidatePmf, CandidateSpec, Plan, served_name
from ragbandit.router.policies import CONSERVATIVE, make_policy
from ragbandit.router.policies.base import Policy, apply, serves_prices
from ragbandit.router.policies.draw import Drawn, drawn_by_arms, outputs_of
from ragbandit.router.storage.rows.conversion import of_known
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import Budget, FeatureRows, Matrix, PolicyLabel, Query, Reward, SnapshotInfo, Update

MakeEncoder = Callable[[], Encoder]

#: maximum number of questions in one call of a policy
ASKED_AT_ONCE = 256
#: columns that policies read, besides the features
_READ: Final = ("id", "text", "context", "tenant", "budget", "arm", "arms", "pmf", "cost_weight", "reward", "made_at")


def lessons(log: Log, *, place: str, plan: Plan) -> list[Update]:
    """The update that each row teaches, and its question, at the weight at which the plan reads rewards.

    Raises InvalidInput for a bad context.
    """
    batch, propensity, updates = log.batch, log.propensity, list[Update]()
    cells = batch.select([name for name in (*_READ, DECIDED, RESTARTS) if name in batch.schema.names]).to_pylist()
    for index, row in enumerate(cells):
        objects = {
            name: converted(mapping, row.get(name) or {}, field=f"{row_named(batch, index, place=place)} {name}")
            for name in ("context", "budget")
        }
        query = Query(
            text=row.get("text") or "",
            id=row["id"],
            context=objects["context"],
            budget=of_known(Budget, objects["budget"]),
            tenant=row.get("tenant") or "default",
            cost_weight=plan.weight,
        )
        # A request's own weight, which a budget may have raised, is not one at which rewards are read.
        weight = plan.usual_weight if plan.weight is None and row.get("cost_weight") is not None else plan.weight
        reward = _reward(row["reward"])
        updates.append(
            Update(
                policy=PolicyLabel("replay"),
                seq=index + 1,
                decision_id=row["id"],
                query=query,
                arm=row["arm"],
                arms=tuple(row["arms"]),
                pmf=tuple(row["pmf"]),
                scores=None,
                propensity=float(propensity[index]),
                reward=reward if weight is None else reward.at(weight),
                feedback_ids=(),
                features=None if log.features is None else log.features[index],
                made_at=row.get("made_at") or 0.0,
                imported=log.imported is not None and bool(log.imported[index]),
                decided=row.get(DECIDED),
                restarts=tuple(row.get(RESTARTS) or ()),
            )
        )
    return updates


def _reward(parts: Mapping[str, Any]) -> Reward:
    known = {name: value for name, value in parts.items() if value is not None and name in PARTS}
    objects = {name: converted(mapping, known.get(name) or {}, field=name) for name in ("terms", "surrogates")}
    return Reward(**{**known, **objects})


class CandidatePolicy:
    """A policy under evaluation: gives probabilities for rows, learns rows, and counts its faults."""

    def __init__(
        self,
        policy: Policy,
        *,
        log: Log,
        updates: Sequence[Update],
        features: FeatureRows | None,
        settings: Settings,
        share: float = 1.0,
    ) -> None:
        """share: share of the log's rows that the policy learns."""
        self.policy, self.log, self.updates = policy, log, updates
        self.features = features if "features" in policy.needs else None
        self._settings, self.share = settings, share
        self._columns = {arm: index for index, arm in enumerate(log.arms)}
        self.faults = 0
        self.reason: str | None = None
        self.refused: set[int] = set()

    def ask(self, rows: Choices, *, weight: float | None = None) -> Matrix:
        """Probabilities as served now, with floors, shape (len(rows), K).

        weight: cost weight; None for the weight of `updates`.
        """
        pmf = np.zeros((len(rows), len(self.log.arms)))
        for start in range(0, len(rows), ASKED_AT_ONCE):
            batch = rows[start : start + ASKED_AT_ONCE]
            for number, draw in enumerate(self._drawn(batch, weight=weight), start=start):
                pmf[number, [self._columns[arm] for arm in self.updates[rows[number]].arms]] = draw.pmf
        return pmf

    def _drawn(self, batch: Choices, *, weight: float | None) -> list[Drawn]:
        queries = [self.updates[index].query for index in batch]
        if weight is not None:
            queries = [replace(query, cost_weight=weight) for query in queries]
        arms = [self.updates[index].arms for index in batch]
        features = None if self.features is None else self.features[batch]
        outputs = outputs_of(self.policy, queries, features=features, arms=arms)
        draws = drawn_by_arms(
            outputs, arms=arms, seeds=[0] * len(batch), settings=self._settings.policy, seen=self.policy.seen
        )
        for draw in draws:
            if draw.fault is not None:
                self.faults += 1
                self.reason = self.reason or draw.fault
        return draws

    def learn(self, index: int) -> None:
        update = self.updates[index]
        if update.decided is not None:
            update = replace(update, decided=round(update.decided * self.share))
        if not apply(self.policy, update):
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


def crossfitted(
    weights: Sequence[float | None],
    *,
    name: str,
    make: Callable[[], CandidatePolicy],
    folds_of_rows: Choices,
    folds: int,
    progress: Progress,
    judged: Flags | None = None,
) -> tuple[list[Matrix], tuple[str, ...]]:
    """Cross-fit a policy: a copy learns all folds except one, and gives probabilities for that fold.

    weights: cost weights at which the copies are asked; None among them stands for the served weight.
    judged: rows to ask about, shape (n,); None for all rows. Other rows get probability 0.
    Returns (probabilities (n, K) for each weight, notes on faults).
    """
    candidates: list[CandidatePolicy] = []
    pmfs: list[Matrix] = []
    total = len(folds_of_rows) * folds
    for fold in range(folds):
        candidate = make()
        candidate.share *= float(np.mean(folds_of_rows != fold))
        for done, index in enumerate(np.flatnonzero(folds_of_rows != fold)):
            candidate.learn(int(index))
            if done % ASKED_AT_ONCE == 0:
                progress(f"{name} learns", fold * len(folds_of_rows) + done, total)
        rows = np.flatnonzero((folds_of_rows == fold) & (True if judged is None else judged))
        for at, weight in enumerate(weights):
            answers = candidate.ask(rows, weight=weight)
            if len(pmfs) == at:
                pmfs.append(np.zeros((len(folds_of_rows), answers.shape[1])))
            pmfs[at][rows] = answers
        candidates.append(candidate)
    progress(f"{name} learns", total, total)
    return pmfs, notes_of(*candidates)


@dataclass(frozen=True, kw_only=True)
class PolicyPmfs:
    """Probabilities of policies and snapshots on the rows of a log, 0 outside of the judged rows."""

    log: MemoryLog
    updates: Sequence[Update]
    judged: Flags
    plan: Plan
    settings: Settings
    encoder: MakeEncoder | None
    progress: Progress

    def learned(self, spec: CandidateSpec, *, policy: Policy) -> CandidatePmf:
        """Probabilities of a policy by name. It learns the rows that are not judged, too."""
        [pmf], notes = crossfitted(
            [None],
            name=spec.name,
            make=lambda: self._candidate(served_policy(spec, settings=self.settings), features=self.log.log.features),
            folds_of_rows=self.plan.folds_in(self.log.log),
            folds=self.plan.folds,
            progress=self.progress,
            judged=self.judged,
        )
        description = f"{spec.what}, each of {self.plan.folds} folds judged by what the others taught"
        if spec.current:  # the name of this candidate describes what it has learned
            return CandidatePmf(described=description, pmf=pmf, notes=notes)
        name = served_name(policy.algorithm, params=policy.params)
        return CandidatePmf(described=description, pmf=pmf, notes=notes, learned="folds", policy=name)

    def frozen(self, policy: Policy, info: SnapshotInfo) -> CandidatePmf:
        if self.plan.weight is not None and not serves_prices(policy):
            message = f"{info.version} has one weight of cost for all questions ({info.algorithm})"
            remedy = "leave --price out, or name the policy, which then learns this log at that price"
            raise InvalidInput(message, field="price", remedy=remedy)
        log, features = self.log.log, self.log.log.features
        if "features" in policy.needs and (features is None or log.encoder_hash != info.encoder_hash):
            settings, progress = self.settings, self.progress
            features, encoder_hash = encoded(log, encoder=self.encoder, settings=settings, progress=progress)
            if encoder_hash != info.encoder_hash:
                message = f"{info.version} was made with encoder {info.encoder_hash[:12]}, not {encoder_hash[:12]}"
                remedy = "configure the encoder that the snapshot was made with"
                raise InvalidInput(message, field="encoder", remedy=remedy)
        candidate, pmf = self._candidate(policy, features=features), np.zeros(log.pmf.shape)
        pmf[self.judged] = candidate.ask(np.flatnonzero(self.judged))
        description = f"{info.algorithm} after {info.last_seq} updates of {info.policy}"
        return CandidatePmf(described=description, pmf=pmf, notes=notes_of(candidate), learned="before")

    def _candidate(self, policy: Policy, *, features: FeatureRows | None) -> CandidatePolicy:
        common: dict[str, Any] = {"log": self.log.log, "updates": self.updates, "share": self.log.share}
        return CandidatePolicy(policy, features=features, settings=self.settings, **common)


def encoded(
    log: Log, *, encoder: MakeEncoder | None, settings: Settings, progress: Progress
) -> tuple[FeatureRows, str]:
    """Encode the questions. Returns (features, hash of the configured encoder)."""
    texts = log.batch.column("text").fill_null("").to_pylist() if "text" in log.batch.schema.names else [""] * len(log)
    for index, text in enumerate(texts):
        if not text.strip():
            key = log.batch.column("id")[index]
            message = f"{key} has no question, and its features are missing or another encoder's"
            remedy = "log questions or features, or judge candidates that read neither, with --baseline logged"
            raise InvalidInput(message, field="text", remedy=remedy)
    if encoder is None:
        remedy = "pass encoder=, a function that makes an encoder"
        raise ConfigError("a policy needs features", field="encoder", remedy=remedy)
    made = encoder()
    return embedded(texts, encoder=made, data_dir=settings.data_dir, progress=progress), made.hash


def served_policy(spec: CandidateSpec, *, settings: Settings) -> Policy:
    """Make the untrained policy that a service with these settings would use. Raises ConfigError."""
    changes: dict[str, Any] = {"name": spec.what, "params": dict(spec.params)}
    if spec.what == CONSERVATIVE:  # its params name the incumbent
        changes["incumbent"] = None
    policy = settings.policy.model_copy(update=changes)
    return policy_of(settings.model_copy(update={"policy": policy}))


def held_out_folds(log: MemoryLog, *, question: Choices, folds: int) -> Choices:
    """The fold of each row, by its question's text without context.

    question: number of each row's question; the same text with another context or tenant is another question. If there
    are fewer texts than folds, these numbers decide the folds.
    """
    by_hash = folds_of(log.log.questions, folds=folds)
    if len(np.unique(by_hash)) == folds:
        return by_hash
    texts, numbers = np.unique(log.log.questions, return_inverse=True)
    return np.asarray((question if len(texts) < folds else numbers) % folds, dtype=np.intp)


def crossfitted_policy(
    policy: Policy,
    weights: Mapping[float, str],
    *,
    name: str,
    log: MemoryLog,
    folds: Choices,
    settings: Settings,
    progress: Progress,
) -> tuple[dict[str, Matrix], tuple[str, ...]]:
    """Cross-fit untrained copies of a policy. Returns (probabilities, notes on faults).

    The probabilities, shape (n, K), have the key `name` at the served cost weight, and its label at each of `weights`.
    """
    updates = lessons(log.log, place=log.place, plan=Plan(usual_weight=settings.reward.weight))

    def make() -> CandidatePolicy:
        copy = make_policy(policy.algorithm, params=policy.params)
        common: dict[str, Any] = {"log": log.log, "features": log.log.features, "settings": settings}
        return CandidatePolicy(copy, updates=updates, share=log.share, **common)

    pmfs, notes = crossfitted(
        [None, *weights], name=name, make=make, folds_of_rows=folds, folds=int(folds.max()) + 1, progress=progress
    )
    return dict(zip((name, *weights.values()), pmfs, strict=True)), notes
