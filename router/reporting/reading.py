"""A report and its rows: decisions of a time with their outcomes and what the ledger learned of them, as arrays.

Read in batches, the newest first, up to a number of rows. Imported decisions are no traffic, and are not counted.
"""

import json
import math
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from sqlalchemy import and_, select

from ragbandit.router.learning.sources import label_weight
from ragbandit.router.storage.rows.outcome_rows import cost_value
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, outcomes, updates
from ragbandit.shared.confidence_sequences import FEWEST_BOTH, JudgeSlopes, Tried, asymptotic_width, judge_score
from ragbandit.shared.types import IMPORTED, KILLED, LABEL_QUEUE, STICKY, Matrix, Vector
from ragbandit.shared.types.ledger import effective_rows

Unit = Literal["dollars", "steps", "seconds"]
Choices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]

#: false alarms of an interval that is looked at again and again, and the effective rows at which it is narrowest
ALPHA: Final = 0.05
_NARROWEST_AT: Final = 200
#: rows of the heaviest weight and the farthest value that the interval allows for (python -m benchmarks.report)
_UNSEEN_ROWS: Final = 1.5
#: rows of the mean of all that the mean of an arm is begun with
_BEGUN: Final = 2.0
#: a slope is fitted from so many seen rows on, and halved where there are as many effective ones
_FEWEST_OF_SLOPE: Final = 20
_HALF_SLOPE: Final = 20.0
#: of the reach to the side of rare rows (skewness): of Wilson's a twentieth less, so that it holds at every look
_LEAN: Final = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What was served against always one arm, per question."""

    served: float | None = None
    """Mean of what was served; null: nothing is known of it."""
    always: float | None = None
    """The same had always the arm been used, estimated; null, with what follows, where it is not tried enough."""
    difference: float | None = None
    """`served` - `always`."""
    low: float | None = None
    """Lower end of its 95 % interval, which holds however often one looks."""
    high: float | None = None
    """Upper end of the interval."""
    draws: int
    """Questions that drew the arm."""
    seen: int
    """Of these: with an outcome (costs), or rated (quality)."""
    effective_rows: float
    """Effective rows of the comparison: how many rows of equal weight it is worth."""
    missing: str | None
    """Why there is no interval, in words; null where there is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of a report."""

    name: str
    """What it is about."""
    against: str
    """The arm that it is compared with."""
    questions: int
    """Questions that could have had this arm."""
    cost: Comparison
    """Cost per question, in the report's unit."""
    quality: Comparison
    """Quality of the rated answers, per question."""
    verdict: str
    """better, as good or worse, then cheaper, same cost or more expensive, as "as good, cheaper"; or "cannot
    tell yet"."""
    missing: str | None
    """Why there is no verdict, and how many more questions it takes; null where there is one."""
    saved: str
    """What was saved in all, in words."""
    words: str
    """The verdict in words, with its numbers."""


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
    """What costs are in: dollars; where none were reported steps or seconds."""
    why: str | None
    """Why it is compared with this arm; null where there is none to compare with."""
    total: Line | None
    """All questions; null where nothing can be compared."""
    costs: Mapping[Unit, Comparison]
    """Dollars, steps and seconds over these questions, as far as outcomes tell them."""
    arms: tuple[Line, ...]
    """The same against each arm, the most used first."""
    tenants: tuple[Line, ...]
    """By tenant, the largest first; empty where there is one alone."""
    prices: tuple[Line, ...]
    """By price."""
    weeks: tuple[Line, ...]
    """By week, which begin on Mondays, UTC."""
    left_out: Mapping[str, int]
    """Questions that are in no line, by the reason."""
    notes: tuple[str, ...]
    """How the numbers are meant, and what is not among them."""
    learning: str | None = None
    """The state of learning: a word, why, and what to do; null where it is not known."""


def compared(
    value: Vector,
    *,
    arm: Choices,
    pmf: Matrix,
    predicted: Matrix,
    against: int | Choices,
    least: float,
    most: float,
    judge: Vector | None = None,
    counts: Vector | None = None,
) -> Comparison:
    """The comparison with always the arm `against`, or that of each row, shape (n,), in the unit of the values.

    value: shape (n,), NaN where it is not seen, the newest first. arm: the one drawn. pmf: shape (n, K), above 0 for
    `against` in every row. predicted: what the policy expected of each arm before the draw, shape (n, K), NaN where it
    said nothing. least, most: between which a value may lie. judge: scores of the answers, seen or not, shape (n,), in
    [0, 1], NaN where there is none: a control variate. Then each end of the interval is that of the estimate with the
    scores or without, whichever reaches less far: to the side of rare losses they may tell less than the losses do.
    counts: rows that each one stands for where it is seen, shape (n,), > 0: the inverse of its probability to be seen.
    None: all are as likely.
    """
    n, seen, mine, told = len(value), ~np.isnan(value), arm == against, np.full(len(value), np.nan)
    drawn, at = mine & seen, (np.arange(n), np.broadcast_to(against, n))

    def found(effective: float = 0.0, *, served: float | None = None) -> Comparison:
        tried = Tried(draws=int(mine.sum()), judged=int(drawn.sum()), effective=effective, questions=n)
        counts: dict[str, Any] = {"draws": tried.draws, "seen": tried.judged, "effective_rows": effective}
        return Comparison(**counts, missing=tried.missing, served=served)

    if not seen.any():
        return found()
    stands, counts = counts, np.where(seen, 1.0 if counts is None else counts, 0.0)
    plain = None
    if judge is not None:
        given: dict[str, Any] = {"arm": arm, "pmf": pmf, "predicted": predicted, "against": against}
        plain = compared(value, **given, least=least, most=most, counts=stands)
        told = _told(value, arm=arm, judge=judge, least=least, most=most)
    served, share, unknown = _served(value, counts=counts, arm=arm, guess=predicted[np.arange(n), arm], told=told)
    if not drawn.any():
        return found(served=float(served.mean()))
    inverse, rated = 1.0 / pmf[at], float(share[at[1]].min())
    weight = np.where(drawn, inverse * counts, 0.0)
    effective = min(
        effective_rows(float(weight.sum()), squares=float((weight**2).sum())),
        # By the probabilities alone, those of questions that hardly ever draw the arm among them.
        rated * effective_rows(float(n), squares=float((inverse if stands is None else inverse * stands).sum())),
        effective_rows(float((counts / share[arm]).sum()), squares=float(((counts / share[arm]) ** 2).sum())),
    )
    known = found(effective, served=float(served.mean()))
    if known.missing is not None:
        return known
    model = _fitted(value, weight=weight, predicted=predicted[at])
    scored = _centred(told, weight=np.where(mine, inverse, 0.0))
    always = model + np.where(drawn, value - model - scored, 0.0) * weight * (n / weight.sum())
    always += scored * inverse * (n / inverse[mine].sum())
    difference = served - always
    variance = float(difference.var(ddof=1)) / n * effective / (effective - 2.0)
    # Mean w^3 over mean w^2, by the probabilities (`heavy_weight` of offline/estimation).
    if stands is None:
        heavy = float((inverse**2).sum() / inverse.sum()) / rated
        heavy = max(heavy, 0.0 if seen.all() else float(1.0 / share[arm[seen]].min()))
    else:  # the same of what a label of each row would add to the difference, by its probability
        adds = stands * np.abs(1.0 - np.where(mine, inverse, 0.0))
        heavy = float((adds**3 / stands).sum() / (adds**2 / stands).sum()) / rated
    middle = float(difference.mean())
    below, above = _reach(difference - middle, variance=variance, far=heavy * (most - least) / n)
    width = float(asymptotic_width(np.array([effective]), alpha=ALPHA, tightest_at=_NARROWEST_AT, sides=2)[0])
    times, edge = width * math.sqrt(effective), unknown * (most - least)
    low, high = middle - times * below - edge, middle + times * above + edge
    if plain is not None and plain.difference is not None and plain.low is not None and plain.high is not None:
        low = min(middle, plain.low if plain.difference - plain.low < middle - low else low)
        high = max(middle, plain.high if plain.high - plain.difference < high - middle else high)
    return replace(known, always=float(always.mean()), difference=middle, low=low, high=high)


def _told(value: Vector, *, arm: Choices, judge: Vector, least: float, most: float) -> Vector:
    """What a judge's score adds to the model of each row but for a mean, shape (n,); NaN where there is none."""
    names, newest = tuple(map(str, range(int(arm.max()) + 1))), slice(None, None, -1)
    scaled = ((value - least) / (most - least))[newest]
    slopes = JudgeSlopes().before(names, arm=arm[newest], value=scaled, judge=judge[newest])[newest]
    return np.asarray(slopes * (most - least) * (judge - 0.5))


def _reach(off: Vector, *, variance: float, far: float) -> tuple[float, float]:
    """(below, above): how far the interval of a mean reaches, in standard errors.

    off: the rows less their mean; far: what the farthest row adds to the mean. The variance grows towards the side of
    rare rows, of which a few were seen: as Wilson's interval (1927) of a share, that of a mean leans to that side. To
    the other side _UNSEEN_ROWS are allowed for only as far as the rows show that they lie there seldom.
    """
    if far <= 0.0:  # nothing that an arm of no cost adds is unseen
        return math.sqrt(variance), math.sqrt(variance)
    rows = off / (len(off) * far)
    lean = float(rows @ rows**2) / max(float(rows @ rows), 1e-300)  # in units of `far`
    seldom = min(math.hypot(lean, 1.0 / math.sqrt(1.0 + 2.0 * float(rows**2 @ rows**2))), 1.0)
    near, wide = (math.sqrt(variance + (_UNSEEN_ROWS * far * one) ** 2) for one in (seldom, 1.0))
    shift = _LEAN * _UNSEEN_ROWS * far * max(min(lean, 1.0), -1.0)
    below, above = (near, wide) if lean > 0.0 else (wide, near)
    return max(below - shift, 0.0), max(above + shift, 0.0)


def _served(
    value: Vector, *, counts: Vector, arm: Choices, guess: Vector, told: Vector
) -> tuple[Vector, Vector, float]:
    """`served` of each row; the share of seen rows by arm, 1 for an arm without any; the share of rows of such arms."""
    seen = counts > 0.0
    model, whole = np.empty(len(value)), float(np.average(value[seen], weights=counts[seen]))
    share, unknown = np.ones(int(arm.max()) + 1), 0.0
    for one in np.unique(arm):
        rows = arm == one
        known = rows & seen
        if not known.any():
            model[rows], unknown = whole, unknown + float(rows.mean())
            continue
        share[one] = counts[rows].sum() / rows.sum()
        fitted = _fitted(value[rows], weight=counts[rows], predicted=guess[rows])
        begun = _BEGUN / (_BEGUN + known.sum()) * (whole - float(np.average(value[known], weights=counts[known])))
        model[rows] = fitted + begun + _centred(told[rows], weight=np.ones(int(rows.sum())))
    served = model + np.where(seen, value - model, 0.0) * counts / share[arm]
    return served, share, unknown


def _centred(told: Vector, *, weight: Vector) -> Vector:
    """What the scores add to the model of each row, shape (n,): of mean 0 over the rows with a weight, else 0."""
    known = np.where(np.isnan(told), 0.0, weight)
    return np.asarray(np.where(known > 0.0, told - np.nansum(known * told) / max(known.sum(), 1e-300), 0.0))


def _fitted(value: Vector, *, weight: Vector, predicted: Vector) -> Vector:
    """The m of every row, from those with a weight: their weighted mean, and a slope on the predictions, shape (n,)."""
    known = weight > 0.0
    w, y = weight[known], value[known]
    mean = float(w @ y / w.sum())
    flat = np.full(len(value), mean)
    x = predicted[known]
    if known.sum() < _FEWEST_OF_SLOPE or np.isnan(x).all():
        return flat
    centre = float(np.nansum(w * x) / w[~np.isnan(x)].sum())
    away = np.where(np.isnan(predicted), 0.0, predicted - centre)
    scatter = float(w @ away[known] ** 2)
    if scatter <= 0.0:
        return flat
    rows = effective_rows(float(w.sum()), squares=float((w**2).sum()))
    slope = float(w @ (away[known] * (y - mean))) / scatter * rows / (rows + _HALF_SLOPE)
    fitted: Vector = mean + slope * away
    return fitted


#: decisions that are read at once
_PAGE: Final = 2000
#: what a row may tell beside its quality, from all outcomes
UNITS: Final[tuple[Unit, ...]] = ("dollars", "steps", "seconds")
_COLUMNS: Final = ("made_at", "tenant", "price", "arm", "quality", "reward", "judge", "by_judge", "counts", *UNITS)
_OFFERED: Final = ("row", "place", "pmf", "quality", "cost")
_FORCED: Final = '"forced":true'
#: why a row compares nothing
_NO_DRAW: Final = {STICKY: "a turn that stayed on its arm", KILLED: "an arm that was pinned"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportScope:
    """Which rows: since <= made_at < until, of a tenant (None: all), the newest `most`; label: of the ledger."""

    label: str
    since: float
    until: float
    tenant: str | None = None
    most: int = 200_000


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
    #: of ratings, labels and rewards that are learned; NaN where there is none
    quality: Vector
    #: what the policy expected of each arm before the draw; NaN where it said nothing
    expected_quality: Matrix
    expected_cost: Matrix
    #: why a row is not among them -> how many
    left_out: Mapping[str, int]
    #: there are more rows than were read
    cut: bool
    #: what was learned of the same answers as `quality`: less their cost; None: not read
    reward: Vector | None = None
    #: a judge's scores, in [0, 1], NaN where there is none; None: they are the quality, since people rated too few
    judge: Vector | None = None
    #: rows that a label stands for, by the probability of the label queue; None: all are as likely
    counts: Vector | None = None

    def part(self, rows: Flags | slice) -> "ReportRows":
        """These rows alone."""
        known = {one.name: getattr(self, one.name) for one in fields(self)}
        cut: dict[str, Any] = {name: value[rows] for name, value in known.items() if isinstance(value, np.ndarray)}
        return replace(self, costs={unit: value[rows] for unit, value in self.costs.items()}, **cut)


def read_log(database: Database, scope: ReportScope) -> ReportRows:
    """The rows of a report. Raises StoreError."""
    time, ours = decisions.c.made_at, and_(updates.c.policy == scope.label, updates.c.decision_id == decisions.c.id)
    query = select(
        *decisions.c["made_at", "tenant", "arms", "pmf", "arm", "facts", "request", "price", "cost_weight"],
        *outcomes.c["cost", "steps"],
        *updates.c["quality", "value", "source", "sample_weight", "judged_by", "surrogates"],
    ).select_from(
        decisions.outerjoin(outcomes, outcomes.c.decision_id == decisions.c.id).outerjoin(updates, ours),
    )
    query = query.where(time >= scope.since, time < scope.until, ~decisions.c.facts.contains(f'"{IMPORTED}":'))
    if scope.tenant is not None:
        query = query.where(decisions.c.tenant == scope.tenant)
    query = query.order_by(time.desc(), decisions.c.id.desc()).limit(scope.most + 1).execution_options(yield_per=_PAGE)
    rows = _Rows()
    with database.read() as connection, connection.execute(query) as found:
        for number, row in enumerate(found.mappings()):
            if number == scope.most:
                return rows.log(cut=True)
            rows.add(dict(row))
    return rows.log(cut=False)


@dataclass(kw_only=True, slots=True)
class _Rows:
    """Rows while they are read: numbers as arrays, a few numbers for each arm on offer."""

    arms: dict[str, int] = field(default_factory=dict)
    tenants: dict[str, int] = field(default_factory=dict)
    prices: dict[str, int] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    #: a number for each of _COLUMNS of each row, and for each of _OFFERED of each arm on offer
    columns: "array[float]" = field(default_factory=lambda: array("d"))
    offered: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, row: Mapping[str, Any]) -> None:
        """Take a row in, or count why not."""
        facts = row["facts"]
        arms: list[str] = json.loads(row["arms"])
        why = _why_not(row, arms=arms)
        if why is not None:
            self.left_out[why] += 1
            return
        self._add_offered(arms, pmf=json.loads(row["pmf"]), facts=facts)
        rated = row["source"] == "explicit" and row["sample_weight"] > 0.0
        by_judge = row["judged_by"] == "judge"
        cost = None if row["cost"] is None else cost_value(row["cost"])
        self.columns.extend(
            (
                row["made_at"],
                self.tenants.setdefault(row["tenant"], len(self.tenants)),
                self.prices.setdefault(_price(row), len(self.prices)),
                self.arms[row["arm"]],
                row["quality"] if rated else np.nan,
                row["value"] if rated else np.nan,
                row["quality"] if by_judge else judge_score(row["surrogates"]),
                by_judge,
                label_weight(json.loads(facts)) if row["judged_by"] == "label" and LABEL_QUEUE in facts else 1.0,
                *((np.nan,) * 3 if cost is None else (cost.dollars, row["steps"], cost.seconds_total)),
            )
        )

    def _add_offered(self, arms: list[str], *, pmf: list[float], facts: str) -> None:
        values = json.loads(facts) if '"quality":' in facts else {}
        number, nothing = len(self.columns) // len(_COLUMNS), [np.nan] * len(arms)
        quality, cost = (_numbers(values.get(name), count=len(arms)) or nothing for name in ("quality", "cost"))
        for each in zip(arms, pmf, quality, cost, strict=True):
            self.offered.extend((number, self.arms.setdefault(each[0], len(self.arms)), *each[1:]))

    def log(self, *, cut: bool) -> ReportRows:
        """All of them."""
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
            cut=cut,
            reward=columns["reward"],
            judge=judge if told else None,
            counts=columns["counts"] if (columns["counts"] != 1.0).any() else None,
        )


def _by_column(numbers: "array[float]", width: int) -> Matrix:
    """Numbers that came row by row, shape (width, rows)."""
    return np.array(numbers, dtype=np.float64).reshape(-1, width).T


def _why_not(row: Mapping[str, Any], *, arms: list[str]) -> str | None:
    """Why a decision compares nothing; None where it does."""
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


def _price(row: Mapping[str, Any]) -> str:
    """The name of a decision's price, else its weight of cost."""
    if row["price"] is not None:
        return str(row["price"])
    return "as configured" if row["cost_weight"] is None else f"weight {row['cost_weight']:g}"


def _numbers(value: Any, *, count: int) -> list[float] | None:
    """The value where it is a list of so many finite numbers."""
    if not isinstance(value, list) or len(value) != count:
        return None
    return value if all(isinstance(each, int | float) and abs(each) < 1e15 for each in value) else None
