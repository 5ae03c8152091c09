"""kill -9 anywhere, Redis gone at any moment: nothing confirmed is lost, nothing is learned twice."""

import math
import random
import time

import pytest
from sqlalchemy import func, select

from ragbandit.router.queue.jobs import connect_redis
from ragbandit.router.serving.setup.bootstrap import open_database
from ragbandit.router.storage.sql.tables import decisions, feedback, updates

from .conftest import Load, System, until

#: a client's pause between two questions, seconds: at any moment some are under way, and other tests get processors
PAUSE_S = 0.02
#: kills of each process
KILLS = 20


def settled(system: System, load: Load) -> None:
    """Everything that was confirmed to clients is stored and learned once, and the ledger gives the live policy."""
    assert load.faults == []
    found = system.wait_until(
        lambda s: s.counters.learned == len(load.judged) and s.unanswered == 0 and s.behind == 0, timeout_s=90
    )
    assert found.counters.balanced
    assert found.counters.quarantined == 0
    database = open_database(system.settings)
    with database.read() as connection:
        rows = {row.id: row for row in connection.execute(select(decisions.c.id, decisions.c.arm))}
        received = set(connection.execute(select(feedback.c.id)).scalars())
        twice = connection.execute(
            select(updates.c.decision_id).group_by(updates.c.decision_id).having(func.count() > 1)
        ).all()
    database.close()
    lost = [key for key, reply in load.decided.items() if key not in rows or rows[key].arm != reply["arm"]]
    assert lost == []
    assert load.judged - received == set()
    assert twice == []
    assert system.verified()["updates"] == len(load.judged)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("seconds", "pause_s"), [(1.0, PAUSE_S), pytest.param(math.inf, 0.0, marks=pytest.mark.slow)])
def test_kill_nine_and_a_redis_that_forgets(make_system, postgres_url, seconds, pause_s):
    """On PostgreSQL one of two APIs, worker and learner are killed 20 times each under load, then Redis forgets all:
    nothing is lost or doubled, and both APIs end on the same version of the policy.

    In `make test` they are killed as often as these seconds allow, at least once each.
    """
    system = make_system(apis=2, database_url=postgres_url)
    chance, kills = random.Random(11), 0
    with Load(system, pause_s=pause_s) as load:
        give_up = time.monotonic() + seconds
        while kills < 1 or (kills < KILLS and time.monotonic() < give_up):
            kills += 1
            system.storm(("api-1", "answer", "learn"), chance=chance, pauses=(0.05, 0.6))
        lose_redis(system, load)
        time.sleep(0.5)
    assert len(load.decided) > 5 * kills
    settled(system, load)

    def serving(name: str) -> str:
        with system.client(name) as client:
            return client.status()["serving"]

    until(lambda: serving("api-1") == serving("api-2"))
    with system.client("api-1") as client:
        assert client.status()["snapshot"] == serving("api-1")


def lose_redis(system: System, load: Load) -> None:
    """Redis is flushed three times, then killed and started empty in mid-run."""
    for _ in range(3):
        time.sleep(0.5)
        connect_redis(f"unix://{system.redis.socket}").flushall()
    time.sleep(0.2)
    before = len(load.judged)
    system.redis.process.kill()
    system.redis.process.wait(5)
    time.sleep(1.5)
    until(lambda: len(load.judged) > before)  # decisions and feedback are still taken without Redis
    system.redis.start()
