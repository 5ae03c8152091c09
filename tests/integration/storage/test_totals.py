"""Hourly totals: every decision, outcome and update is counted once, whatever moves, fails or comes late meanwhile."""

from collections import Counter

import pytest
from sqlalchemy import delete, select

from ragbandit.router.storage import totals as traffic
from ragbandit.router.storage.sql.tables import leases, outcomes
from ragbandit.router.storage.totals import TotalsExtender, hour_of, hours_of, totals_ever
from ragbandit.shared.types import sum_totals


@pytest.fixture
def world(request, make_world, monkeypatch):
    """A world on SQLite, or on the database that a test names, read three rows at a time."""
    monkeypatch.setattr(traffic, "PAGE_ROWS", 3)
    url = request.getfixturevalue("postgres_url") if getattr(request, "param", "") == "postgresql" else None
    return make_world(database_url=url)


both = pytest.mark.parametrize("world", ["sqlite", "postgresql"], indirect=True)


def extend(world, *, holder="one", later=60.0):
    """Read all there is, some time later."""
    extender = TotalsExtender(world.database, holder=holder, weight=0.05, clock=lambda: world.now + later)
    while extender.extend(seconds=30.0):
        pass
    extender.release()


def totals(world):
    with world.database.read() as connection:
        return totals_ever(connection, policy="main")


def lived(world, count=10):
    """Decisions with outcomes, most of them learned, over two hours."""
    made = []
    for number in range(count):
        world.now += 700.0
        decision = world.route(key=f"mine-{int(world.now)}" if number % 2 else None)
        cost = {"prompt_tokens": 10, "completion_tokens": 2, "dollars": 0.5, "seconds_total": 0.3 * number}
        world.outcome(decision, cost=cost)
        if number % 3:
            world.feedback(decision, reward=0.1 * number)
        made.append(decision)
    world.learn()
    return made


@both
def test_totals_are_what_the_tables_hold(world):
    """Counts and sums of each arm are those of its decisions, outcomes and updates; reading again adds nothing."""
    decisions = lived(world)
    extend(world)
    extend(world, holder="another")
    found, learned = totals(world), world.updates()
    assert {arm: one.decided for arm, one in found.items() if one.decided} == Counter(d.arm for d in decisions)
    everything = sum_totals(found.values())
    assert (everything.decided, everything.answered, everything.failed) == (10, 10, 0)
    assert (everything.prompt_tokens, everything.completion_tokens, everything.dollars) == (100, 20, 5.0)
    assert everything.explored == sum(d.explored for d in decisions)
    assert sum(everything.latency) == 9  # one did not say how long it took
    assert everything.seconds == pytest.approx(0.3 * 45)
    assert (everything.fastest, everything.slowest) == pytest.approx((0.3, 2.7))
    assert everything.learned == len(learned) == 6
    for name, column in (("reward", "value"), ("quality", "quality"), ("cost", "cost")):
        values = [row[column] for row in learned]
        assert getattr(everything, name) == pytest.approx(sum(values))
    assert_excesses(world, decisions)


def assert_excesses(world, made):
    """Excess of each arm's draws over the expectation: of all rows, and by ids, outcomes and judgements."""
    judged = {update.decision_id for update in world.ledger.read(after=0)}
    for arm, one in totals(world).items():
        mine, learned = [d for d in made if d.id.startswith("mine-")], [d for d in made if d.id in judged]
        for stage, rows in (("named", mine), ("drawn", made), ("ended", made), ("judged", learned)):
            chances = [d.pmf[d.arms.index(arm)] for d in rows]
            excess = sum(d.arm == arm for d in rows) - sum(chances)
            assert getattr(one, f"{stage}_excess") == pytest.approx(excess, abs=1e-9)
            assert getattr(one, f"{stage}_spread") == pytest.approx(sum(p * (1.0 - p) for p in chances))


def test_hours_add_up_to_all(world):
    """What an arm did in its hours is what it ever did; each decision stands in its own hour."""
    decisions = lived(world)
    extend(world)
    with world.database.read() as connection:
        hours = hours_of(connection, policy="main", since=0, until=hour_of(world.now) + 1)
    assert Counter((row.hour, row.arm) for row in hours for _ in range(row.totals.decided)) == Counter(
        (hour_of(d.made_at), d.arm) for d in decisions
    )
    for arm, ever in totals(world).items():
        added = sum_totals(row.totals for row in hours if row.arm == arm)
        assert (added.latency, added.latency_range) == (ever.latency, ever.latency_range)
        assert added.reward == pytest.approx(ever.reward)


def test_what_is_new_is_not_counted_yet(world):
    """A row is counted when all writers of rows of its time must have committed."""
    lived(world, 3)
    extend(world, later=1.0)
    assert sum_totals(totals(world).values()).decided == 2
    extend(world, later=25.0)
    assert sum_totals(totals(world).values()).decided == 3


@both
def test_what_came_late_is_found_after_its_hour(world):
    """An outcome that was written minutes after it ended is counted when its hour is looked at again, once."""
    extend(world, later=0.0)
    decisions = lived(world, 4)
    kept = []
    with world.database.write() as connection:
        late = outcomes.c.decision_id == decisions[1].id
        kept += connection.execute(select(outcomes).where(late)).mappings().all()
        connection.execute(delete(outcomes).where(late))
    extend(world)
    assert sum_totals(totals(world).values()).answered == 3
    world.write(outcomes.insert().values(**kept[0]))
    extend(world)
    assert sum_totals(totals(world).values()).answered == 3
    for _ in range(2):
        world.now += 7200.0
        extend(world)
        everything = sum_totals(totals(world).values())
        assert (everything.decided, everything.answered, everything.dollars) == (4, 4, 2.0)
        assert sum(everything.latency) == 3
        assert everything.latency_range == pytest.approx((0.3, 0.9))


@both
def test_who_lost_the_lease_writes_nothing(world):
    """A process that is held up while another one reads on does not count its page a second time."""
    lived(world, 4)
    slow = TotalsExtender(world.database, holder="slow", weight=0.05, clock=lambda: world.now + 60.0)
    acquired = slow._lease.acquire(holder="slow", lease_s=60.0)
    assert acquired
    with world.database.read() as connection:
        to, deltas, _ = traffic.next_traffic(connection, position={}, now=world.now + 60.0, limit=3)
    world.write(delete(leases))
    extend(world)
    before = totals(world)
    assert not slow._write("arm_hours", deltas, position=to)
    assert totals(world) == before
