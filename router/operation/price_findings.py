"""Findings about what arms cost: without a price, at a price that differs from the list, or at equal costs.

Functions import database engines themselves, as in findings.py.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ragbandit.router.config.finding import Finding
from ragbandit.router.config.named_sections import DEFAULT, section_of
from ragbandit.shared.texts.formats import number
from ragbandit.shared.types import IMPORTED

if TYPE_CHECKING:
    from ragbandit.router.config.settings import Settings
    from ragbandit.router.storage.sql.database import Database

#: number of newest answers whose costs are compared
SAME_COSTS: Final = 100
#: share by which booked dollars may differ from the list, and least number of an arm's answers that are compared
DIFFERENT_PRICE: Final = 0.1
LEAST_PRICED: Final = 10


def findings_of_prices(settings: "Settings", *, database: "Database | None" = None) -> Iterator[Finding]:
    """Generators without prices although dollars are charged or limited; also a charged cost that is equal for all
    arms.

    database: the store, whose newest answers show which servers report a price; None if that is not known
    """
    charged = {term for term, price in settings.reward.cost.items() if price > 0.0 and settings.reward.weight > 0.0}
    every = settings.arms
    if charged == {"steps"} and len(every) > 1 and all(every[arm].get("class", arm) == "model" for arm in every):
        what = "only steps are charged, and an arm of the class model takes none: all arms cost the same"
        remedy = "charge dollars or seconds: reward.cost {dollars: 1.0}, or {seconds_total: 1.0}"
        yield Finding("warning", "reward.cost", what, remedy)
    limits = [settings.conversation.limit_of(kind).dollars for kind in settings.conversation.limited]
    tenants = any(has_budget(tenant.model_dump()) for tenant in settings.tenants.values())
    if not ("dollars" in charged or tenants or any(limits) or settings.budget.dollars is not None):
        return
    # it loads a database engine
    from ragbandit.router.serving.setup.estimates import expected_dollars, prices_of_arms, unpriced_arms

    arms, generators = settings.worker_arms, settings.named_generators
    expected = expected_dollars(arms, generators=generators)
    if database is not None:
        with database.read() as connection:
            expected.refresh(connection)
    priced = prices_of_arms(arms, generators=generators)
    for section, unpriced in unpriced_arms(arms, generators=generators).items():
        unknown = [arm for arm in unpriced if expected.of(arm, tenant="") is None]
        if not unknown:
            continue
        effect = "rewards and limits count them at the most expensive listed price, and budgets do not count them"
        effect = effect if priced.keys() - {*unknown} else "dollars decide nothing, and budgets do not count them"
        what = f"the calls of {', '.join(unknown)} have no price: {effect}"
        remedy = f"set {section}.token_prices ({{input: 0.0, output: 0.0}} if it is free)"
        remedy += "" if database is not None else ", or ignore this if its server tells the price of each call"
        yield Finding("warning", section, what, remedy)


def has_budget(fields: Mapping[str, object]) -> bool:
    """Whether a tenant's settings, or a key's scopes, have a budget in dollars."""
    return any(fields.get(field) is not None for field in ("dollars_per_day", "dollars_per_month"))


def same_costs(database: "Database", settings: "Settings", _: float) -> Iterator[Finding]:
    """A warning if all of the last SAME_COSTS answers, of every configured arm, have the same cost that is charged."""
    from sqlalchemy import select

    from ragbandit.router.learning.reward import cost_of_terms
    from ragbandit.router.storage.rows.outcome_rows import cost_value
    from ragbandit.router.storage.sql.json_columns import object_or_empty
    from ragbandit.router.storage.sql.tables import decisions, outcomes

    charged = {term: price for term, price in settings.reward.cost.items() if price > 0.0}
    if not charged or settings.reward.weight == 0.0 or len(settings.arms) < 2:
        return
    columns = select(decisions.c.arm, *outcomes.c["steps", "cost", "made_by"])
    answers = columns.join(decisions, decisions.c.id == outcomes.c.decision_id).where(outcomes.c.status == "answered")
    with database.read() as connection:
        newest = connection.execute(answers.order_by(outcomes.c.made_at.desc()).limit(10 * SAME_COSTS))
        # The costs of imported rows are only in their ledger.
        own = [row for row in newest if IMPORTED not in object_or_empty(row.made_by)]
    rows = own[:SAME_COSTS]
    costs = {cost_of_terms(row.steps, cost_value(row.cost), terms=charged) for row in rows}
    if len(rows) == SAME_COSTS and {*settings.arms} <= {row.arm for row in rows} and len(costs) == 1:
        what = f"all arms cost the same, {number(costs.pop())}, in the newest {SAME_COSTS} answers"
        reason = "the policy takes the best, whatever it costs"
        remedy = f"report {' and '.join(charged)} of each answer, or charge what differs (reward.cost)"
        yield Finding("warning", "costs", f"{what}: {reason}; {remedy}")


def differing_prices(database: "Database", settings: "Settings", _: float) -> Iterator[Finding]:
    """Arms of the class model whose newest answers cost more than a tenth more, or less, than by `token_prices`."""
    from ragbandit.router.serving.setup.estimates import prices_of_arms

    generators, arms = settings.named_generators, settings.worker_arms
    models = {arm: params for arm, params in arms.items() if params.get("class", arm) == "model"}
    named = {arm: params.get("generator", DEFAULT) for arm, params in models.items()}
    listed = prices_of_arms({arm: arms[arm] for arm in named}, generators=generators)
    prices = {arm: {generators[named[arm]].model: price} for arm, price in listed.items()}
    sums = _booked_and_listed(database, prices=prices) if prices else {}
    for arm, pairs in sums.items():
        booked, by_list = (sum(column) for column in zip(*pairs, strict=True))
        if len(pairs) >= LEAST_PRICED and abs(booked - by_list) > DIFFERENT_PRICE * by_list:
            costs = f"${number(booked)}, and ${number(by_list)} by the list"
            what = f"the newest {len(pairs)} answers of {arm} cost {costs}"
            remedy = "correct the list, or set prices: listed; `ragbandit data reprice` corrects what was booked"
            yield Finding("warning", f"{section_of('generator', named[arm])}.token_prices", what, remedy)


def _booked_and_listed(
    database: "Database", *, prices: "Mapping[str, Mapping[str, Sequence[float]]]"
) -> dict[str, list[tuple[float, float]]]:
    """Arm -> (booked dollars, dollars by the list) of its newest answers. prices: arm -> model -> listed prices"""
    from sqlalchemy import select

    from ragbandit.router.storage.access.corrections import Correction, corrections_of
    from ragbandit.router.storage.rows.outcome_rows import cost_value
    from ragbandit.router.storage.sql.json_columns import object_or_empty
    from ragbandit.router.storage.sql.tables import decisions, outcomes

    columns = select(decisions.c.arm, *outcomes.c["decision_id", "cost", "made_by", "made_at"])
    answers = columns.join(decisions, decisions.c.id == outcomes.c.decision_id)
    answers = answers.where(
        outcomes.c.status == "answered", decisions.c.run_by == "worker", decisions.c.arm.in_(prices)
    )
    with database.read() as connection:
        rows = connection.execute(answers.order_by(outcomes.c.made_at.desc()).limit(10 * SAME_COSTS)).all()
        corrections = corrections_of(connection)
    listed, sums = Correction(prices=prices), defaultdict[str, list[tuple[float, float]]](list)
    for row in rows:
        made_by, cost = object_or_empty(row.made_by), cost_value(row.cost)
        by_list = listed.dollars_of(cost, arm=row.arm, model=made_by.get("generator"))
        # Outcomes do not store which writes to a cache are kept for an hour, at another price.
        if by_list is not None and not cost.cache_write_tokens and len(sums[row.arm]) < SAME_COSTS:
            facts: dict[str, Any] = {"decision_id": row.decision_id, "arm": row.arm, "made_by": made_by}
            sums[row.arm].append((corrections.cost(cost, made_at=row.made_at, **facts).dollars, by_list))
    return sums
