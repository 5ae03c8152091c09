"""Facts in columns: readers read the same from the columns, from JSON where a former release made the row, and while
the columns are being filled.
"""

import dataclasses
import json
from collections import Counter

import numpy as np
import pytest
from sqlalchemy import select, update

from ragbandit.router.reporting.reading import ReportScope, count_imported, newest_deciders, read_log
from ragbandit.router.reporting.unrated_answers import unrated_answers
from ragbandit.router.storage.decisions.chains import followers
from ragbandit.router.storage.decisions.tasks import newest_decision
from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.router.storage.ledgers.ledger import lean_updates
from ragbandit.router.storage.rows import queried_facts
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.rows.queried_facts import QueriedFacts, fill, unfilled
from ragbandit.router.storage.sql.tables import QUERIED_FACTS, decisions
from ragbandit.router.storage.totals import uncounted

EMPTY = dict.fromkeys(QUERIED_FACTS)
TASK = {"unit": "u", "turn": 1, "until": 9.0}
#: facts and request of rows, each as a writer of it stores them, then damaged ones and those of other types
STORED = [
    ({}, {}),
    ({"imported": "elsewhere"}, {}),
    ({"sticky": {"first": "d0", "turn": 2, "turns": 2}}, {}),
    ({"killed": {"arm": "a", "revision": 1}}, {"forced": True}),
    ({}, {"forced": True}),
    ({}, {"edge": {"named_id": True}}),
    ({"incumbent": {"arm": "a", "share": 1.0}}, {"edge": {"budget_factor": 8}}),
    ({"task": TASK}, {}),
    ({"task": TASK}, {"edge": {"agent": "helper"}}),
    ({"task": {**TASK, "moved": "a budget"}}, {}),
    ({"moved": "the kill switch pinned another arm"}, {}),
    ({}, {"edge": {"failover": {"first": "d0", "failed": "d0"}}}),
    ({}, {"edge": {"failover": False}}),
    ({}, {"edge": {"tool_turn": {"first": "d1", "previous": "d1", "turn": 2}}}),
    ({}, {"edge": {"previous_response_id": "d0", "quoted": ["d2", 7, None, "d\0"]}}),
    ({}, {"edge": {"quoted": "d0", "previous_response_id": 5, "tool_turn": [], "budget_factor": "8"}}),
    ({"task": {**TASK, "until": "soon"}}, {"edge": ["agent"], "forced": "yes"}),
    ({"task": {**TASK, "until": 10**400}}, {"edge": {"budget_factor": 10**400, "named_id": "true"}}),
]


@pytest.fixture
def world(make_world, database_url):
    """A store of a former release: rows without columns of facts, with outcomes, labels and updates."""
    world = make_world(database_url=database_url)
    for number, _ in enumerate(STORED):
        decision = world.route(key=f"d{number}")
        world.outcome(decision, cost={"dollars": 0.25})
        if number % 3 == 0:
            world.feedback(decision, rating=True)
        world.now += 60.0
    world.learn()
    for number, (facts, request) in enumerate(STORED):
        row = {"facts": canonical(facts), "request": json.dumps(request), "session": "s", **EMPTY}
        world.write(update(decisions).where(decisions.c.id == f"d{number}").values(row))
    return world


def readings(world):
    """What every reader of such facts reads."""
    scope = ReportScope(label="main", since=0.0, until=world.now, reward=world.settings.reward)
    with world.database.read() as connection:
        selected = decisions.c.id == "d0"
        of_store = {
            "totals": uncounted(connection, policy="main", weight=0.05, limit=1000),
            "followers": [followers(connection, selected, chains=chains) for chains in (False, True)],
            "newest": newest_decision(connection, session="s", tenant="default"),
            "imported": count_imported(connection, scope.condition),
            "deciders": Counter(newest_deciders(connection, scope)),
            "unrated": {arm: sorted(unrated_answers(connection, scope, arm=arm)) for arm in world.settings.arms},
        }
    log = read_log(world.database, scope)
    verdict = world.router.verify(deep=True)
    return of_store | {
        "report": (np.sort(log.made_at).tolist(), log.left_out, Counter(log.deciders)),
        "ledger": [(one.seq, one.imported) for one in lean_updates(world.ledger, after=0)],
        "verify": dataclasses.replace(verdict, notes=[]),
    }


def stop_at(count):
    """A progress that interrupts the filling after `count` rows."""

    def progress(done, of):
        assert of == len(STORED)
        if done >= count:
            raise KeyboardInterrupt

    return progress


def test_readers_read_the_same_while_columns_are_filled(world, monkeypatch):
    """Reports, totals, erasure, sessions, queues, ledger and audit are the same before, between and after batches."""
    monkeypatch.setattr(queried_facts, "BATCH", 4)
    before = readings(world)
    assert before["followers"][1] > before["followers"][0] > set()
    assert before["imported"] == 1
    assert before["newest"] == "d7"
    with pytest.raises(KeyboardInterrupt):
        fill(world.database, progress=stop_at(8))
    assert unfilled(world.database) == len(STORED) - 8
    assert readings(world) == before
    assert fill(world.database, progress=lambda done, of: None) == len(STORED) - 8
    assert unfilled(world.database) == 0
    assert readings(world) == before


def test_columns_are_those_of_the_json(world):
    """A filled row has the facts of its JSON; rows that a former release makes afterwards are filled by another run."""
    fill(world.database, progress=lambda done, of: None)
    with world.database.read() as connection:
        rows = connection.execute(select(decisions).order_by(decisions.c.made_at)).mappings().all()
    for row in rows:
        expected = QueriedFacts.of_json(row["facts"], row["request"])
        assert {name: row[name] for name in QUERIED_FACTS} == expected._asdict()
    facts = {row["id"]: QueriedFacts.of_row(row) for row in rows}
    assert [key for key in facts if facts[key].is_undrawn] == ["d1", "d2", "d3", "d4"]
    assert [key for key in facts if facts[key].is_moved] == ["d9", "d10", "d11"]
    assert facts["d6"].budget_factor == 8.0
    assert (facts["d7"].task_until, facts["d7"].is_of_agent, facts["d8"].is_of_agent) == (9.0, False, True)
    assert facts["d14"].responses == '["d0", "d2"]'
    assert [facts[f"d{number}"] for number in (12, 15, 16, 17)] == [facts["d0"]] * 4
    world.write(update(decisions).where(decisions.c.id == "d5").values(EMPTY))
    assert fill(world.database, progress=lambda done, of: None) == 1


def test_a_decision_is_stored_with_its_columns(make_world, database_url):
    """The router writes the columns of every decision, so nothing remains to fill."""
    world = make_world(database_url=database_url)
    world.route(key="named")
    world.route()
    assert unfilled(world.database) == 0
    with world.database.read() as connection:
        named = connection.execute(select(decisions.c.id).where(decisions.c.has_callers_id)).scalars().all()
    assert named == ["named"]


def test_erasure_of_a_filled_row_leaves_its_links(world):
    """Erasure blanks the JSON and keeps the columns, which have ids, flags and numbers only."""
    fill(world.database, progress=lambda done, of: None)
    with world.database.read() as connection:
        before = followers(connection, decisions.c.id == "d0", chains=True)
    erase(world.database, Selection(decision="d14"), features=False, actor="cli:me", now=world.now)
    with world.database.read() as connection:
        assert followers(connection, decisions.c.id == "d0", chains=True) == before
