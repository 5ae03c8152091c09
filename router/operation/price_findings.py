"""Findings about what arms cost: without a price, at a price that differs from the list, or at equal costs.

Functions import database engines themselves, as in findings.py.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ragbandit.router.config.finding import Finding
from ragbandit.router.config.named_sections import section_of
from ragbandit.shared.model_servers.call_prices import MOST_TIMES
from ragbandit.shared.texts.formats import counted, number
from ragbandit.shared.types import IMPORTED, Cost

if TYPE_CHECKING:
    from ragbandit.router.config.settings import Settings
    from ragbandit.router.storage.access.api_keys import ApiKey
    from ragbandit.router.storage.sql.database import Database

#: number of newest answers whose costs are compared
SAME_COSTS: Final = 100
#: number of newest outcomes that are read
_LOOKED_AT: Final = 2_000
#: share by which booked dollars may differ from the list, and least number of an arm's answers that are compared
DIFFERENT_PRICE: Final = 0.1
LEAST_PRICED: Final = 10


def findings_of_prices(settings: "Settings", *, database: "Database | None" = None) -> Iterator[Finding]:
    """Generators of arms, judge and rewriter without prices although dollars are charged or limited; a limit of dollars
    that caps nothing; a charged cost that is equal for all arms.

    database: store with the newest answers, which show the servers that report a price, and with keys, which may have
    budgets; None to check only the settings
    """
    charged = {term for term, price in settings.reward.cost.items() if price > 0.0 and settings.reward.weight > 0.0}
    if charged == {"steps"} and len(settings.arms) > 1 and _takes_no_step(settings.arms):
        what = "only steps are charged, and an arm of the class model takes none: all arms cost the same"
        remedy = "charge dollars or seconds: reward.cost {dollars: 1.0}, or {seconds_total: 1.0}"
        yield Finding("warning", "reward.cost", what, remedy)
    conversation, by_price = settings.conversation, settings.conversation.at_limit == "cheapest"
    limited = any(by_price or conversation.limit_of(kind).dollars for kind in conversation.limited)
    budgeted = any(has_budget(tenant.model_dump()) for tenant in settings.tenants.values())
    budgeted = budgeted or (database is not None and len(budgeted_keys(database, now=time.time())) > 0)
    if not ("dollars" in charged or budgeted or limited or settings.budget.dollars is not None):
        return
    # late: it loads a database engine
    from ragbandit.router.serving.setup.estimates import OWN_COSTS, expected_dollars, prices_of_arms, unpriced_arms

    arms, generators = settings.worker_arms, settings.named_generators
    expected = expected_dollars(arms, generators=generators)
    if database is not None:
        with database.read() as connection:
            expected.refresh(connection)
    priced, unpriced_by = prices_of_arms(arms, generators=generators), unpriced_arms(arms, generators=generators)
    are_ours = all(
        (kind := str(params.get("class", arm))) not in OWN_COSTS and ":" not in kind for arm, params in arms.items()
    )
    if settings.budget.dollars is not None and arms and are_ours and not priced and not unpriced_by:
        what = f"it caps nothing: models in our process cost no dollars, and {', '.join(arms)} ask no other"
        yield Finding("warning", "budget.dollars", what, "set generator.token_prices, or cap budget.tokens instead")
    rewrite = conversation.rewrite
    rewriter = settings.generator if rewrite.by == "auto" and settings.generator.name == "openai" else None
    asked = {"judge.generator": settings.judge.generator, "generator": None if rewrite.generator else rewriter}
    asked["conversation.rewrite.generator"] = rewrite.generator if rewrite.by == "auto" else None
    for section, one in asked.items():
        is_unpriced = one is not None and one.server is not None and one.model not in one.prices_by_model
        if budgeted and is_unpriced and section not in unpriced_by:
            what = "its calls have no price: budgets count only what its server reports"
            yield Finding("warning", section, what, f"set {section}.token_prices")
    for section, unpriced in unpriced_by.items():
        unknown = [arm for arm in unpriced if expected.of(arm, tenant="") is None or arm in expected.assuming]
        if not unknown:
            continue
        effect = "rewards and limits count them at the most expensive listed price, and budgets do not count them"
        effect = effect if priced.keys() - {*unknown} else "dollars decide nothing, and budgets do not count them"
        what = f"the calls of {', '.join(unknown)} have no price: {effect}"
        remedy = f"set {section}.token_prices ({{input: 0.0, output: 0.0}} if it is free)"
        remedy += "" if database is not None else ", or ignore this if its server reports the price of each call"
        yield Finding("warning", section, what, remedy)


def _takes_no_step(arms: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether all arms, and all parts of their cascades, only ask a model."""
    from ragbandit.router.serving.setup.estimates import plain_parts_of

    return all(kind == "model" for arm in arms for kind, _ in plain_parts_of(arm, arms[arm], arms=arms))


def has_budget(fields: Mapping[str, object]) -> bool:
    """Whether a tenant's settings, or a key's scopes, have a budget in dollars."""
    return any(fields.get(field) is not None for field in ("dollars_per_day", "dollars_per_month"))


def budgeted_keys(database: "Database", *, now: float) -> "list[ApiKey]":
    """The active keys that have a budget in dollars."""
    from ragbandit.router.storage.access.api_keys import KeyStore

    return [key for key in KeyStore(database).list_keys() if key.state(now) == "active" and has_budget(key.scopes)]


def findings_of_costs(database: "Database", settings: "Settings", _: float) -> Iterator[Finding]:
    """Findings about what the newest answers cost."""
    from sqlalchemy import select

    from ragbandit.router.storage.access.corrections import corrections_of
    from ragbandit.router.storage.rows.outcome_rows import REFUSED, cost_value
    from ragbandit.router.storage.sql.json_columns import object_or_empty
    from ragbandit.router.storage.sql.tables import decisions, outcomes

    columns = outcomes.c["decision_id", "status", "steps", "cost", "made_by", "made_at"]
    newest = select(*columns).order_by(outcomes.c.made_at.desc()).limit(_LOOKED_AT).subquery()
    query = select(*decisions.c["arm", "run_by"], newest).join(newest, decisions.c.id == newest.c.decision_id)
    query = query.where(newest.c.status == "answered").order_by(newest.c.made_at.desc())
    with database.read() as connection:
        rows = connection.execute(query).all()
        corrections = corrections_of(connection)
    answers = list[_Answer]()
    for row in rows:
        made_by, cost = object_or_empty(row.made_by), cost_value(row.cost)
        if IMPORTED not in made_by:  # outcomes of imported rows have no cost
            facts: dict[str, Any] = {"decision_id": row.decision_id, "arm": row.arm, "made_at": row.made_at}
            right = corrections.cost(cost, made_by=made_by, **facts)
            answers.append(_Answer(row.arm, row.run_by, row.steps, cost, right.dollars, made_by, row.made_at))
    by_workers = [answer for answer in answers if answer.run_by == "worker"]
    yield from _same_costs(answers[:SAME_COSTS], settings=settings)
    yield from _differing_prices(by_workers, settings=settings)
    refused = defaultdict[str, list[Any]](list)
    for answer in by_workers:
        if REFUSED in answer.cost.price:
            refused[answer.arm].append(answer.cost.price[REFUSED])
    for arm, told in refused.items():
        what = f"the server of {arm} reported implausible prices of {counted(len(told), 'call')}, the newest ${told[0]}"
        remedy = f"they do not count: correct token_prices if the list is wrong by more than {MOST_TIMES:g} times"
        yield Finding("warning", f"arms.{arm}", what, remedy)


class _Answer(NamedTuple):
    """One of the newest answers. cost: as stored. dollars: with the corrections that came later."""

    arm: str
    run_by: str
    steps: float
    cost: Cost
    dollars: float
    made_by: Mapping[str, Any]
    made_at: float


def _same_costs(newest: Sequence[_Answer], *, settings: "Settings") -> Iterator[Finding]:
    """A warning if the charged cost is the same for the newest SAME_COSTS answers, and every arm has one of them."""
    from ragbandit.router.learning.reward import cost_of_terms

    charged = {term: price for term, price in settings.reward.cost.items() if price > 0.0}
    if not charged or settings.reward.weight == 0.0 or len(settings.arms) < 2:
        return
    costs = {cost_of_terms(row.steps, row.cost, terms=charged) for row in newest}
    if len(newest) == SAME_COSTS and {*settings.arms} <= {row.arm for row in newest} and len(costs) == 1:
        what = f"all arms cost the same, {number(costs.pop())}, in the newest {SAME_COSTS} answers"
        reason = "the policy takes the best, whatever it costs"
        remedy = f"report {' and '.join(charged)} of each answer, or charge what differs (reward.cost)"
        yield Finding("warning", "costs", f"{what}: {reason}; {remedy}")


def _differing_prices(newest: Sequence[_Answer], *, settings: "Settings") -> Iterator[Finding]:
    """Arms with one model whose newest answers cost a tenth more, or a tenth less, than `token_prices` gives.

    Arms that search may pay for their search too: their answers count only if the price is the server's.
    """
    from ragbandit.router.serving.setup.estimates import priced_generators
    from ragbandit.router.storage.access.corrections import Correction

    generators, arms = settings.named_generators, settings.worker_arms
    named = priced_generators(arms, generators=generators)
    listed = Correction(prices={arm: generators[name].prices_by_model for arm, name in named.items()})
    sums = defaultdict[str, list[tuple[float, float]]](list)
    for row in newest:
        model = row.made_by.get("generator")
        by_list = listed.dollars_of(row.cost, arm=row.arm, model=model, ended_at=row.made_at)
        is_only_model = arms.get(row.arm, {}).get("class", row.arm) == "model" or row.cost.price.get("by") == "told"
        # Outcomes do not store which writes to a cache are kept for an hour, at another price.
        is_comparable = is_only_model and not row.cost.cache_write_tokens
        if by_list is not None and is_comparable and len(sums[row.arm]) < SAME_COSTS:
            sums[row.arm].append((row.dollars, by_list))
    for arm, pairs in sums.items():
        booked, by_list = (sum(column) for column in zip(*pairs, strict=True))
        if len(pairs) >= LEAST_PRICED and abs(booked - by_list) > DIFFERENT_PRICE * by_list:
            costs = f"${number(booked)}, and ${number(by_list)} by the list"
            what = f"the newest {len(pairs)} answers of {arm} cost {costs}"
            remedy = "correct the list, or set prices: listed; `ragbandit data reprice` corrects what was booked"
            yield Finding("warning", f"{section_of('generator', named[arm])}.token_prices", what, remedy)
