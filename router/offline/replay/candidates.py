"""Candidates of a replay that learn or read questions: their settings, and their probabilities on every row."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ragbandit.router.config.settings import FLOORS, Settings
from ragbandit.router.learning.examples import policy_of
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.offline.estimation import Choices, Flags, Progress
from ragbandit.router.offline.estimation.bandit_log import Log, folds_of
from ragbandit.router.offline.logs.batches import DECIDED, LINE, PARTS, RESTARTS, row_named
from ragbandit.router.offline.logs.values import converted, mapping
from ragbandit.router.offline.replay.opening import MemoryLog
from ragbandit.router.offline.replay.parts import imported
from ragbandit.router.offline.replay.plan import CURRENT, CandidatePmf, CandidateSpec, ResolvedPlan
from ragbandit.router.policies import CONSERVATIVE, known_policies, make_policy
from ragbandit.router.policies.base import Policy, apply
from ragbandit.router.policies.checks import check_arms
from ragbandit.router.policies.draw import Drawn, drawn_by_arms, outputs_of
from ragbandit.router.storage.rows.conversion import of_known
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import (
    ArmName,
    Budget,
    FeatureRows,
    Matrix,
    PolicyLabel,
    Query,
    Reward,
    SnapshotInfo,
    Update,
)

#: maximum number of questions in one call of a policy
ASKED_AT_ONCE = 256
PROGRESS_STEP = 64
#: columns that policies read, besides the features
_READ: Final = ("id", "text", "context", "tenant", "budget", "arm", "arms", "pmf", "cost_weight", "reward", "made_at")


def lessons(log: Log, *, place: str) -> list[Update]:
    """The update that each row teaches, at the cost weight of its decision. Raises InvalidInput for a bad context."""
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
            cost_weight=row.get("cost_weight"),
        )
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
                reward=_reward(row["reward"]),
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


def check_candidate(candidate: CandidateSpec, *, arms: Sequence[ArmName]) -> None:
    """Raise ConfigError if a policy would fall back: it names an unknown arm, or was trained for other arms."""
    policy = make_policy(candidate.what, params=candidate.params)
    try:
        check_arms(policy, arms=arms, where=candidate.name)
    except ConfigError as error:
        if error.field is None or error.field.count(".") != 1:  # the remedy below is not for an inner policy's params
            raise
        if "--param" in (error.remedy or ""):
            raise
        remedy = f"{error.remedy}; then give --param {error.field}=VALUE"
        raise ConfigError(error.message, field=error.field, remedy=remedy) from error


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
        weight: float | None,
        share: float = 1.0,
    ) -> None:
        """weight: cost weight; None for each row's own. share: share of the log's rows that the policy learns."""
        self.policy, self.log, self.updates = policy, log, updates
        self.features = features if "features" in policy.needs else None
        self._settings, self._weight = settings, weight
        self._columns = {arm: index for index, arm in enumerate(log.arms)}
        self.faults = 0
        self.reason: str | None = None
        self.share = share
        self.refused: set[int] = set()

    def ask(self, rows: Choices, *, weight: float | None = None) -> Matrix:
        """Probabilities as served now, with floors, shape (len(rows), K). weight: None for the constructor's weight."""
        weight = self._weight if weight is None else weight
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
            outputs, arms=arms, seeds=[0] * len(batch), settings=self._settings, seen=self.policy.seen
        )
        for draw in draws:
            if draw.fault is not None:
                self.faults += 1
                self.reason = self.reason or draw.fault
        return draws

    def learn(self, index: int) -> None:
        update, changes = self.updates[index], dict[str, Any]()
        if self.features is not None:
            changes["features"] = self.features[index]
        if self._weight is not None:
            changes["query"] = replace(update.query, cost_weight=self._weight)
            changes["reward"] = update.reward.at(self._weight)
        if update.decided is not None:
            changes["decided"] = round(update.decided * self.share)
        if not apply(self.policy, replace(update, **changes)):
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


MakeCandidatePolicy = Callable[[], CandidatePolicy]


def crossfitted(
    weights: Sequence[float | None],
    *,
    name: str,
    make: MakeCandidatePolicy,
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
    updates = lessons(log.log, place=log.place)

    def make() -> CandidatePolicy:
        copy = make_policy(policy.algorithm, params=policy.params)
        features = log.log.features
        return CandidatePolicy(
            copy, log=log.log, updates=updates, features=features, settings=settings, weight=None, share=log.share
        )

    pmfs, notes = crossfitted(
        [None, *weights], name=name, make=make, folds_of_rows=folds, folds=int(folds.max()) + 1, progress=progress
    )
    return dict(zip((name, *weights.values()), pmfs, strict=True)), notes


def load(spec: CandidateSpec, *, files: SnapshotFiles) -> tuple[Policy, SnapshotInfo]:
    """Load the snapshot of a version. Raises InvalidInput if it does not exist, SnapshotError if it is broken."""
    if not files.exists(spec.what):
        remedy = f"use fixed:ARM, column:KEY, a version, or one of {', '.join(known_policies())}"
        raise InvalidInput(f"{spec.what!r} is no policy and no snapshot in {files.root}", field="policy", remedy=remedy)
    return files.load(spec.what)


def progressive_validation(
    spec: CandidateSpec, *, make: MakeCandidatePolicy, log: MemoryLog, judged: Flags, progress: Progress
) -> CandidatePmf:
    """Ask a candidate about every row while the candidate learns the log in order.

    Before each row, the candidate has learned as many rows as the served policy had (`learned_before`).
    judged: rows to ask about, shape (n,); other rows are only learned, and get probability 0.
    """
    candidate = make()
    pmf = np.zeros(log.log.pmf.shape)
    before = learned_before(log)
    order = np.argsort(before, kind="stable")
    order = order[judged[order]]
    learned = 0
    for done, index in enumerate(order):
        while learned < before[index]:
            candidate.learn(learned)
            learned += 1
        pmf[index] = candidate.ask(order[done : done + 1])[0]
        if done % PROGRESS_STEP == 0:
            progress(f"{spec.name}: rows", done, len(order))
    progress(f"{spec.name}: rows", len(order), len(order))
    return CandidatePmf(described=f"{spec.what}, learning while it goes", pmf=pmf, notes=notes_of(candidate))


def learned_before(log: MemoryLog) -> Choices:
    """How many rows the served policy had learned when it decided each row, shape (n,).

    The seq in the row's version gives the number. If the row was decided from another ledger, its index is the number.
    """
    counts = np.arange(len(log.log))
    seqs = np.maximum.accumulate(seqs_of(log.log))  # a file need not be sorted by seq
    for at, (version, policy) in enumerate(zip(log.log.fields["version"], log.log.fields["policy"], strict=True)):
        label, _, suffix = version.partition("-")
        seq = suffix.partition("-")[0]
        if label == (log.ledger or policy) == policy and seq.isdecimal():
            counts[at] = min(at, int(np.searchsorted(seqs, int(seq), side="right")))
    return counts


def seqs_of(log: Log) -> Choices:
    """The position of each row in its ledger; the line number if the file has no seqs, shape (n,)."""
    for name in ("seq", LINE):
        if name in log.batch.schema.names and not log.batch.column(name).null_count:
            return np.asarray(log.batch.column(name).to_numpy(), dtype=np.intp)
    return np.arange(1, len(log) + 1)


def served_policy(spec: CandidateSpec, *, settings: Settings) -> Policy:
    """Make the untrained policy that a service with these settings would use. Raises ConfigError."""
    changes: dict[str, Any] = {"name": spec.what, "params": dict(spec.params)}
    if spec.what == CONSERVATIVE:  # its params name the incumbent
        changes["incumbent"] = None
    policy = settings.policy.model_copy(update=changes)
    return policy_of(settings.model_copy(update={"policy": policy}))


def settings_in_force(settings: Settings, *, arms: Sequence[ArmName], floor: float | None) -> Settings:
    """The settings with this floor, unless it is None, and without an incumbent that the log lacks."""
    changes: dict[str, Any] = {} if floor is None else {"floor": floor, "cold_start_floor": 0.0}
    if settings.policy.incumbent not in arms:
        changes["incumbent"] = None
    return settings.model_copy(update={"policy": settings.policy.model_copy(update=changes)})


def service_note(settings: Settings) -> str:
    policy = settings.policy
    floor = f"{FLOORS:g} / arms" if policy.floor is None else f"{policy.floor:g}"
    note = f"policies and snapshots are judged as they would be served: floor {floor}"
    if policy.cold_start_floor > 0.0 and policy.cold_start_outcomes:
        note += f", {policy.cold_start_floor:g} for an arm until it has {policy.cold_start_outcomes} learned outcomes"
    if policy.incumbent is not None:
        note += f"; policies by name are held back to {policy.incumbent} (harm {policy.harm:g})"
    if policy.holdback is not None:
        note += f"; {policy.holdback.arm} has a holdback of {policy.holdback.share:g}"
    return note


def current_settings(log: MemoryLog, *, resolved: ResolvedPlan, settings: Settings) -> Settings | None:
    """The settings of the serving policy if this policy is the baseline (see `Plan.baseline`), else None."""
    if resolved.plan.baseline not in (CURRENT, None):
        return None
    if log.recorded.serving is not None or resolved.plan.baseline == CURRENT:
        return log.recorded.serving or settings
    served = (log.log.fields["policy"] == settings.policy.label) & ~imported(log.log)
    return settings if served.any() else None


def rows_to_judge(log: MemoryLog, *, snapshots: Sequence[SnapshotInfo], learn: bool) -> tuple[Flags, list[str]]:
    """Returns (rows to judge, shape (n,); notes on the other rows). Raises InvalidInput if no row is left.

    Three kinds of rows are not judged: decisions before `log.since`; questions that a snapshot has learned, because an
    estimate on them would be too optimistic; and, if policies learn along the log (`learn`), imported rows in a log
    that has other rows too, because the policy has learned other rows of the same question.
    """
    array, notes = log.log, list[str]()
    judged = np.ones(len(array), dtype=np.bool_) if log.since is None else array.made_at >= log.since
    elsewhere = judged & imported(array)
    if learn and elsewhere.any() and (judged & ~elsewhere).any():
        judged &= ~elsewhere
        notes.append(f"{np.count_nonzero(elsewhere):,} rows were imported: policies learn them, none is judged on them")
    seen = np.zeros(len(array), dtype=np.bool_)
    for info in snapshots:
        # A new ledger learns all earlier decisions of its store.
        is_own = np.array([(log.ledger or policy) == info.policy for policy in array.fields["policy"]], dtype=np.bool_)
        learned = np.where(is_own, seqs_of(array) <= info.last_seq, array.made_at <= info.made_at)
        seen |= judged & np.isin(array.questions, array.questions[learned])
    if not seen.any():
        return judged, notes
    count = int(np.count_nonzero(seen))
    if count == np.count_nonzero(judged):
        message = f"all {count} rows were learned by a snapshot, or ask questions that it has learned"
        remedy = "judge an older version, log more traffic, or name the policy instead, which is cross-fitted"
        raise InvalidInput(message, field="policy", remedy=remedy)
    reason = "a snapshot has learned them, or may have, or has learned their question"
    return judged & ~seen, [*notes, f"{count} rows are left out: {reason}"]
