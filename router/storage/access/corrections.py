"""Corrections of prices: rules that give outcomes the right dollars. Stored outcomes keep the dollars of their time.

A correction is an entry of the audit log. Its change of the sums of spending is added to the days of the outcomes, and
counted apart with the dollars that no outcome explains, so the sums still follow from the outcomes.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from sqlalchemy import RowMapping, and_, select

from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.access.spending import Spender, change_dollars, oldest_day, read_spending, spenders_of
from ragbandit.router.storage.rows.conversion import from_json
from ragbandit.router.storage.rows.outcome_rows import own_cost
from ragbandit.router.storage.sql.bulk_insert import run_statement
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import Increments, WriteTransaction, day_of
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.json_columns import json_object
from ragbandit.router.storage.sql.tables import audit_log, decisions, outcomes, updates
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.model_servers.token_usage import Tokens
from ragbandit.shared.texts.formats import known_choices
from ragbandit.shared.types import Cost, JoinedDecision

ACTION: Final = "price.correct"
CREDIT: Final = "spending.credit"
_PAGE: Final = 1000
#: number of the advisory lock of PostgreSQL for corrections
_LOCK: Final = int.from_bytes(b"reprice")


@dataclass(frozen=True, kw_only=True, slots=True)
class Correction:
    """The right dollars of some outcomes: `dollars`, or `factor` times their dollars, or the price of their tokens.

    number: number in the audit log; 0 before it is stored
    decision, arm, generator, since, until: conditions on the outcomes, or None. generator: name of the model, or
        of the generator in the settings. since, until: since <= end of the run < until, seconds since 1970
    prices: arm -> model -> dollars per million tokens, see `Tokens.dollars`
    """

    number: int = 0
    decision: str | None = None
    arm: str | None = None
    generator: str | None = None
    since: float | None = None
    until: float | None = None
    dollars: float | None = None
    factor: float | None = None
    prices: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)

    def covers(self, *, decision_id: str, arm: str, made_by: Mapping[str, Any], made_at: float) -> bool:
        return (
            self.decision in (None, decision_id)
            and self.arm in (None, arm)
            and (self.generator is None or self.generator in generators_of(made_by))
            and (self.since is None or made_at >= self.since)
            and (self.until is None or made_at < self.until)
        )

    def dollars_of(self, cost: Cost, *, arm: str, model: object, ended_at: float) -> float | None:
        """The right dollars of a covered outcome; None if the correction cannot change it, for lack of a price.

        ended_at: end of the run, seconds since 1970
        """
        if self.dollars is not None:
            return self.dollars
        if self.factor is not None:
            return None if cost.assumed_dollars else cost.dollars * self.factor
        lists = self.prices.get(arm, {})
        prices = lists.get(str(cost.price.get("model")), lists.get(str(model)))
        tokens = Tokens(
            read=cost.prompt_tokens,
            written=cost.completion_tokens,
            cached=cost.cached_tokens,
            cache_write=cost.cache_write_tokens,
            reasoning=cost.reasoning_tokens,
        )
        tier = str(cost.price.get("tier", ""))
        return None if prices is None else tokens.dollars(prices, calls=cost.llm_calls, tier=tier, end=ended_at)


def generators_of(made_by: Mapping[str, Any]) -> set[str]:
    """Names of an outcome's generator: the model's name, and the name in the settings."""
    params = made_by.get("params")
    names = made_by.get("generator"), params.get("generator") if isinstance(params, dict) else None
    return {name for name in names if isinstance(name, str)}


class Corrections:
    """The stored corrections, in the order of their numbers."""

    def __init__(self, rules: Sequence[Correction] = ()) -> None:
        self.rules = tuple(rules)

    def applied(self, joined: JoinedDecision) -> JoinedDecision:
        """The decision with the right dollars in its outcome."""
        outcome = joined.outcome
        if outcome is None or not self.rules:
            return joined
        cost = self.cost(
            outcome.cost,
            decision_id=joined.decision.id,
            arm=joined.decision.arm,
            made_by=outcome.made_by,
            made_at=outcome.made_at,
        )
        return joined if cost == outcome.cost else replace(joined, outcome=replace(outcome, cost=cost))

    def cost(self, cost: Cost, *, decision_id: str, arm: str, made_by: Mapping[str, Any], made_at: float) -> Cost:
        """The cost of an outcome with the right dollars."""
        for rule in self.rules:
            if rule.covers(decision_id=decision_id, arm=arm, made_by=made_by, made_at=made_at):
                dollars = rule.dollars_of(cost, arm=arm, model=made_by.get("generator"), ended_at=made_at)
                cost = cost if dollars is None else replace(cost, dollars=dollars, assumed_dollars=0.0)
        return cost


def hold_corrections(connection: Connection) -> None:
    """Let no other transaction store a correction until this one ends."""
    if not connection.is_sqlite:
        run_statement(connection, f"SELECT pg_advisory_xact_lock_shared({_LOCK})")


def corrections_of(connection: Connection) -> Corrections:
    query = select(audit_log.c.number, audit_log.c.facts).where(audit_log.c.action == ACTION)
    rows = connection.execute(query.order_by(audit_log.c.number)).all()
    return Corrections([from_json(Correction, {**json_object(facts), "number": number}) for number, facts in rows])


@dataclass(kw_only=True, slots=True)
class Changes:
    """The effects of a correction. dollars_before, dollars_after: sums over `outcomes`, the changed outcomes."""

    tally: Increments
    outcomes: int = 0
    dollars_before: float = 0.0
    dollars_after: float = 0.0
    #: number of outcomes to which the correction applies, but whose tokens have no price
    unpriced: int = 0
    #: number of changed outcomes whose reward is learned in the ledger
    learned: int = 0
    #: generators of all outcomes of the named arm or decision, also of outcomes that the correction does not change
    generators: set[str] = field(default_factory=set)


def changes_of(database: Database, new: Correction, *, label: str, now: float) -> tuple[Changes, Corrections]:
    """Returns (the effects of a correction, the stored corrections). label: label of the ledger."""
    with database.read() as connection:
        earlier = corrections_of(connection)
    changes = Changes(tally=Increments())
    for row in _rows(database, new, label=label):
        made_by = json_object(row["made_by"])
        facts = {"decision_id": row["id"], "arm": row["arm"], "made_by": made_by, "made_at": row["made_at"]}
        changes.generators |= generators_of(made_by)
        if not new.covers(**facts):
            continue
        before = earlier.cost(own_cost(row["cost"]), **facts)
        dollars = new.dollars_of(before, arm=row["arm"], model=made_by.get("generator"), ended_at=row["made_at"])
        if dollars is None:
            changes.unpriced += 1
        elif dollars != before.dollars or before.assumed_dollars:
            changes.outcomes += 1
            changes.dollars_before += before.dollars
            changes.dollars_after += dollars
            changes.learned += row["seq"] is not None
            if day_of(row["made_at"]) >= oldest_day(now):
                spenders = spenders_of(row["tenant"], key=row["api_key"])
                change_dollars(changes.tally, spenders, before=before.dollars, after=dollars, now=row["made_at"])
    return changes, earlier


def check_names(database: Database, new: Correction, *, generators: Collection[str]) -> None:
    """Raise InvalidInput if no outcome has the decision, the arm or the generator of a correction that changes nothing.

    generators: see `Changes.generators`
    """
    answered = select(decisions.c.arm).join(outcomes, outcomes.c.decision_id == decisions.c.id)
    with database.read() as connection:
        if new.decision is not None:
            if connection.execute(answered.where(decisions.c.id == new.decision)).first() is None:
                remedy = "give the id of a decision that was answered"
                raise InvalidInput(f"no outcome of {new.decision!r:.80}", field="decision", remedy=remedy)
        elif new.arm is not None:
            arms = sorted(connection.execute(answered.distinct()).scalars())
            if new.arm not in arms:
                remedy = known_choices(arms, given=new.arm)
                raise InvalidInput(f"no outcome of the arm {new.arm!r:.80}", field="arm", remedy=remedy)
    if new.generator is not None and new.generator not in generators:
        remedy = known_choices(sorted(generators), given=new.generator)
        raise InvalidInput(f"no outcome of the generator {new.generator!r:.80}", field="generator", remedy=remedy)


def _rows(database: Database, new: Correction, *, label: str) -> Iterator[RowMapping]:
    columns = decisions.c.id, decisions.c.arm, decisions.c.tenant, decisions.c.api_key
    learned = and_(updates.c.decision_id == decisions.c.id, updates.c.policy == label)
    query = select(*columns, outcomes.c.made_by, outcomes.c.made_at, outcomes.c.cost, updates.c.seq)
    query = query.select_from(decisions).join(outcomes, outcomes.c.decision_id == decisions.c.id)
    query = query.outerjoin(updates, learned).order_by(decisions.c.id).limit(_PAGE)
    if new.decision is not None:
        query = query.where(decisions.c.id == new.decision)
    if new.arm is not None:
        query = query.where(decisions.c.arm == new.arm)
    after = ""
    while True:
        with database.read() as connection:
            rows = connection.execute(query.where(decisions.c.id > after)).mappings().all()
        yield from rows
        if len(rows) < _PAGE:
            return
        after = rows[-1]["id"]


def add_correction(
    connection: Connection, new: Correction, *, actor: str, reason: str, facts: Mapping[str, Any], now: float
) -> Correction:
    """Store a correction, with `facts`, in the caller's write transaction, after all that use `hold_corrections`."""
    if not connection.is_sqlite:
        run_statement(connection, f"SELECT pg_advisory_xact_lock({_LOCK})")
    rule = {name: value for name, value in asdict(new).items() if value not in (None, {}) and name != "number"}
    target = next((f"{kind}:{rule[kind]}" for kind in ("decision", "arm", "generator") if kind in rule), "all")
    stored = {**rule, **facts, "reason": reason}
    return replace(new, number=record(connection, actor=actor, action=ACTION, target=target, facts=stored, now=now))


def credit(
    database: Database, spenders: Sequence[Spender], *, dollars: float, time: float, actor: str, reason: str, now: float
) -> int:
    """Take back dollars booked without an outcome, on the day (UTC) of `time`. Returns the audit log's number.

    Raises InvalidInput if a spender has spent less on that day.
    """
    day, names = day_of(time), {str(spender.kind): spender.name for spender in spenders}
    with WriteTransaction(database) as (connection, tally):
        for spender, sums in read_spending(connection, spenders, now=time).items():
            if sums.day < dollars:
                message = f"the {spender.kind} {spender.name!r} has spent {sums.day:g} dollars on {day}"
                raise InvalidInput(message, field="dollars", remedy="give at most that, or another --day")
        change_dollars(tally, spenders, before=dollars, after=0.0, now=time)
        facts = {**names, "dollars": dollars, "day": day, "reason": reason}
        target = ", ".join(f"{kind}:{name}" for kind, name in names.items())
        return record(connection, actor=actor, action=CREDIT, target=target, facts=facts, now=now)
