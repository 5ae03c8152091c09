"""The policies that are judged: what was asked for, and the probability that each gives to every arm of every row.

fixed:ARM      always that arm
column:KEY     a pmf that stands in the rows
VERSION        a snapshot, as it was; rows that it has learned are left out
NAME           a policy of the registry. What it learns, it learns from this log: by default cross-fitted (the rows
of a fold are judged by the policy that learned all other folds), with learn=True progressively
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.errors import ConfigError, InvalidInput
from ragbandit.router.learning.examples import Example, made_update
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.offline.estimation.bandit_log import Choices, Log
from ragbandit.router.offline.estimation.moments import Matrix
from ragbandit.router.offline.logs.records import Logged
from ragbandit.router.offline.replay.plan import Progress
from ragbandit.router.offline.replay.sources import Held, check_pmf, pmf_columns
from ragbandit.router.policies import POLICIES, make_policy
from ragbandit.router.policies.base import Policy, apply
from ragbandit.router.policies.draw import Drawn, draw, outputs_of
from ragbandit.router.policies.finetuned.table_classifier import TableClassifier
from ragbandit.router.types import ArmName, FeatureRows, Json, PolicyLabel, Reward, SnapshotInfo, Update

__all__ = [
    "Asked",
    "Judged",
    "Student",
    "array_pmf",
    "asked_candidates",
    "baselines",
    "check_trained",
    "crossfitted",
    "described",
    "frozen",
    "load",
    "notes_of",
    "row_pmf",
]

Kind = Literal["fixed", "column", "snapshot", "policy"]

#: questions asked of a policy at once
BATCH = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A candidate by its name."""

    #: as it was written
    name: str
    kind: Kind
    #: arm, key, version or registry name
    what: str
    params: Mapping[str, Json] = field(default_factory=dict)

    @property
    def needs_rows(self) -> bool:
        """Whether it must be shown the questions; the others are arithmetic on arrays."""
        return self.kind == "snapshot" or self.learns

    @property
    def learns(self) -> bool:
        """Whether it is a policy that learns from the log."""
        return self.kind == "policy" and self.what != "uniform"


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A candidate's probabilities on the rows of a log."""

    #: in words
    described: str
    #: shape (n, K); empty where the pieces have them
    pmf: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    notes: tuple[str, ...] = ()


def asked_candidates(
    names: Sequence[str], *, params: Mapping[str, Mapping[str, Json]] = MappingProxyType({})
) -> list[Asked]:
    """The candidates of these names; params: registry name -> params.

    Raises InvalidInput for a name that stands twice, or none at all. Whether a version exists is found out later.
    """
    if not names:
        raise InvalidInput("names none", field="policy", remedy="for example fixed:single_step")
    found: list[Asked] = []
    for name in names:
        if name in (one.name for one in found):
            raise InvalidInput(f"{name!r} stands twice", field="policy", remedy="name every candidate once")
        prefix, colon, rest = name.partition(":")
        if colon and prefix in ("fixed", "column") and rest:
            found.append(Asked(name=name, kind="fixed" if prefix == "fixed" else "column", what=rest))
        elif name in POLICIES:
            found.append(Asked(name=name, kind="policy", what=name, params=params.get(name, {})))
        elif colon or not name:
            raise InvalidInput(
                f"{name!r} is no candidate", field="policy", remedy="use fixed:ARM, column:KEY, a version or a policy"
            )
        else:
            found.append(Asked(name=name, kind="snapshot", what=name))
    return found


def baselines(arms: Sequence[ArmName]) -> list[Asked]:
    """The plain candidates of a log: always each of its arms, and all arms alike."""
    return asked_candidates([*(f"fixed:{arm}" for arm in arms), "uniform"])


def check_trained(asked: Asked, *, arms: Sequence[ArmName]) -> None:
    """Raises ConfigError for a policy that a log teaches nothing and that nobody trained for these arms.

    It would play all arms alike and be judged for that.
    """
    policy = make_policy(asked.what, params=asked.params)
    for one in (policy, getattr(policy, "inner", None)):  # of a policy that wraps another one
        if not isinstance(one, TableClassifier):
            continue
        remedy = (
            f"train it by `ragbandit train` on a table with these arms, then give --param {asked.what}.trained=FOLDER"
        )
        if one.params.get("trained") is None:
            raise ConfigError(
                f"{one.algorithm} is not trained, and learns nothing from a log", field=asked.name, remedy=remedy
            )
        unknown = [arm for arm in arms if arm not in one.trained_arms]
        if unknown:
            raise ConfigError(f"was not trained on the arms {', '.join(unknown)}", field=asked.name, remedy=remedy)


def array_pmf(asked: Asked, *, log: Log, columns: Mapping[str, Matrix], first: int = 0) -> Matrix:
    """Probabilities of a candidate that needs no questions, shape (n, K). Raises InvalidInput for an unknown arm."""
    if asked.kind == "column":
        pmf = columns[asked.what]
        check_pmf(pmf, log=log, name=asked.what, first=first)
        return pmf
    even = log.offered / log.offered.sum(axis=1, keepdims=True)
    if asked.kind == "policy":
        return np.asarray(even, dtype=np.float64)
    if asked.what not in log.arms:
        raise InvalidInput(
            f"{asked.what!r} is not in the log", field=asked.name, remedy=f"use one of {', '.join(log.arms)}"
        )
    place = log.arms.index(ArmName(asked.what))
    always = np.zeros(log.pmf.shape)
    always[:, place] = 1.0
    # Where it is not offered it plays what the policy `fixed` plays there.
    return np.where(log.offered[:, place, None], always, even)


def row_pmf(asked: Asked, *, held: Held) -> Judged:
    """The same of a log in memory."""
    if asked.kind == "column":
        known = sorted({key for row in held.rows for key in row.extra})
        if asked.what not in known:
            raise InvalidInput(
                "no row has this key",
                field=asked.name,
                remedy=f"use one of {', '.join(known)}" if known else "log the candidate's pmf in every row",
            )
        pmf = pmf_columns(held.rows, name=asked.what, log=held.log)
        return Judged(described=f"the pmf in {asked.what}", pmf=pmf)
    pmf, missing = array_pmf(asked, log=held.log, columns={}), 0
    if asked.kind == "fixed":
        missing = int(np.count_nonzero(~held.log.offered[:, held.log.arms.index(ArmName(asked.what))]))
    notes = (f"{asked.what} was not offered in {missing} rows: there all offered arms alike",) if missing else ()
    return Judged(described=described(asked), pmf=pmf, notes=notes)


def described(asked: Asked) -> str:
    """A candidate that does not learn, in words."""
    if asked.kind == "fixed":
        return f"always {asked.what}"
    return f"the pmf in {asked.what}" if asked.kind == "column" else "all arms alike"


def update_of(row: Logged, *, features: FeatureRows | None, index: int, weight: float | None) -> Update:
    """What a policy learns from a row; weight: another one of cost, where the row allows it."""
    decision, reward = row.decision, row.reward
    if features is not None:
        decision = replace(decision, features=features[index])
    example = Example(reward=reward if weight is None else reweighted(reward, weight=weight), feedback=())
    return made_update(decision, example, label=PolicyLabel("replay"), seq=index + 1, now=decision.made_at)


def reweighted(reward: Reward, *, weight: float) -> Reward:
    """clip(quality - weight * cost); a reward that came whole stays as it is."""
    if reward.preset in ("reward", "default"):
        return reward
    value = min(max(reward.quality - weight * reward.cost, reward.minimum), reward.maximum)
    return replace(reward, value=value, weight=weight)


class Student:
    """A policy that is asked about rows and learns rows, with all that went wrong counted."""

    def __init__(
        self,
        policy: Policy,
        *,
        held: Held,
        features: FeatureRows | None,
        settings: Settings,
        floor: float,
        weight: float | None,
    ) -> None:
        self.policy, self.held = policy, held
        self.features = features if "features" in policy.needs else None
        self._fallback, self._floor, self._weight = settings.policy.fallback, floor, weight
        self._columns = {arm: index for index, arm in enumerate(held.log.arms)}
        self.faults = 0
        self.reason: str | None = None
        #: rows that it would not learn
        self.refused: set[int] = set()

    def ask(self, rows: Choices) -> Matrix:
        """Its probabilities on these rows, as it would serve them, floor included; shape (len(rows), K)."""
        pmf = np.zeros((len(rows), len(self.held.log.arms)))
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            for place, drawn in enumerate(self._drawn(batch), start=start):
                arms = self.held.rows[rows[place]].decision.arms
                pmf[place, [self._columns[arm] for arm in arms]] = drawn.pmf
        return pmf

    def _drawn(self, batch: Choices) -> list[Drawn]:
        decisions = [self.held.rows[index].decision for index in batch]
        arms = [decision.arms for decision in decisions]
        outputs = outputs_of(
            self.policy,
            [decision.query for decision in decisions],
            features=None if self.features is None else self.features[batch],
            arms=arms,
        )
        found = [
            draw(output, arms=offered, floor=self._floor, fallback=self._fallback, seed=0)
            for output, offered in zip(outputs, arms, strict=True)
        ]
        for drawn in found:
            if drawn.fault is not None:
                self.faults, self.reason = self.faults + 1, self.reason or drawn.fault
        return found

    def learn(self, index: int) -> None:
        """Let it learn one row."""
        row = self.held.rows[index]
        if not apply(self.policy, update_of(row, features=self.features, index=index, weight=self._weight)):
            self.refused.add(index)


def notes_of(*students: Student) -> tuple[str, ...]:
    """What went wrong with all of them together, in words."""
    found = []
    faults, refused = sum(student.faults for student in students), set().union(*(each.refused for each in students))
    if faults:
        reason = next(student.reason for student in students if student.reason)
        found.append(f"{faults} decisions were the fallback's: {reason}")
    if refused:
        found.append(f"the policy would not learn {len(refused)} rows")
    return tuple(found)


MakeStudent = Callable[[Policy], Student]


def crossfitted(asked: Asked, *, make: MakeStudent, folds_of_rows: Choices, folds: int, progress: Progress) -> Judged:
    """A policy of the registry on every row, each fold by one that learned the others in the log's order."""
    students: list[Student] = []
    pmf: Matrix | None = None
    total = len(folds_of_rows) * folds
    for fold in range(folds):
        student = make(make_policy(asked.what, params=asked.params))
        for done, index in enumerate(np.flatnonzero(folds_of_rows != fold)):
            student.learn(int(index))
            if done % BATCH == 0:
                progress(f"{asked.name} learns", fold * len(folds_of_rows) + done, total)
        rows = np.flatnonzero(folds_of_rows == fold)
        asked_of = student.ask(rows)
        pmf = np.zeros((len(folds_of_rows), asked_of.shape[1])) if pmf is None else pmf
        pmf[rows] = asked_of
        students.append(student)
    progress(f"{asked.name} learns", total, total)
    assert pmf is not None
    return Judged(
        described=f"{asked.what}, each of {folds} folds judged by what the others taught",
        pmf=pmf,
        notes=notes_of(*students),
    )


def frozen(info: SnapshotInfo, *, student: Student) -> Judged:
    """A snapshot as it is."""
    pmf = student.ask(np.arange(len(student.held.rows)))
    return Judged(
        described=f"{info.algorithm} after {info.last_seq} updates of {info.policy}", pmf=pmf, notes=notes_of(student)
    )


def load(asked: Asked, *, files: SnapshotFiles) -> tuple[Policy, SnapshotInfo]:
    """The policy of a version. Raises InvalidInput if there is no such snapshot, SnapshotError if it is broken."""
    if not files.exists(asked.what):
        raise InvalidInput(
            f"{asked.what!r} is no policy and no snapshot in {files.root}",
            field="policy",
            remedy=f"use fixed:ARM, column:KEY, a version, or one of {', '.join(sorted(POLICIES))}",
        )
    return files.load(asked.what)
