"""Candidates of a replay that learn or read questions: their settings, and their probabilities on every row."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa

from ragbandit.router.config.settings import FLOORS, Settings
from ragbandit.router.learning.examples import made_update, policy_of
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.offline.estimation import Choices, Flags, Progress
from ragbandit.router.offline.estimation.bandit_log import Log, folds_of
from ragbandit.router.offline.logs import BadRow, Logged
from ragbandit.router.offline.logs.batches import LINE, BatchSpec, check_choice, decoded, drawn, offered_arms
from ragbandit.router.offline.logs.parquet import rows_batch
from ragbandit.router.offline.replay.plan import CURRENT, CandidatePmf, CandidateSpec, LoggedPolicies, ResolvedPlan
from ragbandit.router.policies import CONSERVATIVE, known_policies, make_policy
from ragbandit.router.policies.base import Policy, apply
from ragbandit.router.policies.checks import check_arms
from ragbandit.router.policies.draw import Drawn, drawn_by_arms, outputs_of
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import IMPORTED, ArmName, Decision, FeatureRows, Matrix, PolicyLabel, SnapshotInfo, Update

#: maximum number of questions in one call of a policy
ASKED_AT_ONCE = 256
PROGRESS_STEP = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLog:
    rows: Sequence[Logged]
    log: Log
    #: label of the ledger that learned the rows; None if only the decisions name a ledger
    ledger: str | None = None
    described: str = "a log in memory"
    since: float | None = None
    skipped: Sequence[BadRow] = ()
    undrawn: int = 0  #: number of rows that were left out because their arm was not drawn; see `drawn`
    logged: LoggedPolicies = field(default_factory=dict)
    #: settings that the service uses now; None for a file, and for a ledger that contains only imported rows
    serving: Settings | None = None
    share: float = 1.0  #: share of the log's rows that are in memory; below 1 for a sample

    @property
    def sampled_from(self) -> int | None:
        return round((len(self.rows) + self.undrawn) / self.share) if self.share < 1.0 else None

    def with_columns(self, *, fields: Sequence[str], own: Sequence[str]) -> "MemoryLog":
        """Add fields for segments, and columns with candidates' pmfs. Raises InvalidInput if a row lacks a pmf."""
        if not fields and not own:
            return self
        spec = BatchSpec(
            arms=self.log.arms, mixed_arms=True, fields=("version", *fields), own=tuple(own), features=True
        )
        return replace(self, log=decoded(rows_batch(self.rows, [*spec.columns, LINE]), spec=spec))


def memory_log(rows: Iterable[Logged], *, mixed_arms: bool = False, **about: Any) -> MemoryLog:
    """Check rows and keep them in memory, also as arrays. Decisions whose arm was not drawn are left out.

    mixed_arms: True if rows may offer different arms. about: other fields of MemoryLog. Raises InvalidInput.
    """
    all_rows = list(rows)
    spec = BatchSpec(arms=(), mixed_arms=mixed_arms, fields=("version",), features=True)
    batch = rows_batch(all_rows, [*spec.columns, LINE])
    was_drawn = drawn(batch)
    batch = batch.filter(pa.array(was_drawn))
    if not batch.num_rows:
        remedy = "feedback must have been learned before it can be replayed"
        raise InvalidInput("the log has no rows", field="log", remedy=remedy)
    spec = replace(spec, arms=tuple(offered_arms(batch if mixed_arms else batch.slice(0, 1))))
    check_choice(spec.arms)
    return MemoryLog(
        rows=list(compress(all_rows, was_drawn)),
        log=decoded(batch, spec=spec),
        undrawn=int(np.count_nonzero(~was_drawn)),
        **about,
    )


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


def update_of(
    row: Logged, *, features: FeatureRows | None, index: int, weight: float | None, share: float = 1.0
) -> Update:
    """Make the update that a policy learns from a row.

    features: features of all rows; None for the features stored in the decision.
    weight: cost weight; None for the row's own.
    share: share of the log's rows that this policy learns, in (0, 1].
    """
    decision, reward = priced(row.decision, weight=weight), row.reward
    if features is not None:
        decision = replace(decision, features=features[index])
    reward = reward if weight is None else reward.at(weight)
    decided = None if row.decided is None else round(row.decided * share)
    label, now = PolicyLabel("replay"), decision.made_at
    return made_update(decision, reward, label=label, seq=index + 1, now=now, decided=decided, restarts=row.restarts)


def priced(decision: Decision, *, weight: float | None) -> Decision:
    return decision if weight is None else replace(decision, cost_weight=weight)


class CandidatePolicy:
    """A policy under evaluation: gives probabilities for rows, learns rows, and counts its faults."""

    def __init__(
        self, policy: Policy, *, log: MemoryLog, features: FeatureRows | None, settings: Settings, weight: float | None
    ) -> None:
        self.policy, self.log = policy, log
        self.features = features if "features" in policy.needs else None
        self._settings, self._weight = settings, weight
        self._columns = {arm: index for index, arm in enumerate(log.log.arms)}
        self.faults = 0
        self.reason: str | None = None
        self.share = log.share
        self.refused: set[int] = set()

    def ask(self, rows: Choices, *, weight: float | None = None) -> Matrix:
        """Probabilities as served now, with floors, shape (len(rows), K). weight: None for the constructor's weight."""
        weight = self._weight if weight is None else weight
        pmf = np.zeros((len(rows), len(self.log.log.arms)))
        for start in range(0, len(rows), ASKED_AT_ONCE):
            batch = rows[start : start + ASKED_AT_ONCE]
            for number, draw in enumerate(self._drawn(batch, weight=weight), start=start):
                arms = self.log.rows[rows[number]].decision.arms
                pmf[number, [self._columns[arm] for arm in arms]] = draw.pmf
        return pmf

    def _drawn(self, batch: Choices, *, weight: float | None) -> list[Drawn]:
        decisions = [priced(self.log.rows[index].decision, weight=weight) for index in batch]
        arms = [decision.arms for decision in decisions]
        outputs = outputs_of(
            self.policy,
            [decision.served for decision in decisions],
            features=None if self.features is None else self.features[batch],
            arms=arms,
        )
        draws = drawn_by_arms(
            outputs, arms=arms, seeds=[0] * len(batch), settings=self._settings, seen=self.policy.seen
        )
        for draw in draws:
            if draw.fault is not None:
                self.faults += 1
                self.reason = self.reason or draw.fault
        return draws

    def learn(self, index: int) -> None:
        row = self.log.rows[index]
        update = update_of(row, features=self.features, index=index, weight=self._weight, share=self.share)
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

    def make() -> CandidatePolicy:
        copy = make_policy(policy.algorithm, params=policy.params)
        return CandidatePolicy(copy, log=log, features=log.log.features, settings=settings, weight=None)

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
    counts = np.arange(len(log.rows))
    seqs = np.maximum.accumulate([row.seq for row in log.rows])  # a file need not be sorted by seq
    for at, row in enumerate(log.rows):
        label, _, suffix = row.decision.version.partition("-")
        seq = suffix.partition("-")[0]
        if label == (log.ledger or row.decision.policy) == row.decision.policy and seq.isdecimal():
            counts[at] = min(at, int(np.searchsorted(seqs, int(seq), side="right")))
    return counts


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
    if resolved.plan.baseline not in (CURRENT, None) or not resolved.reads_text:
        return None
    if log.serving is not None or resolved.plan.baseline == CURRENT:
        return log.serving or settings
    label = settings.policy.label
    served = any(row.decision.policy == label and IMPORTED not in row.decision.facts for row in log.rows)
    return settings if served else None


def judged_rows(log: MemoryLog, *, snapshots: Sequence[SnapshotInfo]) -> tuple[Flags, list[str]]:
    """Returns (rows to judge, shape (n,); notes on the other rows). Raises InvalidInput if no row is left.

    Three kinds of rows are not judged: decisions before `log.since`; imported rows, if the service decided other rows;
    and questions that a snapshot has learned, because an estimate on them would be too optimistic.
    """
    judged, notes = np.ones(len(log.rows), dtype=np.bool_), []
    if log.since is not None:
        judged &= log.log.made_at >= log.since
    imported = judged & np.array([IMPORTED in row.decision.facts for row in log.rows], dtype=np.bool_)
    if imported.any() and (judged & ~imported).any():
        judged &= ~imported
        notes.append(f"{np.count_nonzero(imported):,} rows were imported: policies learn them, none is judged on them")
    seen = np.zeros(len(log.rows), dtype=np.bool_)
    for info in snapshots:
        learned = np.array([_has_learned(info, row, ledger=log.ledger) for row in log.rows], dtype=np.bool_)
        seen |= judged & np.isin(log.log.questions, log.log.questions[learned])
    if not seen.any():
        return judged, notes
    count = int(np.count_nonzero(seen))
    if count == np.count_nonzero(judged):
        message = f"all {count} rows were learned by a snapshot, or ask questions that it has learned"
        remedy = "judge an older version, log more traffic, or name the policy instead, which is cross-fitted"
        raise InvalidInput(message, field="policy", remedy=remedy)
    reason = "a snapshot has learned them, or may have, or has learned their question"
    return judged & ~seen, [*notes, f"{count} rows are left out: {reason}"]


def _has_learned(info: SnapshotInfo, row: Logged, *, ledger: str | None) -> bool:
    if (ledger or row.decision.policy) == info.policy:
        return row.seq <= info.last_seq
    return row.decision.made_at <= info.made_at  # a new ledger learns all earlier decisions of its store
