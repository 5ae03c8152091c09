"""Dollar budgets: the factor on the price, the periods, and which budgets hold for a question."""

import asyncio
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace

import pytest

from ragbandit.router.config.server import TenantSettings
from ragbandit.router.config.settings import Settings
from ragbandit.router.operation import pacing
from ragbandit.router.operation.budgets import BURST, BudgetSpent, budgets_of, period_bounds, price_factor
from ragbandit.router.operation.pacing import Budgets
from ragbandit.router.storage.access.spending import Spent
from ragbandit.shared.types import MOST_FACTOR, Caller, Query


def test_the_factor():
    """The factor is 1 up to a tenth ahead of the clock, grows continuously, and is the largest if nothing is left."""
    assert [price_factor(spent=spent, elapsed=0.5) for spent in (0.0, 0.5, 0.55)] == [1.0, 1.0, 1.0]
    assert [price_factor(spent=spent, elapsed=0.0) for spent in (0.0, 0.1)] == [1.0, 1.0]
    assert price_factor(spent=0.159, elapsed=0.0873) == 1.0
    rising = [price_factor(spent=0.55 + 0.001 * step, elapsed=0.5) for step in range(60)]
    assert all(before < after <= 1.2 * before for before, after in pairwise(rising) if after < MOST_FACTOR)
    assert rising[-1] == MOST_FACTOR
    ends = [price_factor(spent=spent, elapsed=elapsed) for spent, elapsed in ((1.0, 0.9999), (7.0, 0.2))]
    assert ends == [MOST_FACTOR, MOST_FACTOR]
    for elapsed in (0.1, 0.5, 0.9):  # what is left per time decides, at any time
        spent = BURST + (1.0 - BURST) * elapsed + 0.02 * (1.01 - elapsed)
        assert price_factor(spent=spent, elapsed=elapsed) == pytest.approx(MOST_FACTOR**0.2, rel=1e-3)


def test_the_periods():
    """A day and a month begin and end at midnight UTC; December ends with the year."""
    now = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
    end = datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    assert period_bounds("day", now=now) == (end - 86_400.0, end)
    assert period_bounds("month", now=now) == (end - 31 * 86_400.0, end)


def test_whose_budgets_hold():
    """The tenant's own settings, else "default"; and the key's scopes, which stop as they or the tenant say."""
    tenants = {
        "default": TenantSettings(dollars_per_day=1.0, budget_stop=True),
        "free": TenantSettings(dollars_per_day=None),
    }

    def of(tenant, **scopes):
        found = budgets_of(tenant, key="k", scopes=scopes, tenants=tenants)
        return [(one.spender.kind, one.spender.name, one.period, one.dollars, one.stop) for one in found]

    own = ("tenant", "acme", "day", 1.0, True)
    assert of("acme") == [own]
    assert of("free", rate="1/second") == []
    assert of("free", dollars_per_month=5) == [("key", "k", "month", 5.0, False)]
    assert of("acme", dollars_per_day=2.5, budget_stop=False) == [own, ("key", "k", "day", 2.5, False)]
    assert budgets_of("acme", key=None, scopes={}, tenants={}) == ()


def test_sums_grow_old(monkeypatch):
    """What was read holds for FRESH_S, whatever the wall clock says, unless there are too many spenders to remember."""
    since, day = [100.0], [0.0]
    monkeypatch.setattr(pacing.time, "monotonic", lambda: since[0])

    async def run(work):
        return work()

    monkeypatch.setattr(pacing, "spending_of", lambda _, spenders, now: {one: Spent(day=day[0]) for one in spenders})
    tenants = {"acme": TenantSettings(dollars_per_day=5.0, budget_stop=True)}
    service = SimpleNamespace(serving=SimpleNamespace(policy=None), clock=lambda: 0.0)
    router = SimpleNamespace(settings=Settings(tenants=tenants), service=service, database=None)
    of_acme = Budgets(router, reads=SimpleNamespace(run=run))

    def stopped(**caller):
        try:
            asyncio.run(of_acme.apply(Query(text="x", tenant="acme"), caller=Caller(**caller)))
        except BudgetSpent:
            return True
        return False

    assert not stopped()
    monkeypatch.setattr(pacing, "MOST_SPENDERS", 0)
    assert not stopped(key="k", scopes={"dollars_per_day": 5.0})  # a fresh budget, a stale budget
    day[0] = 1000.0
    assert not stopped()  # within FRESH_S
    since[0] += pacing.FRESH_S
    assert stopped()
