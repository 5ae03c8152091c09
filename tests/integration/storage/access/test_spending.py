"""Spending on SQLite and PostgreSQL: what outcomes cost is counted once, by tenant, key and day, and outlives them."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from ragbandit.router.serving.setup.bootstrap import open_database
from ragbandit.router.storage.access.reservations import reserve, settle
from ragbandit.router.storage.access.spending import (
    KEPT_DAYS,
    MOST_DOLLARS,
    Spender,
    forget_spending,
    read_spending,
)
from ragbandit.router.storage.sql.counters import recount
from ragbandit.shared.errors import TooManyRequests
from ragbandit.shared.types import Query

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC).timestamp()
DAY_S = 86_400.0
ACME, GLOBEX, KEY = Spender("tenant", "acme"), Spender("tenant", "globex"), Spender("key", "acme")


def test_what_outcomes_cost(make_world, database_url):
    """By tenant and key, day and month (UTC); a repetition counts nothing; a recount takes nothing."""
    world = make_world(database_url=database_url, now=NOON)

    def answer(dollars: float, *, tenant: str = "acme", key: str | None = "acme") -> None:
        query = Query(text="q", tenant=tenant, api_key=key)
        decision = world.router.submit(query, run_by="caller").result(30)
        for _ in range(2):
            world.outcome(decision, cost={"dollars": dollars})
        world.feedback(decision, reward=0.5)

    def sums(now: float):
        with world.database.read() as connection:
            read = read_spending(connection, [ACME, GLOBEX, KEY], now=now)
        return [amount for one in (ACME, GLOBEX, KEY) for amount in (read[one].day, read[one].month)]

    world.now = NOON - DAY_S  # in October
    answer(8.0)
    world.now = NOON
    answer(0.25)
    answer(0.5, key=None)
    answer(1e-9, tenant="globex", key=None)
    world.now = NOON + DAY_S
    answer(2.0)
    answer(1e6, tenant="globex")
    world.learn()
    for _ in range(2):
        assert sums(NOON) == pytest.approx([0.75, 0.75, 1e-9, 1e-9, 0.25, 0.25])
        most = MOST_DOLLARS
        assert sums(NOON + DAY_S) == pytest.approx([2.0, 2.75, most, most + 1e-9, 2.0 + most, 2.25 + most])
        with world.database.write() as connection:
            recount(connection)
    with world.database.write() as connection:
        forget_spending(connection, now=NOON + KEPT_DAYS * DAY_S)
    assert sums(NOON - DAY_S)[:2] == [0.0, 0.0]
    assert sums(NOON)[:2] == pytest.approx([0.75, 0.75])


def test_reservations_at_once(make_world, database_url):
    """If two processes reserve at once, what exceeds a limit is refused; the costs replace the other reservations."""
    world = make_world(database_url=database_url, now=NOON)
    other = open_database(world.settings)

    def check(sums):
        if any(sums[spender].day >= 3.0 for spender in (ACME, KEY)):
            raise TooManyRequests

    def attempt(number):
        database = (world.database, other)[number % 2]
        try:
            return reserve(database, [ACME, KEY], dollars=1.0, now=NOON, check=check)
        except TooManyRequests:
            return None

    with ThreadPoolExecutor(6) as pool:
        made = list(filter(None, pool.map(attempt, range(12))))
    assert len(made) == 3
    for reserved, dollars in zip(made, (0.25, 0.0, 4.0), strict=True):
        settle(other, reserved, dollars=dollars)
    with other.read() as connection:
        sums = read_spending(connection, [ACME, KEY], now=NOON)
    other.close()
    assert [sums[one].day for one in (ACME, KEY)] == pytest.approx([4.25, 4.25])
