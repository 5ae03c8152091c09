"""A ledger of the store is replayed in pages: the numbers of its rows in memory, on both databases."""

import json
from dataclasses import replace

import pytest
from sqlalchemy import insert, update

from ragbandit.router.comparison import words
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.examples import UNLEARNED
from ragbandit.router.offline.logs import ledger_source
from ragbandit.router.offline.logs.ledger_transfer import import_rows
from ragbandit.router.offline.replay import OpenLog, Plan, memory_log, open_log, replay
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.tables import closures, decisions, waiting
from ragbandit.shared.errors import StoreError
from ragbandit.shared.types import PolicyLabel
from tests.conftest import on_sqlite
from tests.support.logs.replay_logs import close, lived_rows

CANDIDATES = ["fixed:deep", "uniform"]


@pytest.fixture
def ledger_of_rows(database, monkeypatch):
    """Puts rows into a ledger of the store; the log of it, which is read in pages of 37."""
    monkeypatch.setattr("ragbandit.router.offline.logs.ledger_source.BATCH", 8 * 37)
    settings = Settings(database_url=database.url.render_as_string(hide_password=False))

    def fill(rows, **options):
        import_rows(Ledger(database, label=PolicyLabel("main")), lambda: rows, origin="jsonl")
        return open_log(config=settings, **options)

    return fill


def in_memory_of(log, rows):
    """The same rows in memory."""
    return memory_log(rows, name=log.described, mixed_arms=log.mixed_arms)


def test_pages_and_memory_agree(ledger_of_rows, monkeypatch):
    """Reward, segments, versions and notes are those of the rows in memory."""
    rows = lived_rows(150)
    log = ledger_of_rows(rows, since=1.7e9 + 20)
    plan = Plan(segments=("device", "tenant"), weight=0.1)
    in_memory = replay(in_memory_of(log, rows[20:]), candidates=CANDIDATES, plan=plan)
    monkeypatch.setattr(OpenLog, "read", lambda *_: pytest.fail("the whole ledger is read"))
    in_pages = replay(log, candidates=CANDIDATES, plan=plan)
    assert in_pages.rows == 130
    assert "different questions" in in_pages.notes[0]
    close(replace(in_pages, since=None), in_memory)


def test_the_assumption_of_a_replayed_verdict(ledger_of_rows, database):
    """If fewer than nine tenths of the ledger's decisions are judged by people, every verdict has its assumption."""
    log = ledger_of_rows(lived_rows(150))
    [*_, whole] = (one.comparison for one in replay(log, candidates=CANDIDATES).candidates)
    assert (log.judged_share(), whole.assumption) == (1.0, None)
    with database.write() as connection:
        unrated = {"policy": "main", "decision_id": "unrated", "decided_at": 1.7e9, "run_by": "caller"}
        flags = dict.fromkeys(("has_outcome", "has_feedback", "has_reward"), False)
        connection.execute(insert(waiting), [unrated | flags | {"decision_id": f"unrated-{n}"} for n in range(50)])
    found = replay(log, candidates=CANDIDATES)
    known = [one.comparison for one in found.candidates if one.comparison.verdict != "not known yet"]
    assert log.judged_share() == 0.75
    assert known
    assert {one.assumption for one in known} == {words.assumption_words(0.75)}
    assert all("(75 % rated)" in words.sentence(one) for one in known)
    assert open_log(config=log.settings, since=1.7e9).judged_share() == 1.0


@on_sqlite
def test_decisions_that_no_verdict_compares_are_not_unjudged(ledger_of_rows, database):
    """Decisions that a caller, a limit or a spent budget decided do not lower the share of judged decisions."""
    log = ledger_of_rows(lived_rows(150))
    closed = [
        {"policy": "main", "decision_id": f"closed-{reason}", "state": "closed", "reason": reason, "made_at": 1.7e9}
        for reason in sorted({*UNLEARNED.values()})
    ]
    with database.write() as connection:
        connection.execute(insert(closures), closed)
    assert log.judged_share() == 1.0
    unrated = closed[0] | {"decision_id": "closed-unrated", "reason": "no feedback in time"}
    with database.write() as connection:
        connection.execute(insert(closures), [unrated])
    assert log.judged_share() == 150 / 151


@on_sqlite
def test_pages_of_the_columns_and_of_the_rows_agree(ledger_of_rows, monkeypatch):
    """Columns that the page reader refuses are read by the reader of rows, with the same numbers."""
    rows = lived_rows(100)
    narrow = replace(rows[60], decision=replace(rows[60].decision, features=rows[60].decision.features[:2]))
    log = ledger_of_rows([*rows[:60], narrow, *rows[61:]])
    by_columns = replay(log, candidates=CANDIDATES)
    monkeypatch.setattr(ledger_source, "_READERS", {**ledger_source._READERS, "pmf": json.loads})
    close(replay(log, candidates=CANDIDATES), by_columns)


@pytest.mark.parametrize("change", [{"pmf": "[0.5,"}, {"arms": "fast"}, {"pmf": '[0.5,"x",0.2]'}])
def test_a_row_that_cannot_be_read(ledger_of_rows, database, change):
    """A damaged row is an error that names its decision, or at least where to look."""
    log = ledger_of_rows(lived_rows(60))
    with database.write() as connection:
        connection.execute(update(decisions).where(decisions.c.id == "lived-0-000050").values(**change))
    with pytest.raises(StoreError, match="cannot be read") as caught:
        replay(log, candidates=CANDIDATES)
    assert "verify" in str(caught.value.remedy)
