"""A report and its rows: the decisions of a period with their outcomes and learned rewards, as arrays.

A period with more than `ReportScope.most` questions is sampled. The last six digits of a decision's seed decide whether
it is drawn: the seed is a hash of the decision's id under the store's secret, so every question has the same chance
whatever its time, arm or rating, and every reader draws the same rows. The arm is drawn by the seed's first 53 bits,
between whose edges the last digits are uniform. This is independent thinning: a thinned stream of rows has the means of
the whole stream, and its rows come in the same order with the same propensities, so the confidence sequences of the
estimates hold for it as they do for the whole. The share drawn is a power of 1/2, so that a growing period changes its
sample seldom, and the smaller sample is part of the larger one.

Imported decisions are no traffic, and are not counted.
"""

import json
import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from sqlalchemy import ColumnElement, Connection, RowMapping, and_, func, select

from ragbandit.router.config.sections import RewardSettings
from ragbandit.router.learning.sources import label_weight
from ragbandit.router.reporting.estimates import Choices, Comparison
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, outcomes, updates
from ragbandit.router.storage.totals import KEPT, TRAFFIC, hour_of, position_of, summed
from ragbandit.shared.confidence_sequences import FEWEST_BOTH, judge_score
from ragbandit.shared.types import IMPORTED, KILLED, LABEL_QUEUE, STICKY, WHOLE, Matrix, Vector

Unit = Literal["dollars", "steps", "seconds"]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of a report."""

    name: str
    """What it is about."""
    against: str
    """The arm that it is compared with."""
    questions: int
    """Questions that could have had this arm; estimated if the report is made from a sample."""
    cost: Comparison
    """Cost per question, in the report's unit."""
    quality: Comparison
    """Quality of the rated answers, per question."""
    value: Comparison | None = None
    """Reward per question at the configured weight of cost, of rated answers."""
    earned: str | None = None
    """What routing earned at the configured price, in words; null if nothing is known of it."""
    verdict: str
    """better, as good or worse, then cheaper, same cost or more expensive, as "as good, cheaper"; or "cannot
    tell yet"."""
    missing: str | None
    """Why there is no verdict, and how many more questions it takes; null if there is a verdict."""
    saved: str
    """What was saved in all, in words."""
    words: str
    """The verdict in words, with its numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What was asked in a period, by the hourly totals: exact, whatever was sampled."""

    questions: int
    """Decisions, of any kind but imported ones."""
    dollars: float
    """Dollars of all outcomes."""
    steps: float
    """Steps of all outcomes."""
    seconds: float
    """Seconds of all outcomes."""
    shares: Mapping[str, float]
    """Arm -> its share of the questions."""
    counted_to: float
    """The figures hold decisions up to this time, seconds since 1970."""
    behind_s: float
    """Seconds from `counted_to` to the newest question of the period."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """The questions that a report was made from."""

    questions: int
    """Questions read."""
    out_of: int
    """Questions of the period, of which they are a uniform sample."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A report of a time. Every line is about the questions that could have had the arm that it is compared with."""

    sentence: str = ""
    """All of it in one sentence."""
    since: float
    """Beginning of the time, seconds since 1970."""
    until: float
    """End of the time."""
    tenant: str | None
    """The tenant that it is about; null: all."""
    unit: Unit
    """The unit of costs: dollars; if none were reported, steps or seconds."""
    why: str | None
    """Why it is compared with this arm; null if there is no arm to compare with."""
    price: str | None = None
    """What a right answer is worth by the reward setting, in words; null without a price."""
    sample: Sample | None = None
    """The sample that comparisons and lines are made from; null if every question was read."""
    asked: Asked | None = None
    """Exact figures of a sampled period; null without a sample, with a tenant, or before hours are counted."""
    total: Line | None
    """All questions; null if nothing can be compared."""
    costs: Mapping[Unit, Comparison]
    """Dollars, steps and seconds over these questions, as far as outcomes report them."""
    arms: tuple[Line, ...]
    """The same against each arm, the most used first."""
    tenants: tuple[Line, ...]
    """By tenant, the largest first; empty if there is only one."""
    prices: tuple[Line, ...]
    """By price."""
    weeks: tuple[Line, ...]
    """By week, which begin on Mondays, UTC."""
    left_out: Mapping[str, int]
    """Questions that are in no line, by the reason; estimated if the report is made from a sample."""
    notes: tuple[str, ...]
    """How the numbers are meant, and what is not among them."""
    learning: str | None = None
    """The state of learning: a word, why, and what to do; null where it is not known."""


#: decisions that are read at once
_PAGE: Final = 2000
#: questions that a report reads: reading them takes about a second, and 20 MB
MOST_ROWS: Final = 30_000
#: units of costs, which every outcome may report
UNITS: Final[tuple[Unit, ...]] = ("dollars", "steps", "seconds")
_COLUMNS: Final = ("made_at", "tenant", "price", "arm", "quality", "reward", "judge", "by_judge", "counts", *UNITS)
_OFFERED: Final = ("row", "place", "pmf", "quality", "cost")
_FORCED: Final = '"forced":true'
#: why a row compares nothing
_NO_DRAW: Final = {STICKY: "a turn that stayed on its arm", KILLED: "an arm that was pinned"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportScope:
    """Which rows: since <= made_at < until, of one tenant or (None) of all, at most about `most` of them.

    label: the ledger whose rewards are read. reward: the setting whose price rewards are counted at; None for the price
    that each was learned at.
    """

    label: str
    since: float
    until: float
    tenant: str | None = None
    most: int = MOST_ROWS
    reward: RewardSettings | None = None

    @property
    def condition(self) -> ColumnElement[bool]:
        """The rows of the period and the tenant."""
        time = decisions.c.made_at
        tenant = [] if self.tenant is None else [decisions.c.tenant == self.tenant]
        return and_(time >= self.since, time < self.until, *tenant)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportRows:
    """n rows that compare arms, the newest first. Vectors have shape (n,), matrices (n, arms)."""

    arms: tuple[str, ...]
    made_at: Vector
    tenant: Choices
    tenants: tuple[str, ...]
    price: Choices
    #: names, or weights of cost as numbers
    prices: tuple[str, ...]
    #: the drawn one
    arm: Choices
    #: 0 for arms that were not offered
    pmf: Matrix
    #: unit -> of the outcomes; NaN where there is none
    costs: Mapping[Unit, Vector]
    #: quality by learned ratings, labels and rewards; NaN if the answer has none
    quality: Vector
    #: what the policy expected of each arm before the draw; NaN where it said nothing
    expected_quality: Matrix
    expected_cost: Matrix
    #: why a row is not among them -> how many
    left_out: Mapping[str, int]
    #: questions of the period, of which the rows and `left_out` are a sample; None if all were read
    whole: int | None = None
    #: reward of the same answers as `quality`: quality less weighted cost; None if it was not read
    reward: Vector | None = None
    #: a judge's scores, in [0, 1], NaN if there is none; None if they stand for the quality, as people rated too few
    judge: Vector | None = None
    #: rows that a label stands for, by the probability of the label queue; None: all are as likely
    counts: Vector | None = None

    @property
    def sample(self) -> Sample | None:
        """The size of the sample; None if all questions of the period were read."""
        read = len(self.arm) + sum(self.left_out.values())
        return None if self.whole is None else Sample(questions=read, out_of=self.whole)

    @property
    def scale(self) -> float:
        """Questions of the period for each one read, left-out ones included."""
        return 1.0 if self.sample is None else self.sample.out_of / max(self.sample.questions, 1)

    def part(self, rows: Flags | slice) -> "ReportRows":
        """The log with these rows only."""
        known = {one.name: getattr(self, one.name) for one in fields(self)}
        cut: dict[str, Any] = {name: value[rows] for name, value in known.items() if isinstance(value, np.ndarray)}
        return replace(self, costs={unit: value[rows] for unit, value in self.costs.items()}, **cut)


def read_log(database: Database, scope: ReportScope) -> ReportRows:
    """The rows of a report, the newest first: all of the period, or a sample. Raises StoreError."""
    with database.read() as connection:
        asked = _count(connection, scope.condition)
        rows = _Rows()
        rows.read(connection, scope, share=share_of(asked, most=scope.most))
        if rows.imported and asked > scope.most:
            asked = _count(connection, scope.condition & ~_IS_IMPORTED)
            rows = _Rows()
            rows.read(connection, scope, share=share_of(asked, most=scope.most))
    return rows.log(whole=asked if asked > scope.most else None)


#: totals of an hour that `Asked` sums
_SUMMED: Final = ("decided", *UNITS)


def read_asked(database: Database, scope: ReportScope) -> Asked | None:
    """Exact figures of the period by the hourly totals; None for one tenant, and if its hours are not counted.

    An hour that lies in the period in part adds the share of its questions that do. Raises StoreError.
    """
    first, last = hour_of(scope.since), hour_of(scope.until)
    sums: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(_SUMMED, 0.0))
    with database.read() as connection:
        counted_to = position_of(connection, TRAFFIC).get("decisions", (-1.0,))[0]
        if scope.tenant is not None or counted_to < scope.since or last - first > KEPT:
            return None
        parts = {(hour, hour + 1): _part(connection, scope, hour=hour) for hour in (first, last)}
        for (since, until), part in {(first + 1, last): 1.0, **parts}.items():
            for arm, totals in summed(connection, policy=None, since=since, until=until, names=_SUMMED).items():
                for name in _SUMMED:
                    sums[arm][name] += part * getattr(totals, name)
        newest = connection.execute(select(func.max(decisions.c.made_at)).where(scope.condition)).scalar()
    questions = math.fsum(each["decided"] for each in sums.values())
    return Asked(
        questions=round(questions),
        **{unit: math.fsum(each[unit] for each in sums.values()) for unit in UNITS},
        shares={arm: each["decided"] / max(questions, 1.0) for arm, each in sums.items()},
        counted_to=min(counted_to, scope.until),
        behind_s=max((newest or 0.0) - counted_to, 0.0),
    )


def _part(connection: Connection, scope: ReportScope, *, hour: int) -> float:
    """The share of an hour's questions that were asked within the period; of its time if none is stored."""
    time, begin, end = decisions.c.made_at, 3600.0 * hour, 3600.0 * (hour + 1)
    since, until = max(begin, scope.since), min(end, scope.until)
    asked = _count(connection, and_(time >= begin, time < end))
    inside = _count(connection, and_(time >= since, time < until))
    return inside / asked if asked else (until - since) / 3600.0


_IS_IMPORTED: Final = decisions.c.facts.contains(f'"{IMPORTED}":')


def _count(connection: Connection, condition: ColumnElement[bool]) -> int:
    return connection.execute(select(func.count()).select_from(decisions).where(condition)).scalar_one()


def share_of(asked: int, *, most: int) -> float:
    """The largest power of 1/2 by which at most `most` of these questions are drawn."""
    return 0.5 ** max(math.ceil(math.log2(max(asked, 1) / most)), 0)


@dataclass(kw_only=True, slots=True)
class _Rows:
    """Rows while they are read: numbers as arrays, a few numbers for each arm on offer."""

    arms: dict[str, int] = field(default_factory=dict)
    #: JSON of the arms on offer -> their names
    offers: dict[str, list[str]] = field(default_factory=dict)
    tenants: dict[str, int] = field(default_factory=dict)
    prices: dict[str, int] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    imported: int = 0
    #: a number for each of _COLUMNS of each row, and for each of _OFFERED of each arm on offer
    columns: "array[float]" = field(default_factory=lambda: array("d"))
    offered: "array[float]" = field(default_factory=lambda: array("d"))

    def read(self, connection: Connection, scope: ReportScope, *, share: float) -> None:
        """Add the rows of the scope whose seeds draw them, the newest first."""
        ours = and_(updates.c.policy == scope.label, updates.c.decision_id == decisions.c.id)
        query = select(
            *decisions.c["made_at", "tenant", "arms", "pmf", "arm", "facts", "request", "price", "cost_weight"],
            *outcomes.c["cost", "steps"],
            *updates.c["quality", "value", "source", "sample_weight", "judged_by", "surrogates", "preset"],
            updates.c.cost.label("charged"),
        ).select_from(
            decisions.outerjoin(outcomes, outcomes.c.decision_id == decisions.c.id).outerjoin(updates, ours),
        )
        if share < 1.0:  # the seed is a decimal without leading zeros
            last = func.substr(decisions.c.seed, func.length(decisions.c.seed) - 5)
            query = query.where(last < f"{round(1e6 * share):06}")
        query = query.where(scope.condition).order_by(decisions.c.made_at.desc(), decisions.c.id.desc())
        with connection.execute(query.execution_options(yield_per=_PAGE)) as rows:
            for row in rows.mappings():
                self.add(row, reward=scope.reward)

    def add(self, row: RowMapping, *, reward: RewardSettings | None) -> None:
        """Add a row, or count why it is left out."""
        facts = row["facts"]
        if f'"{IMPORTED}":' in facts:
            self.imported += 1
            return
        if row["arms"] not in self.offers:
            self.offers[row["arms"]] = json.loads(row["arms"])
        arms = self.offers[row["arms"]]
        why = _why_not(row, arms=arms)
        if why is not None:
            self.left_out[why] += 1
            return
        self._add_offered(arms, pmf=json.loads(row["pmf"]), facts=facts)
        rated = row["source"] == "explicit" and row["sample_weight"] > 0.0
        by_judge = row["judged_by"] == "judge"
        cost = None if row["cost"] is None else json.loads(row["cost"])
        self.columns.extend(
            (
                row["made_at"],
                self.tenants.setdefault(row["tenant"], len(self.tenants)),
                self.prices.setdefault(_price(row), len(self.prices)),
                self.arms[row["arm"]],
                row["quality"] if rated else np.nan,
                _reward(row, setting=reward) if rated else np.nan,
                row["quality"] if by_judge else judge_score(row["surrogates"]),
                by_judge,
                label_weight(json.loads(facts)) if row["judged_by"] == "label" and LABEL_QUEUE in facts else 1.0,
                *(
                    (np.nan,) * 3
                    if cost is None
                    else (cost.get("dollars", 0.0), row["steps"], cost.get("seconds_total", 0.0))
                ),
            )
        )

    def _add_offered(self, arms: list[str], *, pmf: list[float], facts: str) -> None:
        values = json.loads(facts) if '"quality":' in facts else {}
        number, nothing = len(self.columns) // len(_COLUMNS), [np.nan] * len(arms)
        quality, cost = (_numbers(values.get(name), count=len(arms)) or nothing for name in ("quality", "cost"))
        for each in zip(arms, pmf, quality, cost, strict=True):
            self.offered.extend((number, self.arms.setdefault(each[0], len(self.arms)), *each[1:]))

    def log(self, *, whole: int | None) -> ReportRows:
        """The rows as arrays."""
        columns = dict(zip(_COLUMNS, _by_column(self.columns, len(_COLUMNS)), strict=True))
        of = dict(zip(_OFFERED, _by_column(self.offered, len(_OFFERED)), strict=True))
        at, shape = (of["row"].astype(np.intp), of["place"].astype(np.intp)), (len(columns["arm"]), len(self.arms))
        tables = {"pmf": np.zeros(shape), "quality": np.full(shape, np.nan), "cost": np.full(shape, np.nan)}
        for name, table in tables.items():
            table[at] = of[name]
        judge, by_judge = columns["judge"], columns["by_judge"] > 0.0
        told = int((~by_judge & ~np.isnan(columns["quality"] + judge)).sum()) >= FEWEST_BOTH
        for name in ("quality", "reward") if told else ():
            columns[name][by_judge] = np.nan
        return ReportRows(
            arms=tuple(self.arms),
            made_at=columns["made_at"],
            tenant=columns["tenant"].astype(np.intp),
            tenants=tuple(self.tenants),
            price=columns["price"].astype(np.intp),
            prices=tuple(self.prices),
            arm=columns["arm"].astype(np.intp),
            pmf=tables["pmf"],
            costs={unit: columns[unit] for unit in UNITS},
            quality=columns["quality"],
            expected_quality=tables["quality"],
            expected_cost=tables["cost"],
            left_out=dict(self.left_out),
            whole=whole,
            reward=columns["reward"],
            judge=judge if told else None,
            counts=columns["counts"] if (columns["counts"] != 1.0).any() else None,
        )


def _by_column(numbers: "array[float]", width: int) -> Matrix:
    """Numbers that came row by row, shape (width, rows)."""
    return np.array(numbers, dtype=np.float64).reshape(-1, width).T


def _why_not(row: RowMapping, *, arms: list[str]) -> str | None:
    """Why a decision compares nothing; None if it compares arms."""
    for key, why in _NO_DRAW.items():
        if f'"{key}":' in row["facts"]:
            return why
    if _FORCED in (row["request"] or ""):
        return "an arm that the caller chose"
    if len(arms) < 2:
        return "one arm alone on offer"
    if row["cost"] is None and row["source"] != "explicit":
        return "no outcome yet"
    return None


def _reward(row: RowMapping, *, setting: RewardSettings | None) -> float:
    """The reward of a rated answer at the setting's price; a raw reward as it was sent."""
    if setting is None or row["preset"] in WHOLE:
        return float(row["value"])
    value = row["quality"] - setting.weight * row["charged"]
    return float(min(max(value, setting.minimum), setting.maximum))


def _price(row: RowMapping) -> str:
    """The name of a decision's price, else its weight of cost."""
    if row["price"] is not None:
        return str(row["price"])
    return "as configured" if row["cost_weight"] is None else f"weight {row['cost_weight']:g}"


def _numbers(value: Any, *, count: int) -> list[float] | None:
    """The value if it is a list of `count` finite numbers, else None."""
    if not isinstance(value, list) or len(value) != count or not {int, float}.issuperset(map(type, value)):
        return None
    return value if max(map(abs, value)) < 1e15 else None
