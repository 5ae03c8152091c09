"""The part of a deep audit that compares stored rows with each other: outcomes, feedback, paired answers, dollars.

An outcome and feedback must have the hash with which they were stored. Each learned row must have its outcome and its
feedback, and its cost and quality must follow from them. The dollars of a tenant or key on a day must contain those of
its outcomes. Rows whose texts were erased, or never stored, have no hash that can be computed again.
"""

import contextlib
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import RowMapping, Table, func, select, tuple_

from ragbandit.router.learning.audit.checks import PAGE, AuditResult
from ragbandit.router.learning.reward import MEASURES, cost_of_terms, quality_of
from ragbandit.router.storage.access.corrections import Corrections, corrections_of
from ragbandit.router.storage.access.spending import (
    MOST_DOLLARS,
    OTHER,
    UNIT,
    Spender,
    oldest_day,
    spenders_of,
)
from ragbandit.router.storage.access.turn_sums import turn_difference, turn_spenders, turn_sum_labels
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.paired_answers import asked_arms
from ragbandit.router.storage.rows.conversion import feedback_body_hash, feedback_value
from ragbandit.router.storage.rows.outcome_rows import LATER, cost_value, outcome_hashes, outcome_value, own_cost
from ragbandit.router.storage.sql.counters import day_of
from ragbandit.router.storage.sql.json_columns import json_object
from ragbandit.router.storage.sql.tables import counters, decisions, feedback, outcomes, paired_answers, updates
from ragbandit.shared.texts.formats import counted
from ragbandit.shared.types import ERASED, IMPORTED, Feedback, Outcome

#: largest relative difference between a learned number and the number that follows from the rows
_ROUNDING: Final = 1e-9


class RowCheck:
    def __init__(self, ledger: Ledger, *, verdict: AuditResult, now: float) -> None:
        self.ledger, self.verdict, self.now = ledger, verdict, now
        self.without_hash = 0
        self._corrections = Corrections()
        #: arms that paired comparisons have asked; an arm may be newer than a question, and not among its arms
        self._asked_arms = set[str]()
        #: spender -> day -> cost of its outcomes, in multiples of UNIT dollars
        self._dollars: dict[Spender, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def run(self) -> None:
        with self.ledger.database.read() as connection:
            self._corrections = corrections_of(connection)
            self._asked_arms = asked_arms(connection)
        of_ledger = updates.c.policy == self.ledger.label
        for rows in self._pages(updates, updates.c.seq, where=of_ledger):
            self._check_updates(rows)
        for rows in self._pages(outcomes, outcomes.c.decision_id):
            self._check_outcomes(rows)
        for rows in self._pages(feedback, feedback.c.id):
            self._check_feedback(rows)
        for rows in self._pages(paired_answers, *paired_answers.primary_key):
            self._check_paired(rows)
        self._check_spending()
        self._check_turn_sums()
        if self.without_hash:
            what = (
                f"{counted(self.without_hash, 'row')} of outcomes and feedback cannot be compared with the stored hash"
            )
            self.verdict.note(f"{what}: texts were erased or not stored, or later turns were added")

    def _pages(self, table: Table, *key: Any, where: Any = None) -> Iterator[Sequence[RowMapping]]:
        """Yields all rows in pages, in the order of their key."""
        query = select(table).order_by(*key).limit(PAGE)
        query = query if where is None else query.where(where)
        last = list[Any]()
        while True:
            later = query.where(tuple_(*key) > tuple_(*last)) if last else query
            with self.ledger.database.read() as connection:
                rows = connection.execute(later).mappings().all()
            if not rows:
                return
            yield rows
            last = [rows[-1][column.name] for column in key]

    def _rows(self, table: Table, key: Any, ids: Sequence[str], *columns: str) -> dict[str, RowMapping]:
        chosen = select(*(table.c[name] for name in columns)) if columns else select(table)
        with self.ledger.database.read() as connection:
            return {row[key.name]: row for row in connection.execute(chosen.where(key.in_(ids))).mappings()}

    def _fail(self, text: str) -> None:
        self.verdict.fail("row_mismatches", text)

    @contextlib.contextmanager
    def _readable(self, row_name: str) -> Iterator[None]:
        """Turn errors of reading a changed row into a fault. row_name: the row in words"""
        try:
            yield
        except (ValueError, TypeError, KeyError, AttributeError, AssertionError) as error:
            self._fail(f"{row_name} cannot be read: {type(error).__name__}: {error}")

    def _decisions(self, ids: Sequence[str]) -> dict[str, RowMapping]:
        return self._rows(decisions, decisions.c.id, ids, "id", "arm", "tenant", "api_key", "run_by", "facts")

    def _check_outcomes(self, rows: Sequence[RowMapping]) -> None:
        decided = self._decisions([row["decision_id"] for row in rows])
        for row in rows:
            decision = decided.get(row["decision_id"])
            if decision is None:
                continue  # the decision was deleted between two reads
            with self._readable(f"the outcome of decision {row['decision_id']}"):
                self._check_outcome(row, decision=decision)

    def _check_outcome(self, row: RowMapping, *, decision: RowMapping) -> None:
        cost = json_object(row["cost"])
        if not _has_fact(decision, IMPORTED):
            units = round(min(max(own_cost(row["cost"]).dollars, 0.0), MOST_DOLLARS) / UNIT)
            for spender in spenders_of(decision["tenant"], key=decision["api_key"]):
                self._dollars[spender][day_of(row["made_at"])] += units
        if row["trace"] is None or LATER in cost or _has_fact(decision, ERASED):
            self.without_hash += 1
        elif row["body_hash"] not in outcome_hashes(row):
            self._fail(f"the outcome of decision {row['decision_id']} is not what was stored")

    def _check_feedback(self, rows: Sequence[RowMapping]) -> None:
        decided = self._decisions([row["decision_id"] for row in rows])
        for row in rows:
            decision = decided.get(row["decision_id"])
            if decision is None:
                continue
            if _has_fact(decision, ERASED):
                self.without_hash += 1
                continue
            with self._readable(f"the feedback {row['id']}"):
                if row["body_hash"] != feedback_body_hash(feedback_value(row)):
                    self._fail(f"the feedback {row['id']} of decision {row['decision_id']} is not what was stored")

    def _check_paired(self, rows: Sequence[RowMapping]) -> None:
        decided = self._rows(decisions, decisions.c.id, [row["decision_id"] for row in rows], "id", "arm", "arms")
        for row in rows:
            decision = decided.get(row["decision_id"])
            if decision is None:
                continue
            what = f"the paired answer of {row['arm']} to decision {row['decision_id']}"
            with self._readable(what):
                cost_value(row["cost"])
                if row["quality"] is not None and not 0.0 <= row["quality"] <= 1.0:
                    self._fail(f"{what} has the quality {row['quality']:g}, outside of 0 to 1")
                if row["arm"] not in json.loads(decision["arms"]) and row["arm"] not in self._asked_arms:
                    self._fail(f"{what}: the arm was not offered, and no paired comparison has asked it")
                if row["is_stored"] and row["arm"] != decision["arm"]:
                    self._fail(f"{what} is called stored, but the decision drew {decision['arm']}")

    def _check_updates(self, rows: Sequence[RowMapping]) -> None:
        decided = self._decisions([row["decision_id"] for row in rows])
        reported = self._rows(outcomes, outcomes.c.decision_id, [row["decision_id"] for row in rows])
        named = {row["seq"]: list(json.loads(row["feedback_ids"])) for row in rows}
        judged = self._rows(feedback, feedback.c.id, sorted({key for keys in named.values() for key in keys}))
        for row in rows:
            decision = decided.get(row["decision_id"])
            if decision is None or _has_fact(decision, IMPORTED):
                continue  # the reward of an imported row comes from a file
            used = [judged.get(key) for key in named[row["seq"]]]
            with self._readable(f"what update {row['seq']} was learned from"):
                for fault in self._faults(row, decision=decision, outcome=reported.get(row["decision_id"]), used=used):
                    self._fail(f"update {row['seq']}, decision {row['decision_id']}: {fault}")

    def _faults(
        self, row: RowMapping, *, decision: RowMapping, outcome: RowMapping | None, used: Sequence[RowMapping | None]
    ) -> Iterator[str]:
        items = [feedback_value(item) for item in used if item is not None]
        if len(items) < len(used) or any(item.decision_id != row["decision_id"] for item in items):
            yield "its feedback is missing"
            return
        if row["source"] == "explicit" and not items:
            yield "it was learned from feedback, and names none"
        if outcome is None:
            if row["source"] == "explicit" and (decision["run_by"] == "worker" or row["preset"] != "reward"):
                yield "its outcome is missing"
            return
        value = outcome_value({**outcome, "trace": None})
        costs = self._possible_costs(row, decision=decision, outcome=outcome, value=value)
        if not _between(row["cost"], costs):
            yield f"the cost {row['cost']:g} does not follow from the outcome"
        is_readable = not _has_fact(decision, ERASED) and (value.answer is not None or value.status != "answered")
        if items and (is_readable or all(item.kind != "label" for item in items)):
            qualities = list(_possible_qualities(row, items=items, outcome=value))
            if not _between(row["quality"], qualities):
                yield f"the quality {row['quality']:g} does not follow from the feedback"

    def _possible_costs(
        self, row: RowMapping, *, decision: RowMapping, outcome: RowMapping, value: Outcome
    ) -> list[float]:
        """Possible costs: with and without later turns of the tool loop, each with the first k price corrections."""
        terms = {name: float(price) for name, price in json_object(row["terms"]).items()}
        facts: dict[str, Any] = {"decision_id": row["decision_id"], "arm": decision["arm"]}
        facts |= {"made_by": value.made_by, "made_at": value.made_at}
        costs = []
        for count in range(len(self._corrections.rules) + 1):
            corrections = Corrections(self._corrections.rules[:count])
            for cost in (value.cost, own_cost(outcome["cost"])):
                right = corrections.cost(cost, **facts)
                costs += [cost_of_terms(value.steps, right, terms=terms)]
        # A default and a raw reward are learned at cost 0 without an outcome, which may have arrived later.
        return [*costs, *([0.0] if row["source"] == "default" or row["preset"] == "reward" else [])]

    def _check_spending(self) -> None:
        """Check the sums of spending. They are read after the outcomes, so new traffic may have made them larger."""
        labels = {spender.label: spender for spender in self._dollars}
        query = select(counters.c.label, counters.c.name, func.sum(counters.c.value).label("sum"))
        query = query.where(counters.c.label.in_(labels)).group_by(counters.c.label, counters.c.name)
        sums: dict[Spender, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        with self.ledger.database.read() as connection:
            for row in connection.execute(query):
                of_outcomes = -int(row.sum) if row.name.endswith(OTHER) else int(row.sum)
                sums[labels[row.label]][row.name.removesuffix(OTHER)] += of_outcomes
        for spender, days in self._dollars.items():
            for day, units in days.items():
                if day >= oldest_day(self.now) and sums[spender][day] < units:
                    text = f"{sums[spender][day] * UNIT:.6g} dollars are counted, its outcomes cost {units * UNIT:.6g}"
                    self._fail(f"{spender.kind} {spender.name}, {day}: {text}")

    def _check_turn_sums(self) -> None:
        """Compare the sums of sessions and tasks with their decisions, each in a transaction that sees one state."""
        with self.ledger.database.read() as connection:
            unseen = turn_sum_labels(connection)
        for rows in self._pages(decisions, decisions.c.id) if unseen else ():
            for spender in {spender for row in rows for spender in turn_spenders(row)}:
                if spender.label in unseen:
                    unseen.discard(spender.label)
                    with self.ledger.database.read() as connection:
                        difference = turn_difference(connection, spender)
                    if difference is not None:
                        self._fail(f"the {spender.kind} of {spender.name:.80}: {difference}: run `ragbandit migrate`")
        with self.ledger.database.read() as connection:
            left = len(unseen & turn_sum_labels(connection))
        if left:
            self._fail(f"{counted(left, 'sum')} of sessions and tasks have no decisions: run `ragbandit migrate`")


def _has_fact(decision: RowMapping, name: str) -> bool:
    return name in json_object(decision["facts"])


def _between(value: float, bounds: Sequence[float]) -> bool:
    slack = _ROUNDING * max(1.0, abs(value))
    return not bounds or min(bounds) - slack <= value <= max(bounds) + slack


def _possible_qualities(row: RowMapping, *, items: Sequence[Feedback], outcome: Outcome) -> Iterator[float]:
    """Yields the qualities of the feedback, and their sum. Every aggregation gives a value between these."""
    has_label = any(item.kind == "label" for item in items)
    measures = [row["preset"]] if row["preset"] in MEASURES else MEASURES if has_label else MEASURES[:1]
    for measure in measures:
        qualities = [quality_of(item, outcome=outcome, measure=measure) for item in items]
        yield from qualities
        yield math.fsum(qualities)
