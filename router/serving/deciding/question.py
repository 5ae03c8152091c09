"""One question on its way through a batch, and the arms that it may be offered."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ragbandit.router.config.settings import Settings
from ragbandit.router.serving.conversations.sticky import Stay, stays_of
from ragbandit.router.serving.deciding.live import LiveVersions
from ragbandit.router.serving.health.circuit_breaker import CircuitBreaker
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.types import ArmName, Decision, Query, RunBy


@dataclass(kw_only=True, slots=True)
class Question:
    """Made once, when a query is submitted; the steps of its batch fill in the rest."""

    #: checked, with an id
    query: Query
    run_by: RunBy
    #: the id is the caller's: the question may have been decided before
    named: bool
    #: arms that the caller (or its key) and `run_by` allow
    allowed: tuple[ArmName, ...]

    #: weight of cost that it is served at; None: that of the reward setting
    cost_weight: float | None = None
    #: place in the batch, which is the row of its features
    row: int = 0
    #: the champion's arms, of those allowed
    arms: tuple[ArmName, ...] = ()
    #: allowed arms that fail, and are not offered
    excluded: tuple[ArmName, ...] = ()
    #: every allowed arm fails, so all of them are offered
    fail_open: bool = False
    #: arms that candidates alone offer
    added: tuple[ArmName, ...] = ()
    #: why the turn has the arm of an earlier draw
    stay: Stay | None = None
    decision: Decision | None = None

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
    4. Candidates may add healthy arms of their own, where the caller names none.
    5. A turn that stays keeps the arm of its draw alone, if that arm is still among these.
    """
    offers = breaker.offer([one.allowed for one in questions], now=now, tenants=[one.query.tenant for one in questions])
    for question, offer in zip(questions, offers, strict=True):
        question.arms, question.excluded, question.fail_open = offer.arms, offer.excluded_arms, offer.fail_open
    if live.candidates:
        _add_arms([one for one in questions if one.query.arms is None], live=live, breaker=breaker, now=now)
    if any(one.query.session is not None for one in questions):
        stays = stays_of([one.query for one in questions], settings=settings, database=database)
        for question, stay in zip(questions, stays, strict=True):
            if stay is not None and not question.fail_open and stay.arm in (*question.arms, *question.added):
                question.stay, question.arms = stay, (stay.arm,)


def _add_arms(questions: Sequence[Question], *, live: LiveVersions, breaker: CircuitBreaker, now: float) -> None:
    """Add the healthy arms that candidates alone offer."""
    if not live.asks or not live.added:
        return
    added = [(one, arms) for one in questions if (arms := live.added_for(one.run_by))]
    tenants = [one.query.tenant for one, _ in added]
    offers = breaker.offer([arms for _, arms in added], now=now, tenants=tenants)
    for (question, _), offer in zip(added, offers, strict=True):
        question.added = () if offer.fail_open else offer.arms
