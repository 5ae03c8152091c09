"""One question on its way through a batch, and the arms that it may be offered."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from sqlalchemy import select

from ragbandit.router.config.settings import DEFAULT, Settings
from ragbandit.router.learning.monitoring.diagnosis import Frontier
from ragbandit.router.policies.base import Policy, serves_prices
from ragbandit.router.serving.conversations import Stay, stays_of
from ragbandit.router.serving.deciding.live import LiveVersions
from ragbandit.router.serving.health.circuit_breaker import CircuitBreaker
from ragbandit.router.storage.decisions.search import newest_turns
from ragbandit.router.storage.rows.outcome_rows import cost_value
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import outcomes
from ragbandit.shared.errors import Forbidden, InvalidInput
from ragbandit.shared.types import MAX_WEIGHT, ArmName, Decision, Json, Query, RunBy


@dataclass(kw_only=True, slots=True)
class Question:
    """Made once, when a query is submitted; the steps of its batch fill in the rest."""

    #: checked, with an id
    query: Query
    run_by: RunBy
    #: arms that the caller (or its key) and `run_by` allow
    allowed: tuple[ArmName, ...]

    #: cost weight of the decision; None: reward.weight
    cost_weight: float | None = None
    #: the champion's arms, of those allowed
    arms: tuple[ArmName, ...] = ()
    #: allowed arms that fail, and are not offered
    excluded: tuple[ArmName, ...] = ()
    #: every allowed arm fails, so all of them are offered
    fail_open: bool = False
    #: arms that only candidates offer
    added: tuple[ArmName, ...] = ()
    #: why the turn has the arm of an earlier draw
    stay: Stay | None = None
    #: allowed by the caller, and unable to do what the request needs: arm -> what it lacks
    lacking: Mapping[ArmName, Sequence[str]] = field(default_factory=dict)
    decision: Decision | None = None
    #: the fact LABEL_QUEUE of the decision; empty: no labels are asked for
    label: Mapping[str, Json] = field(default_factory=dict)

    @property
    def served(self) -> Query:
        """The query as policies see it."""
        return replace(self.query, cost_weight=self.cost_weight)


def offer_arms(
    questions: Sequence[Question],
    *,
    live: LiveVersions,
    breaker: CircuitBreaker,
    settings: Settings,
    database: Database,
    now: float,
) -> None:
    """Narrow the arms of each question of a batch, in this order. Raises StoreError.

    1. What the caller names, within what its key allows: `Query.arms`, as the edge made it.
    2. Else what `run_by` allows: all arms, or those that our workers run. Both are in `Question.allowed`.
    3. The circuit breaker leaves out arms that fail; where all do, it leaves out none.
    4. Candidates may add healthy arms of their own, where the caller names none and all arms can do
       what the request needs.
    5. A turn that stays keeps the arm of its draw alone, if that arm is still among these.
    """
    wanted, tenants = [one.allowed for one in questions], [one.query.tenant for one in questions]
    for question, healthy in zip(questions, breaker.healthy(wanted, now=now, tenants=tenants), strict=True):
        question.arms, question.fail_open = healthy or question.allowed, not healthy
        question.excluded = tuple(arm for arm in question.allowed if arm not in question.arms)
    if live.asks:
        free = [one for one in questions if one.query.arms is None and not one.lacking]
        wanted, tenants = [live.added_for(one.run_by) for one in free], [one.query.tenant for one in free]
        for question, added in zip(free, breaker.healthy(wanted, now=now, tenants=tenants), strict=True):
            question.added = added
    if any(one.query.session is not None for one in questions):
        stays = stays_of([one.query for one in questions], settings=settings, database=database)
        for question, stay in zip(questions, stays, strict=True):
            if stay is not None and not question.fail_open and stay.arm in (*question.arms, *question.added):
                question.stay, question.arms = stay, (stay.arm,)


#: key of a query's `request` with the cost weights of key and tenant: {"cost_weight": default, "cost_weights": [least,
#: largest], "narrowed_by": "key" or "tenant"}; all are optional
TERMS: Final = "prices"
#: the key of a query's `request` with the factor (>= 1) that its caller's budgets put on its weight of cost
BUDGET_FACTOR: Final = "budget_factor"
#: scopes of a key and settings of a tenant
_OWN: Final = ("cost_weight", "cost_weights")


def budget_factor(query: Query) -> float:
    """The factor (>= 1) that budgets put on the weight of cost; 1 without."""
    factor = query.request.get(BUDGET_FACTOR)
    return float(factor) if isinstance(factor, int | float) else 1.0


def price_terms(scopes: Mapping[str, Json], *, tenant: str, settings: Settings) -> dict[str, Json]:
    """Cost weights of a key with these scopes and of its tenant; {} without any."""
    given = settings.tenant(tenant)
    terms = {name: scopes.get(name, getattr(given, name)) for name in _OWN}
    if terms["cost_weights"] is not None:
        terms["narrowed_by"] = "key" if "cost_weights" in scopes else "tenant"
    default, among = terms["cost_weight"], terms["cost_weights"]
    weight = settings.cost_weights.get(default) if isinstance(default, str) else default
    if isinstance(weight, int | float) and isinstance(among, list) and not among[0] <= weight <= among[1]:
        terms["cost_weight"] = min(max(weight, among[0]), among[1])  # another's default: not at the price of its name
    return {name: value for name, value in terms.items() if value is not None}


def with_terms(query: Query, *, settings: Settings) -> Query:
    """Add the cost weights of the tenant to a query, if the edge has not added those of key and tenant."""
    if not settings.tenants or TERMS in query.request:
        return query
    terms = price_terms({}, tenant=query.tenant, settings=settings)
    return replace(query, request={**query.request, TERMS: terms}) if terms else query


def terms_of(query: Query) -> Mapping[str, Json]:
    """The stored cost weights of key and tenant; {} if the row is damaged."""
    terms = query.request.get(TERMS)
    return terms if isinstance(terms, Mapping) else {}


def price_name(query: Query) -> str | None:
    """The name of the price that it was served at: what the caller wanted, else the default of its key or tenant."""
    wanted = terms_of(query).get("cost_weight") if query.cost_weight is None else query.cost_weight
    return wanted if isinstance(wanted, str) and not query.aim else None


def served_weight(
    query: Query, *, settings: Settings, policy: Policy, rebuilding: bool = False, frontier: Frontier | None = None
) -> float | None:
    """The weight of cost of a checked query (>= 0); None: that of the reward setting, as the policy learned it.

    rebuilding: the policy stands in for the configured one, which is learned again; nobody is refused because of it.
    frontier: that aims are solved on, within the range of weights that is allowed.
    Raises InvalidInput where it wants one of its own and the policy has one for all questions, and where it wants one
    that its tenant may not have; Forbidden where its key may not.
    """
    terms, factor, usual = terms_of(query), budget_factor(query), settings.reward.weight
    if query.cost_weight is None and not query.aim and not terms and factor == 1.0:
        return None
    wanted = terms.get("cost_weight") if query.cost_weight is None else query.cost_weight
    if query.aim and (aimed := _aimed(query.aim, frontier=frontier, terms=settings.reward.cost)) is not None:
        wanted = aimed
    weight = usual if wanted is None else _weight(wanted, prices=settings.cost_weights)
    among = terms.get("cost_weights")
    if isinstance(among, list):
        if query.cost_weight is not None and not among[0] <= weight <= among[1]:
            whose, allowed = terms.get("narrowed_by"), f"from {among[0]:g} to {among[1]:g}"
            message = f"this {whose} may have weights of cost {allowed}, and {weight:g} is wanted"
            remedy = f"send one {allowed}, or leave cost_weight out"
            raise (Forbidden if whose == "key" else InvalidInput)(message, field="cost_weight", remedy=remedy)
        weight = min(max(weight, among[0]), among[1])
    is_usual = wanted is None and weight == usual
    if is_usual and not query.aim and (factor == 1.0 or not serves_prices(policy)):
        return None
    if not serves_prices(policy) and not rebuilding:
        field = "aim" if query.aim else "cost_weight"
        message = f"the policy {policy.algorithm} has one weight of cost for all questions"
        remedy = f"leave {field} out, or set policy.name to one that keeps quality and cost apart, such as mba"
        raise InvalidInput(message, field=field, remedy=remedy)
    if is_usual and factor == 1.0:  # an aim, and no frontier yet
        return None
    # Weights below the default grow by the same amount as the default would.
    return min(weight + (factor - 1.0) * max(weight, usual), MAX_WEIGHT)


#: aim at a mean -> its cost term, if that has another name
_TERMS: Final = {"seconds": "seconds_total"}


def tells_mean(aim: str, *, terms: Mapping[str, float]) -> bool:
    """Whether a mean cost is a mean of what this aim names: the only term that has a price."""
    return [name for name, price in terms.items() if price > 0.0] == [_TERMS.get(aim, aim)]


def _aimed(aim: Mapping[str, float], *, frontier: Frontier | None, terms: Mapping[str, float]) -> float | None:
    """The weight that a checked aim has on the frontier; None: there is none yet."""
    ((name, value),) = aim.items()
    term = _TERMS.get(name, name)
    if name != "quality" and not tells_mean(name, terms=terms):
        message = f"a mean of {name} can be held where reward.cost prices {term} alone"
        remedy = f"aim at a quality, or set reward.cost to {{{term}: 1}}"
        raise InvalidInput(message, field=f"aim.{name}", remedy=remedy)
    if frontier is None:
        return None
    return frontier.weight_of(quality=value) if name == "quality" else frontier.weight_of(cost=value * terms[term])


def _weight(wanted: Json, *, prices: Mapping[str, float]) -> float:
    """The weight of a number or of a name: of one that is checked, or of a default, whose name may be gone."""
    if isinstance(wanted, str):
        if wanted not in prices:
            remedy = "add it to the setting `cost_weights`, or give the key or tenant another"
            raise InvalidInput(f"the default price {wanted!r:.80} is not known", field="cost_weight", remedy=remedy)
        return prices[wanted]
    assert isinstance(wanted, int | float)
    return float(wanted)


def saved_per_token(settings: Settings) -> dict[ArmName, float]:
    """Arm -> dollars that a token of its prompt costs less out of the cache, of arms for which that is known."""
    saved = {}
    for name, params in settings.worker_arms.items():
        generator = settings.named_generators.get(str(params.get("generator", DEFAULT)))
        prices = () if generator is None else generator.prices_by_model.get(generator.model, ())
        if len(prices) > 2 and prices[0] > prices[2]:
            saved[ArmName(name)] = (prices[0] - prices[2]) / 1e6
    return saved


def keep_prefixes(
    questions: Sequence[Question], *, saved: Mapping[ArmName, float], settings: Settings, database: Database
) -> None:
    """Let turns stay on the arm of the turn before where leaving it costs more than it gains. Raises StoreError.

    questions: decided on by the champion. saved: of `saved_per_token`. Turns that are forced, or stay already, do not
    change.
    """
    rate = settings.reward.cost.get("dollars", 0.0)
    asked = [one for one in questions if one.query.session is not None and one.stay is None and not one.query.forced]
    if not asked or not saved or rate <= 0.0:
        return
    turns = newest_turns(database, {(str(one.query.session), one.query.tenant) for one in asked})
    tokens = _prompt_tokens(database, [turn.last for turn in turns.values()])
    for question in asked:
        last = turns.get((str(question.query.session), question.query.tenant))
        assert question.decision is not None
        scores = question.decision.scores  # None: the policy expects nothing of arms, or failed
        if last is None or last.arm not in question.arms or scores is None:
            continue
        weight = settings.reward.weight if question.cost_weight is None else question.cost_weight
        saves = weight * rate * saved.get(last.arm, 0.0) * tokens.get(last.last, 0)
        gain = max(scores) - scores[question.arms.index(last.arm)]
        if gain <= saves > 0.0:
            prefix = {"gain": gain, "saves": saves}
            question.stay = Stay(arm=last.arm, first=last.first, turn=last.turn + 1, turns=0, prefix=prefix)


def _prompt_tokens(database: Database, ids: Sequence[str]) -> dict[str, int]:
    """Tokens of the prompts of these decisions' answers, those that are there."""
    tokens = {}
    with database.read() as connection:
        query = select(outcomes.c.decision_id, outcomes.c.cost).where(outcomes.c.decision_id.in_(ids))
        for key, cost in connection.execute(query):
            with suppress(AttributeError, TypeError, ValueError):  # a damaged row
                tokens[key] = int(cost_value(cost).prompt_tokens)
    return tokens
