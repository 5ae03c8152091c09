"""Summary of a log, made in the first pass: counts, ranges, draws, weights; mergeable."""

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from ragbandit.router.offline.estimation.bandit_log import BY_TEXT, Log
from ragbandit.router.offline.estimation.diagnostics import ArmTally, WeightTally
from ragbandit.router.offline.replay.parts import LeftOut
from ragbandit.router.offline.types import Choices, Keys, Matrix, Vector
from ragbandit.shared.types import ArmName

__all__ = ["LogSummary", "stretched", "weight_of"]


@dataclass(kw_only=True)
class LogSummary:
    """Summary statistics of a log, from the first pass."""

    rows: int = 0
    #: the arms, in the order of the columns
    names: tuple[ArmName, ...] = ()
    #: of the rows that have a time
    begin: float = np.inf
    end: float = -np.inf
    minimum: float = np.inf
    maximum: float = -np.inf
    #: least and largest reward, quality and cost, shape (3, 2)
    ranges: Matrix = field(default_factory=lambda: np.array([[np.inf, -np.inf]] * 3))
    arms: ArmTally = field(default_factory=ArmTally)
    #: rows that offered each arm, shape (K,)
    offered: Choices = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    weights: list[WeightTally] = field(default_factory=list)
    defaulted: int = 0
    late: int = 0
    raw: int = 0
    #: rewards that a judge made
    judged: int = 0
    #: encoder and width of the features; ("", 0): the rows have none
    kinds: frozenset[tuple[str, int]] = frozenset()
    #: keys of the ids, and of the texts that are known, each once; one array per part
    keys: list[Keys] = field(default_factory=list)
    texts: list[Keys] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
    #: rows by how their question is known, shape (3,)
    known_by: Choices = field(default_factory=lambda: np.zeros(3, dtype=np.intp))
    #: as in Log
    rating_weight: float = 1.0
    #: field -> value -> rows
    fields: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, log: Log) -> None:
        """Take in some rows."""
        self.rows, self.names = self.rows + len(log), log.arms
        self.begin, self.end = stretched(self.begin, self.end, log.made_at)
        self.minimum, self.maximum = min(self.minimum, log.minimum), max(self.maximum, log.maximum)
        for target, amounts in enumerate((log.reward, log.quality, log.cost)):
            low, high = self.ranges[target]
            self.ranges[target] = min(low, float(amounts.min())), max(high, float(amounts.max()))
        self.arms.add(log)
        for tally, pmf in zip(self.weights, log.candidates, strict=True):
            tally.add(log, candidate=pmf, weight=weight_of(log, pmf))
        self.defaulted += int(log.defaulted.sum())
        self.late += int(log.late.sum())
        self.raw += int(log.raw.sum())
        self.judged += 0 if log.judged is None else int(log.judged.sum())
        self.offered = _added(self.offered, log.offered.sum(axis=0))
        self.kinds |= {(log.encoder_hash, 0 if log.features is None else log.features.shape[1])}
        self.keys.append(log.keys)
        self.texts.append(np.unique(log.questions[log.known_by == BY_TEXT]))
        self.known_by = self.known_by + np.bincount(log.known_by, minlength=3)
        self.rating_weight = max(self.rating_weight, log.rating_weight)
        for name, values in log.fields.items():
            self.fields.setdefault(name, Counter()).update(values.tolist())

    def closed(self) -> "LogSummary":
        """The summary of a part whose rows are all here: its keys in one array."""
        joined = [np.concatenate(keys) if keys else np.zeros(0, dtype=np.uint64) for keys in (self.keys, self.texts)]
        return replace(self, keys=[joined[0]], texts=[np.unique(joined[1])])

    @property
    def different_texts(self) -> int:
        """How many questions are different, of the rows that have their text."""
        return len(np.unique(np.concatenate(self.texts))) if self.texts else 0

    def merged(self, other: "LogSummary") -> "LogSummary":
        """The summary of both sets of rows."""
        low, high = np.minimum(self.ranges, other.ranges)[:, 0], np.maximum(self.ranges, other.ranges)[:, 1]
        return LogSummary(
            rows=self.rows + other.rows,
            names=self.names or other.names,
            begin=min(self.begin, other.begin),
            end=max(self.end, other.end),
            minimum=min(self.minimum, other.minimum),
            maximum=max(self.maximum, other.maximum),
            ranges=np.stack([low, high], axis=1),
            arms=self.arms.merged(other.arms),
            weights=[mine.merged(theirs) for mine, theirs in zip(self.weights, other.weights, strict=True)],
            defaulted=self.defaulted + other.defaulted,
            late=self.late + other.late,
            raw=self.raw + other.raw,
            judged=self.judged + other.judged,
            offered=_added(self.offered, other.offered),
            kinds=self.kinds | other.kinds,
            keys=[*self.keys, *other.keys],
            texts=[*self.texts, *other.texts],
            left_out=self.left_out.merged(other.left_out),
            known_by=self.known_by + other.known_by,
            rating_weight=max(self.rating_weight, other.rating_weight),
            fields={
                name: self.fields.get(name, Counter()) + other.fields.get(name, Counter())
                for name in dict.fromkeys([*self.fields, *other.fields])
            },
        )

    def bounds(self, target: int) -> tuple[float, float]:
        """Range of the reward (as declared), the quality ([0, 1] and what was seen) or cost (0 to what was seen)."""
        low, high = self.ranges[target]
        if self.rating_weight > 1.0 and target < 2:  # what is completed may lie outside
            return (self.minimum, self.maximum) if target == 0 else (0.0, 1.0)
        if target == 0:
            return min(self.minimum, low), max(self.maximum, high)
        return (min(0.0, low), max(1.0, high)) if target == 1 else (min(0.0, low), high)


def stretched(begin: float, end: float, made_at: Vector) -> tuple[float, float]:
    """The stretch of time with these rows; 0 is how a log says that it does not know the time."""
    known = made_at[made_at != 0.0]
    return min(begin, float(known.min(initial=np.inf))), max(end, float(known.max(initial=-np.inf)))


def weight_of(log: Log, pmf: Matrix) -> Vector:
    """Candidate / logged of the drawn arms, shape (n,)."""
    return np.asarray(np.take_along_axis(pmf, log.action[:, None], axis=1)[:, 0] / log.propensity)


def _added(one: Choices, other: Choices) -> Choices:
    return one + other if len(one) and len(other) else one if len(one) else other
