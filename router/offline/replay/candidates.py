"""Candidates of a replay: the probability that each gives to every arm of every row."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.examples import Example, made_update
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.offline.estimation import Choices, Flags, Progress
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.replay.opening import MemoryLog
from ragbandit.router.offline.replay.plan import CandidatePmf, CandidateSpec
from ragbandit.router.policies import known_policies, make_policy
from ragbandit.router.policies.base import Policy, apply
from ragbandit.router.policies.checks import check_arms
from ragbandit.router.policies.draw import Drawn, drawn_by_arms, outputs_of
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import ArmName, Decision, FeatureRows, Matrix, PolicyLabel, SnapshotInfo, Update

#: questions asked of a policy at once
ASKED_AT_ONCE = 256
#: rows between two reports of progress in progressive validation
PROGRESS_STEP = 64


def check_candidate(candidate: CandidateSpec, *, arms: Sequence[ArmName]) -> None:
    """Raises ConfigError for a policy that names an arm which the log lacks, or that nobody trained for these arms.

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
    example = Example(reward=reward if weight is None else reward.at(weight), feedback=())
    decided = None if row.decided is None else round(row.decided * share)
    update = made_update(
        decision, example, label=PolicyLabel("replay"), seq=index + 1, now=decision.made_at, decided=decided
    )
    return replace(update, restarts=row.restarts)


def priced(decision: Decision, *, weight: float | None) -> Decision:
    """The decision as it would have been served at this weight of cost; None: at its own."""
    return decision if weight is None else replace(decision, cost_weight=weight)


class CandidatePolicy:
    """A policy under evaluation: gives probabilities for rows, learns rows, and counts its faults."""

    def __init__(
        self,
        policy: Policy,
        *,
        log: MemoryLog,
        features: FeatureRows | None,
        settings: Settings,
        weight: float | None,
    ) -> None:
        """settings: with the floors, the cold start and the incumbent in force."""
        self.policy, self.log = policy, log
        self.features = features if "features" in policy.needs else None
        self._settings, self._weight = settings, weight
        self._columns = {arm: index for index, arm in enumerate(log.log.arms)}
        self.faults = 0
        self.reason: str | None = None
        #: share of the log's rows that it learns
        self.share = 1.0
        #: rows that it would not learn
        self.refused: set[int] = set()

    def ask(self, rows: Choices, *, weight: float | None = None) -> Matrix:
        """Its probabilities on these rows, as it would serve them now, floors included; shape (len(rows), K).

        weight: of cost; None: that of this policy, or of each row.
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
    spec: CandidateSpec,
    *,
    make: MakeCandidatePolicy,
    folds_of_rows: Choices,
    folds: int,
    progress: Progress,
    judged: Flags | None = None,
) -> CandidatePmf:
    """A policy of the registry on every row, each fold by one that learned the others in the log's order.

    folds_of_rows: a question's rows are in one fold, so that no copy is asked a question that it learned. judged: the
    rows that it is asked about, shape (n,); None: all. The pmf of the others is 0.
    """
    [pmf], notes = crossfitted_at(
        [None], name=spec.name, make=make, folds_of_rows=folds_of_rows, folds=folds, progress=progress, judged=judged
    )
    described = f"{spec.what}, each of {folds} folds judged by what the others taught"
    return CandidatePmf(described=described, pmf=pmf, notes=notes)


def crossfitted_at(
    weights: Sequence[float | None],
    *,
    name: str,
    make: MakeCandidatePolicy,
    folds_of_rows: Choices,
    folds: int,
    progress: Progress,
    judged: Flags | None = None,
) -> tuple[list[Matrix], tuple[str, ...]]:
    """As `crossfitted`, asked at several weights of cost (None: as served): a pmf for each, and notes."""
    candidates: list[CandidatePolicy] = []
    pmfs: list[Matrix] = []
    total = len(folds_of_rows) * folds
    for fold in range(folds):
        candidate = make()
        candidate.share = float(np.mean(folds_of_rows != fold))
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


def frozen(info: SnapshotInfo, *, candidate: CandidatePolicy, judged: Flags) -> CandidatePmf:
    """Probabilities of a frozen snapshot on the rows that are judged, shape (n,); 0 on the others."""
    pmf = np.zeros(candidate.log.log.pmf.shape)
    pmf[judged] = candidate.ask(np.flatnonzero(judged))
    return CandidatePmf(
        described=f"{info.algorithm} after {info.last_seq} updates of {info.policy}", pmf=pmf, notes=notes_of(candidate)
    )


def load(spec: CandidateSpec, *, files: SnapshotFiles) -> tuple[Policy, SnapshotInfo]:
    """The policy of a version. Raises InvalidInput if there is no such snapshot, SnapshotError if it is broken."""
    if not files.exists(spec.what):
        raise InvalidInput(
            f"{spec.what!r} is no policy and no snapshot in {files.root}",
            field="policy",
            remedy=f"use fixed:ARM, column:KEY, a version, or one of {', '.join(known_policies())}",
        )
    return files.load_named(spec.what)


def progressive_validation(
    spec: CandidateSpec, *, make: MakeCandidatePolicy, log: MemoryLog, judged: Flags, progress: Progress
) -> CandidatePmf:
    """A candidate that learns along the log, asked about every row before it learns that row.

    judged: the rows that it is asked about, shape (n,); the others it learns only, and their pmf is 0.

    It is asked when it has learned as many rows as the policy that was served had learned then (`learned_before`): a
    candidate that knew each row at once would be compared with one that got them in batches.
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
    """How many rows of the log the policy that decided each row had learned, shape (n,), row i at most i.

    A decision's version names the seq that its policy had learned, where that policy is the one of the log's ledger; of
    other rows all before them are taken as learned.
    """
    counts = np.arange(len(log.rows))
    seqs = np.maximum.accumulate([row.seq for row in log.rows])  # of a file in another order: all before must be known
    for at, row in enumerate(log.rows):
        label, _, rest = row.decision.version.partition("-")
        seq = rest.partition("-")[0]
        if label == (log.ledger or row.decision.policy) == row.decision.policy and seq.isdecimal():
            counts[at] = min(at, int(np.searchsorted(seqs, int(seq), side="right")))
    return counts
