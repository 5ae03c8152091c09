"""Rows of a report: decisions of a time with their outcomes and what the ledger learned of them, as arrays.

Read in batches, the newest first, up to a number of rows. Imported decisions are no traffic, and are not counted.
"""

import json
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from sqlalchemy import Connection, and_, select, tuple_

from ragbandit.router.reporting.estimates import Choices
from ragbandit.router.storage.rows.outcome_rows import cost_value
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, outcomes, updates
from ragbandit.shared.types import IMPORTED, KILLED, STICKY, Matrix, Vector

Unit = Literal["dollars", "steps", "seconds"]

#: decisions that are read at once
_PAGE: Final = 2000
#: what a row may tell beside its quality, from all outcomes
UNITS: Final[tuple[Unit, ...]] = ("dollars", "steps", "seconds")
_COLUMNS: Final = ("made_at", "tenant", "price", "arm", "quality", *UNITS)
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
class Log:
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


def read_log(database: Database, scope: ReportScope) -> Log:
    """The rows of a report. Raises StoreError."""
    rows, last = _Rows(), None
    while rows.read < scope.most:
        with database.read() as connection:
            page = _page(connection, scope, before=last, limit=min(_PAGE, scope.most - rows.read))
        for row in page:
            rows.add(row)
        if len(page) < _PAGE:
            break
        last = page[-1]["made_at"], page[-1]["id"]
    with database.read() as connection:
        cut = rows.read >= scope.most and bool(_page(connection, scope, before=last, limit=1))
    return rows.log(cut=cut)


def _page(connection: Connection, scope: ReportScope, *, before: Any, limit: int) -> list[Mapping[str, Any]]:
    query = select(
        *decisions.c["id", "made_at", "tenant", "arms", "pmf", "arm", "facts", "request", "price", "cost_weight"],
        *outcomes.c["cost", "steps"],
        *updates.c["quality", "source", "sample_weight"],
    ).select_from(
        decisions.outerjoin(outcomes, outcomes.c.decision_id == decisions.c.id).outerjoin(
            updates, and_(updates.c.policy == scope.label, updates.c.decision_id == decisions.c.id)
        )
    )
    time = decisions.c.made_at
    query = query.where(time >= scope.since, time < scope.until)
    if scope.tenant is not None:
        query = query.where(decisions.c.tenant == scope.tenant)
    if before is not None:
        # The first bound is for the index, which has no ids.
        query = query.where(time <= before[0], tuple_(time, decisions.c.id) < tuple_(*before))
    query = query.order_by(time.desc(), decisions.c.id.desc()).limit(limit)
    return [dict(row) for row in connection.execute(query).mappings()]


@dataclass(kw_only=True, slots=True)
class _Rows:
    """Rows while they are read: numbers as arrays, a few numbers for each arm on offer."""

    #: rows of the database, those left out too
    read: int = 0
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
        if f'"{IMPORTED}":' in facts:
            return
        self.read += 1
        arms: list[str] = json.loads(row["arms"])
        why = _why_not(row, arms=arms)
        if why is not None:
            self.left_out[why] += 1
            return
        self._add_offered(arms, pmf=json.loads(row["pmf"]), facts=facts)
        rated = row["source"] == "explicit" and row["sample_weight"] > 0.0
        cost = None if row["cost"] is None else cost_value(row["cost"])
        self.columns.extend(
            (
                row["made_at"],
                self.tenants.setdefault(row["tenant"], len(self.tenants)),
                self.prices.setdefault(_price(row), len(self.prices)),
                self.arms[row["arm"]],
                row["quality"] if rated else np.nan,
                *((np.nan,) * 3 if cost is None else (cost.dollars, row["steps"], cost.seconds_total)),
            )
        )

    def _add_offered(self, arms: list[str], *, pmf: list[float], facts: str) -> None:
        values = json.loads(facts) if '"quality":' in facts else {}
        number, nothing = len(self.columns) // len(_COLUMNS), [np.nan] * len(arms)
        quality, cost = (_numbers(values.get(name), count=len(arms)) or nothing for name in ("quality", "cost"))
        for each in zip(arms, pmf, quality, cost, strict=True):
            self.offered.extend((number, self.arms.setdefault(each[0], len(self.arms)), *each[1:]))

    def log(self, *, cut: bool) -> Log:
        """All of them."""
        columns = dict(zip(_COLUMNS, _by_column(self.columns, len(_COLUMNS)), strict=True))
        of = dict(zip(_OFFERED, _by_column(self.offered, len(_OFFERED)), strict=True))
        at, shape = (of["row"].astype(np.intp), of["place"].astype(np.intp)), (len(columns["arm"]), len(self.arms))
        tables = {"pmf": np.zeros(shape), "quality": np.full(shape, np.nan), "cost": np.full(shape, np.nan)}
        for name, table in tables.items():
            table[at] = of[name]
        return Log(
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
