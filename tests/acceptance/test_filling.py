"""`migrate` fills columns of facts while a service writes, and is killed again and again.

tests/integration/storage/test_queried_facts.py has what readers read meanwhile.
"""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, update

from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import open_database
from ragbandit.router.storage.rows import filling
from ragbandit.router.storage.rows.filling import count_unfilled, fill
from ragbandit.router.storage.sql.tables import decisions
from tests.support.forked import Forked
from tests.support.stored_facts import EMPTY, STORED, assert_filled, readings, row_of_former_release
from tests.support.waiting import until

from .conftest import Load

#: rows with each of STORED
COPIES = 40
#: kills of `migrate`, each soon after it has filled its first rows
KILLS = 4
#: rows of a batch: a kill comes between two of the many batches, or in the middle of one
BATCH = 1
SMALL_BATCHES = f"from ragbandit.router.storage.rows import filling; filling.BATCH = {BATCH}"


def made_by_former_release(system, database):
    """Let the service store rows, and give them the columns of a former release. Half of them are filled again."""

    def route(number):
        with system.client() as client:
            client.route_batch([{"question": "Who?", "decision_id": f"d{number}-{copy}"} for copy in range(COPIES)])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(route, range(len(STORED))))
    with database.write() as connection:
        for number, _ in enumerate(STORED):
            row = update(decisions).where(decisions.c.id.in_([f"d{number}-{copy}" for copy in range(COPIES)]))
            connection.execute(row.values(row_of_former_release(number)))
    half = len(STORED) * COPIES // 2

    def stop(done, of):
        if done >= half:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill(database, progress=stop)
    assert count_unfilled(database) == half


def migrating(system):
    arguments = ["migrate", "--config", system.config]
    environment, log = system.environment, system.folder / "migrate.log"
    return Forked(arguments, environment=environment, log=log, first=SMALL_BATCHES)


def insert_as_former_release(database, load):
    """Give the newest decisions the columns that a process of the former release would have inserted."""
    with database.write() as connection:
        connection.execute(update(decisions).where(decisions.c.id.in_([*load.decided][-3:])).values(EMPTY))


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_kill_nine_while_columns_are_filled(make_system, monkeypatch, request, kind):
    """Half of a store is filled. `migrate` is killed again and again while it fills the rest and a service writes: at
    the end every row has its columns, and reports, totals and audit are those of one run that nobody killed.
    """
    monkeypatch.setattr(filling, "BATCH", BATCH)
    more = {"apis": 2, "database_url": request.getfixturevalue("postgres_url")} if kind == "postgresql" else {}
    system, chance = make_system(**more), random.Random(7)
    database = open_database(system.settings)
    made_by_former_release(system, database)
    with Load(system, threads=2, pause_s=0.02) as load:
        for _ in range(KILLS):
            before, process = count_unfilled(database), migrating(system)
            until(lambda before=before: count_unfilled(database) < before)
            time.sleep(chance.uniform(0.0, 0.02))
            process.kill()
            process.wait(10)
            assert 0 < count_unfilled(database) < before
            insert_as_former_release(database, load)
        assert migrating(system).wait(60) == 0
    assert migrating(system).wait(60) == 0  # after the last process of the former release has ended
    assert load.faults == []
    system.wait_until(lambda state: state.counters.learned == len(load.judged) and state.unanswered == 0)
    system.stop()
    assert count_unfilled(database) == 0
    assert_filled(database)
    with database.read() as connection:
        assert set(load.decided) <= set(connection.execute(select(decisions.c.id)).scalars())
    with Router.open(system.settings, jobs=MemoryJobs()) as router:
        killed = readings(router, until=1e11)
        with database.write() as connection:
            connection.execute(update(decisions).values(EMPTY))
        assert readings(router, until=1e11) == killed
        assert fill(database, progress=lambda done, of: None) == killed["verify"].decisions
        assert readings(router, until=1e11) == killed
    database.close()
    assert system.verified()["updates"] == len(load.judged)
