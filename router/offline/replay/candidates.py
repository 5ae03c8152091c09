"""Candidates of a replay: what is compared with what, and the probability that each gives to every arm of every row."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ragbandit.router.config.settings import FLOORS, Settings
from ragbandit.router.learning.examples import made_update, policy_of
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.offline.estimation import Choices, Flags, Progress
from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.logs import BadRow, Logged
from ragbandit.router.offline.logs.batches import LINE, BatchSpec, check_choice, decoded, drawn, offered_arms
from ragbandit.router.offline.logs.parquet import rows_batch
from ragbandit.router.offline.replay.plan import (
    CURRENT,
    CandidatePmf,
    CandidateSpec,
    LoggedPolicies,
    ResolvedPlan,
)
from ragbandit.router.policies import CONSERVATIVE, known_policies, make_policy
from ragbandit.router.policies.base import Policy, apply
from ragbandit.router.policies.checks import check_arms
from ragbandit.router.policies.draw import Drawn, drawn_by_arms, outputs_of
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import IMPORTED, ArmName, Decision, FeatureRows, Matrix, PolicyLabel, SnapshotInfo, Update

#: questions asked of a policy at once
ASKED_AT_ONCE = 256
#: rows between two reports of progress in progressive validation
PROGRESS_STEP = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLog:
    """Rows in memory."""

    rows: Sequence[Logged]
    log: Log
    #: the ledger that learned the rows; None for the ledger in each decision's label
    ledger: str | None = None
    #: where the rows come from, for the report
    described: str = "a log in memory"
    #: rows decided before were left out, seconds since the epoch; None: all rows are here
    since: float | None = None
    #: rows that were left out because they cannot be used
    skipped: Sequence[BadRow] = ()
    #: decisions that were left out: their arm was not drawn, or their label was chosen for its use
    undrawn: int = 0
    #: the policies of its store; empty for a log that comes from elsewhere
    logged: LoggedPolicies = field(default_factory=dict)
    #: settings that its store serves by; None for a file, and for a ledger that was only imported
    serving: Settings | None = None
    #: share of the log's rows that are here; below 1 if they are a sample
    share: float = 1.0

    @property
    def sampled_from(self) -> int | None:
        """Rows of the log that these rows are a sample of; None if all are here."""
        return round((len(self.rows) + self.undrawn) / self.share) if self.share < 1.0 else None

    def with_columns(self, *, fields: Sequence[str], own: Sequence[str]) -> "MemoryLog":
        """With these fields, and the candidates' pmfs that stand in the rows. Raises InvalidInput for a row without."""
        if not fields and not own:
            return self
        spec = BatchSpec(
            arms=self.log.arms, mixed_arms=True, fields=("version", *fields), own=tuple(own), features=True
        )
        return replace(self, log=decoded(rows_batch(self.rows, [*spec.columns, LINE]), spec=spec))


def memory_log(rows: Iterable[Logged], *, mixed_arms: bool = False, **about: Any) -> MemoryLog:
    """Check rows and keep them in memory, also as arrays. Decisions whose arm was not drawn are left out.

    mixed_arms: rows may offer different arms; the columns are then all arms that occur.
    about: other fields of MemoryLog: ledger, described, since, skipped, logged, serving, share.
    Raises InvalidInput for an empty log, a log of one arm, mixed arms, or an impossible row.
    """
    everything = list(rows)
    spec = BatchSpec(arms=(), mixed_arms=mixed_arms, fields=("version",), features=True)
    batch = rows_batch(everything, [*spec.columns, LINE])
    here = drawn(batch)
    batch = batch.filter(pa.array(here))
    if not batch.num_rows:
        raise InvalidInput(
            "has no rows", field="log", remedy="feedback must have been learned before it can be replayed"
        )
    spec = replace(spec, arms=tuple(offered_arms(batch if mixed_arms else batch.slice(0, 1))))
    check_choice(spec.arms)
    return MemoryLog(
        rows=[row for row, kept in zip(everything, here, strict=True) if kept],
        log=decoded(batch, spec=spec),
        undrawn=int(np.count_nonzero(~here)),
        **about,
    )


def check_candidate(candidate: CandidateSpec, *, arms: Sequence[ArmName]) -> None:
    """Raises ConfigError for a policy that names an arm which the log lacks, or that was not trained for these arms.

    It would play another arm, or all alike, and be judged for that.
    """
    policy = make_policy(candidate.what, params=candidate.params)
    try:
        check_arms(policy, arms=arms, where=candidate.name)
    except ConfigError as error:
        if error.field is None or error.field.count(".") != 1:  # a param of a policy inside of another
            raise
        if "--param" in (error.remedy or ""):
            raise
        remedy = f"{error.remedy}; then give --param {error.field}=VALUE"
        raise ConfigError(error.message, field=error.field, remedy=remedy) from error


def update_of(
    row: Logged, *, features: FeatureRows | None, index: int, weight: float | None, share: float = 1.0
) -> Update:
    """The update that a policy learns from a row; weight: replaces the weight of cost, where the row allows it.

    share: of the log's rows that this policy learns, in (0, 1].
    """
    decision, reward = priced(row.decision, weight=weight), row.reward
    if features is not None:
        decision = replace(decision, features=features[index])
    reward = reward if weight is None else reward.at(weight)
    decided = None if row.decided is None else round(row.decided * share)
    label, now = PolicyLabel("replay"), decision.made_at
    return made_update(decision, reward, label=label, seq=index + 1, now=now, decided=decided, restarts=row.restarts)


def priced(decision: Decision, *, weight: float | None) -> Decision:
    """The decision as it would have been served at this weight of cost; None: at its own."""
    return decision if weight is None else replace(decision, cost_weight=weight)


class CandidatePolicy:
    """A policy under evaluation: gives probabilities for rows, learns rows, and counts its faults."""

    def __init__(
        self, policy: Policy, *, log: MemoryLog, features: FeatureRows | None, settings: Settings, weight: float | None
    ) -> None:
        """settings: with the floors, the cold start and the incumbent in force."""
        self.policy, self.log = policy, log
        self.features = features if "features" in policy.needs else None
        self._settings, self._weight = settings, weight
        self._columns = {arm: index for index, arm in enumerate(log.log.arms)}
        self.faults = 0
        self.reason: str | None = None
        #: share of the log's rows that it learns
        self.share = log.share
        #: rows that it would not learn
        self.refused: set[int] = set()

    def ask(self, rows: Choices, *, weight: float | None = None) -> Matrix:
        """Its probabilities for these rows, as it would serve them now, with floors; shape (len(rows), K).

        weight: weight of cost; None for the plan's, or each row's own.
        """
        weight = self._weight if weight is None else weight
        pmf = np.zeros((len(rows), len(self.log.log.arms)))
        for start in range(0, len(rows), ASKED_AT_ONCE):
            batch = rows[start : start + ASKED_AT_ONCE]
            for number, one in enumerate(self._drawn(batch, weight=weight), start=start):
                arms = self.log.rows[rows[number]].decision.arms
                pmf[number, [self._columns[arm] for arm in arms]] = one.pmf
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
        for one in draws:
            if one.fault is not None:
                self.faults, self.reason = self.faults + 1, self.reason or one.fault
        return draws

    def learn(self, index: int) -> None:
        """Let it learn one row."""
        row = self.log.rows[index]
        update = update_of(row, features=self.features, index=index, weight=self._weight, share=self.share)
        if not apply(self.policy, update):
            self.refused.add(index)


def notes_of(*candidates: CandidatePolicy) -> tuple[str, ...]:
    """Faults and refusals of these policies together, as notes."""
    notes = []
    faults, refused = (
        sum(candidate.faults for candidate in candidates),
        set().union(*(each.refused for each in candidates)),
    )
    if faults:
        reason = next(candidate.reason for candidate in candidates if candidate.reason)
        notes.append(f"{faults} decisions were the fallback's: {reason}")
    if refused:
        notes.append(f"the policy would not learn {len(refused)} rows")
    return tuple(notes)


#: makes a new, untaught copy of a candidate
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
    """Pmfs of a policy for every row, each fold from a copy that learned the other folds; and notes.

    weights: a pmf is made at each weight of cost; None for the served weight. folds_of_rows: a question's rows share a
    fold. judged: rows to ask about, shape (n,); None for all. The pmf of other rows is 0.
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


def load(spec: CandidateSpec, *, files: SnapshotFiles) -> tuple[Policy, SnapshotInfo]:
    """The policy of a version. Raises InvalidInput if there is no such snapshot, SnapshotError if it is broken."""
    if not files.exists(spec.what):
        raise InvalidInput(
            f"{spec.what!r} is no policy and no snapshot in {files.root}",
            field="policy",
            remedy=f"use fixed:ARM, column:KEY, a version, or one of {', '.join(known_policies())}",
        )
    return files.load(spec.what)


def progressive_validation(
    spec: CandidateSpec, *, make: MakeCandidatePolicy, log: MemoryLog, judged: Flags, progress: Progress
) -> CandidatePmf:
    """A candidate that learns along the log, asked about every row before it learns that row.

    It has then learned as many rows as the served policy had (`learned_before`), which learned in batches.
    judged: rows to ask about, shape (n,); other rows are learned only, and their pmf is 0.
    """
    candidate, pmf, before = make(), np.zeros(log.log.pmf.shape), learned_before(log)
    order, learned = np.argsort(before, kind="stable"), 0
    order = order[judged[order]]
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
    """How many rows of the log the policy that decided each row had learned, shape (n,), at most its index.

    The decision's version names the last seq learned. Rows of other ledgers count all rows before them.
    """
    counts = np.arange(len(log.rows))
    seqs = np.maximum.accumulate([row.seq for row in log.rows])  # rows of a file may be in another order
    for at, row in enumerate(log.rows):
        label, _, rest = row.decision.version.partition("-")
        seq = rest.partition("-")[0]
        if label == (log.ledger or row.decision.policy) == row.decision.policy and seq.isdecimal():
            counts[at] = min(at, int(np.searchsorted(seqs, int(seq), side="right")))
    return counts


def served_policy(spec: CandidateSpec, *, settings: Settings) -> Policy:
    """A candidate of the registry, fresh, as a service with these settings would make it if `policy.name` named it.

    Raises ConfigError.
    """
    changes: dict[str, Any] = {"name": spec.what, "params": dict(spec.params)}
    if spec.what == CONSERVATIVE:  # it has an incumbent of its own
        changes["incumbent"] = None
    policy = settings.policy.model_copy(update=changes)
    return policy_of(settings.model_copy(update={"policy": policy}))


def settings_in_force(settings: Settings, *, arms: Sequence[ArmName], floor: float | None) -> Settings:
    """The settings for draws from candidates. An incumbent that the log does not offer is dropped.

    floor: least probability of every arm from the first decision on; None for the service's floors.
    """
    changes: dict[str, Any] = {} if floor is None else {"floor": floor, "cold_start_floor": 0.0}
    if settings.policy.incumbent not in arms:
        changes["incumbent"] = None
    return settings.model_copy(update={"policy": settings.policy.model_copy(update=changes)})


def service_note(settings: Settings) -> str:
    """How candidates are drawn from, in words."""
    policy = settings.policy
    floor = f"{FLOORS:g} / arms" if policy.floor is None else f"{policy.floor:g}"
    words = f"policies and snapshots are judged as they would be served: floor {floor}"
    if policy.cold_start_floor > 0.0 and policy.cold_start_outcomes:
        words += f", {policy.cold_start_floor:g} for an arm until it has {policy.cold_start_outcomes} learned outcomes"
    if policy.incumbent is not None:
        words += f"; policies by name are held back to {policy.incumbent} (harm {policy.harm:g})"
    if policy.holdback is not None:
        words += f"; {policy.holdback.arm} has a holdback of {policy.holdback.share:g}"
    return words


def current_settings(log: MemoryLog, *, resolved: ResolvedPlan, settings: Settings) -> Settings | None:
    """The settings of the policy that serves, if candidates are compared with it; None for another baseline.

    Without a baseline in the plan, a candidate that reads questions is compared with it if the service decided rows.
    """
    if resolved.plan.baseline not in (CURRENT, None) or not resolved.reads_text:
        return None
    if log.serving is not None or resolved.plan.baseline == CURRENT:
        return log.serving or settings
    label = settings.policy.label
    served = any(row.decision.policy == label and IMPORTED not in row.decision.facts for row in log.rows)
    return settings if served else None


def judged_rows(log: MemoryLog, *, snapshots: Sequence[SnapshotInfo]) -> tuple[Flags, list[str]]:
    """The rows that are judged, shape (n,), and notes on the others. Raises InvalidInput if no row is left.

    Not judged are decisions before `log.since`, a warm start besides own traffic, and questions that a snapshot has
    learned, on which an estimate would be too optimistic.
    """
    judged, notes = np.ones(len(log.rows), dtype=np.bool_), []
    if log.since is not None:
        judged &= log.log.made_at >= log.since
    elsewhere = judged & np.array([IMPORTED in row.decision.facts for row in log.rows], dtype=np.bool_)
    if elsewhere.any() and (judged & ~elsewhere).any():
        judged &= ~elsewhere
        notes.append(f"{np.count_nonzero(elsewhere):,} rows were imported: policies learn them, none is judged on them")
    known = np.zeros(len(log.rows), dtype=np.bool_)
    for info in snapshots:
        learned = np.array([_has_learned(info, row, ledger=log.ledger) for row in log.rows], dtype=np.bool_)
        known |= judged & np.isin(log.log.questions, log.log.questions[learned])
    if not known.any():
        return judged, notes
    count = int(np.count_nonzero(known))
    if count == np.count_nonzero(judged):
        raise InvalidInput(
            f"all {count} rows were learned by a snapshot, or ask questions that it has learned",
            field="policy",
            remedy="judge an older version, log more traffic, or name the policy instead, which is cross-fitted",
        )
    reason = "a snapshot has learned them, or may have, or has learned their question"
    return judged & ~known, [*notes, f"{count} rows are left out: {reason}"]


def _has_learned(info: SnapshotInfo, row: Logged, *, ledger: str | None) -> bool:
    """True if the snapshot has learned this row: of its own ledger by the seq, of any other if it was there in time.

    A new label learns all decisions of its store, so another ledger's snapshot is not innocent of the older rows.
    """
    if (ledger or row.decision.policy) == info.policy:
        return row.seq <= info.last_seq
    return row.decision.made_at <= info.made_at
