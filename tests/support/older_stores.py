"""Stores that older code made (tests/data): how they are opened, and what is true of each after it is migrated."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from ragbandit import Router
from ragbandit.router.config.loading import load
from ragbandit.router.errors import StoreError
from ragbandit.router.jobs.memory_jobs import MemoryJobs
from ragbandit.router.storage.sql.database import Database, check_schema
from tests.support.tar_files import unpack

#: label of a ledger -> its policy
LEDGERS = {"main": "mba", "ucb": "linucb", "grad": "softmax"}
#: of the store, in the folder that it was unpacked into
URL = "sqlite:///store/ragbandit.db"
DATA = Path(__file__).parents[1] / "data"


def unpacked_store(archive: str, folder: Path) -> dict:
    """Unpack it; the facts that its maker wrote down, by ledger."""
    unpack(DATA / archive, folder)
    return json.loads((folder / "facts.json").read_text())


def opened(label: str) -> Router:
    """A router over the store in the current folder, with the policy of this ledger."""
    tree = load("config.yaml", environ={}).settings
    chosen = tree.policy.model_copy(update={"name": LEDGERS[label], "label": label})
    return Router.open(tree.model_copy(update={"policy": chosen}), jobs=MemoryJobs())


def check_refused(revision: str) -> None:
    """Without `ragbandit migrate` it is refused with the command, and nothing of it is changed."""
    file = Path("store/ragbandit.db")
    before = file.read_bytes()
    with closing(Database(URL)) as database, pytest.raises(StoreError, match=revision) as caught:
        check_schema(database)
    assert caught.value.remedy == "run: ragbandit migrate"
    assert file.read_bytes() == before


def check_policies(facts: dict, label: str) -> None:
    """Its ledger replays to the policy of before, whose snapshot is served, and the counters fit."""
    of_before = facts[label]
    with opened(label) as router:
        verdict = router.verify(deep=True)
        counters = router.status().counters
    assert (verdict.ok, verdict.notes) == (True, [])
    assert (verdict.live_sha256, verdict.replay_sha256) == (of_before["sha256"], of_before["sha256"])
    assert (counters.learned, counters.waiting) == (of_before["updates"], of_before["waiting"])
    assert (counters.decided, counters.feedback) == (of_before["decided"], of_before["feedback"])
    assert counters.balanced


def check_waiting_is_learned(facts: dict, *, waiting: int) -> None:
    """Feedback of before that waited is learned, and the ledger verifies from its beginning."""
    with opened("main") as router:
        assert router.learn() == waiting
        verdict = router.verify(deep=True)
        counters = router.status().counters
    assert (verdict.ok, verdict.updates) == (True, facts["main"]["updates"] + waiting)
    assert counters.balanced
