"""Candidates of a replay: the probability that each gives to every arm of every row."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.examples import Example, made_update
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.offline.estimation import Choices, Flags, Progress
from ragbandit.router.offline.estimation.bandit_log import Log, wrong_pmfs
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.logs.batches import BatchSpec, check_choice, decoded, drawn, offered_arms
from ragbandit.router.offline.logs.parquet import BATCH, LogSource
from ragbandit.router.offline.replay.opening import MemoryLog
from ragbandit.router.offline.replay.plan import CandidatePmf, CandidateSpec, Plan
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


def array_pmf(spec: CandidateSpec, *, log: Log, named: Callable[[int], str]) -> Matrix:
    """Probabilities of a candidate that needs no questions, shape (n, K). named: row -> words.

    Raises InvalidInput for an unknown arm, and at the first row of a column that is no pmf.
    """
    if spec.kind == "column":
        check_pmf(log.own[spec.what], log=log, name=spec.what, named=named)
        return log.own[spec.what]
    even = log.offered / log.offered.sum(axis=1, keepdims=True)
    if spec.kind == "policy":
        return np.asarray(even, dtype=np.float64)
    if spec.what not in log.arms:
        raise InvalidInput(
            f"{spec.what!r} is not in the log", field=spec.name, remedy=f"use one of {', '.join(log.arms)}"
        )
    column = log.arms.index(ArmName(spec.what))
    always = np.zeros(log.pmf.shape)
    always[:, column] = 1.0
    # Where it is not offered it plays what the policy `fixed` plays there.
    return np.where(log.offered[:, column, None], always, even)


def described(spec: CandidateSpec) -> str:
    """A candidate that does not learn, in words."""
    if spec.kind == "fixed":
        return f"always {spec.what}"
    return f"the pmf in {spec.what}" if spec.kind == "column" else "all arms alike"


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

    def ask(self, rows: Choices) -> Matrix:
        """Its probabilities on these rows, as it would serve them now, floors included; shape (len(rows), K)."""
        pmf = np.zeros((len(rows), len(self.log.log.arms)))
        for start in range(0, len(rows), ASKED_AT_ONCE):
            batch = rows[start : start + ASKED_AT_ONCE]
            for number, one in enumerate(self._drawn(batch), start=start):
                arms = self.log.rows[rows[number]].decision.arms
                pmf[number, [self._columns[arm] for arm in arms]] = one.pmf
        return pmf

    def _drawn(self, batch: Choices) -> list[Drawn]:
        decisions = [priced(self.log.rows[index].decision, weight=self._weight) for index in batch]
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
    candidates: list[CandidatePolicy] = []
    pmf: Matrix | None = None
    total = len(folds_of_rows) * folds
    for fold in range(folds):
        candidate = make()
        candidate.share = float(np.mean(folds_of_rows != fold))
        for done, index in enumerate(np.flatnonzero(folds_of_rows != fold)):
            candidate.learn(int(index))
            if done % ASKED_AT_ONCE == 0:
                progress(f"{spec.name} learns", fold * len(folds_of_rows) + done, total)
        rows = np.flatnonzero((folds_of_rows == fold) & (True if judged is None else judged))
        answers = candidate.ask(rows)
        pmf = np.zeros((len(folds_of_rows), answers.shape[1])) if pmf is None else pmf
        pmf[rows] = answers
        candidates.append(candidate)
    progress(f"{spec.name} learns", total, total)
    assert pmf is not None
    return CandidatePmf(
        described=f"{spec.what}, each of {folds} folds judged by what the others taught",
        pmf=pmf,
        notes=notes_of(*candidates),
    )


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


def check_pmf(pmf: Matrix, *, log: Log, name: str, named: Callable[[int], str]) -> None:
    """Raises InvalidInput at the first row that is no pmf over the arms that it offers. named: row -> words."""
    wrong = wrong_pmfs(pmf, offered=log.offered)
    if len(wrong):
        row = int(wrong[0])
        message = f"{pmf[row].tolist()} is no distribution over the arms offered"
        raise InvalidInput(message, field=f"{named(row)} {name}", remedy="give probabilities that sum to 1")


#: bytes of arrays that are kept from one pass to the next, of all parts
KEPT_BYTES: Final = 1 << 28


class LogPart(Protocol):
    """A log or a part of it, in its order, as often as it is asked for."""

    def batches(self) -> Iterator[Log]:
        """Some rows at a time, with what every candidate does on them."""
        ...

    @property
    def left_out(self) -> "LeftOut":
        """Rows that the last pass left out."""
        ...

    def names_of(self, key: np.uint64) -> list[str]:
        """The rows with this key of their id, in words."""
        ...


@dataclass(kw_only=True, slots=True)
class LeftOut:
    """Rows of a part that are not judged."""

    #: nobody drew their arm
    undrawn: int = 0
    #: with a time asked for: rows that have none, and older rows
    timeless: int = 0
    older: int = 0

    def __add__(self, other: "LeftOut") -> "LeftOut":
        return LeftOut(
            undrawn=self.undrawn + other.undrawn,
            timeless=self.timeless + other.timeless,
            older=self.older + other.older,
        )


@dataclass(kw_only=True, slots=True)
class MemoryPart:
    """The arrays of a whole log in memory, a batch at a time; they were checked when they were made."""

    log: Log
    left_out: LeftOut = field(default_factory=LeftOut, init=False)

    def batches(self) -> Iterator[Log]:
        """As `LogPart` says."""
        for start in range(0, len(self.log), BATCH):
            yield self.log.part(slice(start, start + BATCH))

    def names_of(self, key: np.uint64) -> list[str]:
        """As `LogPart` says."""
        return [f"row {row + 1}" for row in np.flatnonzero(self.log.keys == key)]


@dataclass(kw_only=True, slots=True)
class Room:
    """Bytes that parts may still keep from one pass to the next."""

    free: int


@dataclass(kw_only=True, slots=True)
class KeptPart:
    """A part whose arrays stay in memory after the first pass where there is room for them: it is read once."""

    part: LogPart
    room: Room
    _kept: list[Log] | None = field(default=None, init=False)

    def batches(self) -> Iterator[Log]:
        """As `LogPart` says."""
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[Log] = []
        used = 0
        for log in self.part.batches():
            used += log.nbytes
            if used <= self.room.free:
                kept.append(log)
            else:
                kept.clear()
            yield log
        if used <= self.room.free:
            self._kept, self.room.free = kept, self.room.free - used

    @property
    def left_out(self) -> LeftOut:
        """As `LogPart` says."""
        return self.part.left_out

    def names_of(self, key: np.uint64) -> list[str]:
        """As `LogPart` says."""
        return self.part.names_of(key)


@dataclass(kw_only=True, slots=True)
class SourcePart:
    """The rows of a source, for candidates that are arithmetic on arrays. It can be pickled where the source can."""

    source: LogSource
    candidates: Sequence[CandidateSpec]
    plan: Plan
    #: (): those of the first row that was drawn
    arms: tuple[ArmName, ...]
    mixed_arms: bool = False
    #: rows decided before are left out, seconds since the epoch
    since: float | None = None
    left_out: LeftOut = field(default_factory=LeftOut, init=False)

    def batches(self) -> Iterator[Log]:
        """As `LogPart` says. Raises InvalidInput for a row that cannot be true."""
        self.left_out = LeftOut()
        for rows, numbers in self._drawn(self._spec()):
            log = self._log(rows, spec=self._spec(), numbers=numbers)
            if self.since is not None:
                recent = log.made_at >= self.since
                self.left_out.timeless += int(np.count_nonzero(log.made_at == 0.0))
                self.left_out.older += int(np.count_nonzero(~recent))
                log = log.part(recent)
            if len(log):
                yield log

    def names_of(self, key: np.uint64) -> list[str]:
        """As `LogPart` says; reads the source again."""
        spec = replace(self._spec(), fields=(), own=(), features=False)
        names: list[str] = []
        for rows, numbers in self._drawn(spec):
            log = decoded(rows, spec=spec, named=partial(self._row_name, rows, numbers))
            names += [self._row_name(rows, numbers, int(row)) for row in np.flatnonzero(log.keys == key)]
        return names

    def _drawn(self, spec: BatchSpec) -> Iterator[tuple[Any, Choices]]:
        """Record batches of the rows that were drawn, and the rows' numbers from 1."""
        before = 0
        for batch in self.source.batches(spec):
            here = drawn(batch)
            numbers = before + 1 + np.flatnonzero(here)
            before += batch.num_rows
            self.left_out.undrawn += batch.num_rows - len(numbers)
            if len(numbers):
                rows = batch if here.all() else batch.filter(pa.array(here))
                if not self.arms:
                    self.arms = tuple(offered_arms(rows.slice(0, 1)))
                    check_choice(self.arms)
                yield rows, numbers

    def _row_name(self, rows: Any, numbers: Choices, row: int) -> str:
        return self.source.row_name(int(numbers[row]), rows.column("id")[row].as_py())

    def _spec(self) -> BatchSpec:
        return BatchSpec(
            arms=self.arms,
            mixed_arms=self.mixed_arms,
            fields=tuple(dict.fromkeys(["version", *self.plan.segments])),
            own=tuple(spec.what for spec in self.candidates if spec.kind == "column"),
            features=self.plan.reward_model != "mean",
        )

    def _log(self, rows: Any, *, spec: BatchSpec, numbers: Choices) -> Log:
        named = partial(self._row_name, rows, numbers)
        log = decoded(rows, spec=spec, named=named)
        log = self.plan.read_at_weight(log)
        pmfs = [array_pmf(candidate, log=log, named=named) for candidate in self.candidates]
        return replace(log, candidates=tuple(pmfs))
