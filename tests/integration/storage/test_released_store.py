"""A store of release 1.0.0, made by tests/data/make_store.py: it opens, verifies and goes on.

Another processor learned it, with other kernels of BLAS, so its policy has the bits of no other processor.
"""

from pathlib import Path

import pytest
import yaml
from sqlalchemy import select

from ragbandit.router.config.loading import load
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.explanations.explain import explain
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.sql.tables import decisions
from tests.support.command import run
from tests.support.tar_files import unpack

STORE = Path(__file__).parents[2] / "data" / "store_1.0.0.tar.xz"
#: ledger -> number of its decisions
MADE = {"main": 33, "free": 28}
#: ledger -> number of its decisions by a former revision of its policy (`conservative` 5), which cannot be made again
OTHER_REVISION = {"main": 33, "free": 0}
#: largest relative difference of two processors' arrays (docs/machines.md)
ROUNDING = 1e-6


@pytest.fixture(params=MADE)
def router(request, tmp_path, monkeypatch):
    """A router of this code on the store, with the configuration of one of its ledgers."""
    unpack(STORE, tmp_path)
    monkeypatch.chdir(tmp_path)
    file = Path(f"{request.param}.yaml")
    sections = yaml.safe_load(file.read_text())
    sections.pop("conversation", None)  # its setting `sticky_prefix` is gone
    file.write_text(yaml.safe_dump(sections))
    run("migrate", "--config", f"{request.param}.yaml", code=0)
    with Router.open(load(f"{request.param}.yaml").settings, jobs=MemoryJobs()) as opened:
        yield opened


def test_a_released_store_verifies_and_learns_on(router):
    """Every draw and pmf of the store is computed again, its policy is its ledger's, and further rows are learned."""
    before = router.verify(deep=True)
    assert (before.ok, before.decisions) == (True, sum(MADE.values())), before.notes
    label = router.store.label
    assert (before.deep_decisions, before.not_checkable) == (MADE[label], OTHER_REVISION[label])
    assert (before.replay_sha256 != "") == (OTHER_REVISION[label] == 0)
    assert (before.within_rounding or 0.0) <= ROUNDING
    router.learn()  # what the other ledger's decisions teach
    before = router.verify()
    decision = router.route("a question of today")
    router.outcome(decision.id, answer="Paris", steps=1)
    router.feedback(decision.id, label=["Paris"])
    assert router.learn() == 1
    after = router.verify(deep=True)
    assert (after.ok, after.updates) == (True, before.updates + 1), after.notes
    assert after.replay_sha256 != ""
    assert (after.within_rounding or 0.0) <= ROUNDING


def test_every_decision_of_a_released_store_is_explained(router):
    """The facts of each guard are read: every decision has an explanation in words."""
    with router.database.read() as connection:
        keys = connection.execute(select(decisions.c.id)).scalars().all()
    rule = closing_rule(router.settings.learning)
    for key in keys:
        assert explain(router.store, key, rule=rule).reasons
