"""Vote limits on SQLite and PostgreSQL: exact within a batch, and of processes that write at the same moment."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.decisions.vote_limits import VoteLimit
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import Conflict, Forbidden
from ragbandit.shared.types import Feedback, Receipt

WRITERS = 4


def a_vote(decision_id, key, *, rater="ann"):
    return Feedback(
        id=key, decision_id=decision_id, kind="rating", value=1.0, source="human", received_at=1.0, rater=rater
    )


@pytest.fixture
def store(database):
    return DecisionStore(database, label="main")


def test_a_batch_is_counted_one_by_one(store, make_decision):
    """What is beyond a limit is refused alone; feedback without a limit is neither refused nor in the way."""
    store.add_decisions([make_decision("d1"), make_decision("d2")])
    limit = VoteLimit(votes=2, raters=2)
    votes = [a_vote("d1", f"f{number}") for number in range(3)]
    votes += [a_vote("d1", "g1", rater="bob"), a_vote("d1", "h1", rater="cid"), a_vote("d2", "i1", rater="cid")]
    told = store.add_feedback([*votes, a_vote("d1", "free", rater="dan")], limits={vote.id: limit for vote in votes})
    kinds = [Receipt, Receipt, Forbidden, Receipt, Conflict, Receipt, Receipt]
    assert [type(one) for one in told] == kinds
    assert {note.id for note in store.record("d1").feedback} == {"f0", "f1", "g1", "free"}
    assert isinstance(store.add_feedback([a_vote("d1", "f3")], limits={"f3": limit})[0], Forbidden)
    assert store.record("d1").late == frozenset()


def test_processes_at_once_keep_the_limit(store, database_url, make_decision):
    """Several databases that judge one decision at the same moment store as many votes as one would."""
    ids = [f"d{number}" for number in range(15)]
    store.add_decisions([make_decision(key) for key in ids])
    limit, start = VoteLimit(votes=1, raters=1), Barrier(WRITERS)
    opened = [Database(database_url) for _ in range(WRITERS)]

    def judge(number):
        mine, told = DecisionStore(opened[number], label="main"), []
        for decision_id in ids:
            vote = a_vote(decision_id, f"{decision_id}-{number}")
            start.wait(timeout=60)
            told += mine.add_feedback([vote], limits={vote.id: limit})
        return told

    with ThreadPoolExecutor(WRITERS) as threads:
        told = [one for mine in threads.map(judge, range(WRITERS)) for one in mine]
    for each in opened:
        each.close()
    assert sum(isinstance(one, Receipt) for one in told) == len(ids)
    assert [len(store.record(key).feedback) for key in ids] == [1] * len(ids)
