"""Kept stores, made by tests/data/make_store.py: each opens, verifies and learns on.

Users of 1.0.0 have the first store. Two stores of today were learned with different kernels of BLAS. Their bits differ,
so learned numbers are compared within the tolerance of rounding.
"""

import contextlib
from pathlib import Path

import pytest
import yaml
from sqlalchemy import select, update

from ragbandit.router.config.loading import load
from ragbandit.router.learning.audit.checks import AuditResult
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.explanations.explain import explain
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.rows.filling import count_unfilled
from ragbandit.router.storage.sql.tables import decisions
from tests.support.audits import assert_compared
from tests.support.command import run
from tests.support.stored_facts import EMPTY, readings
from tests.support.tar_files import unpack

DATA = Path(__file__).parents[2] / "data"
#: store -> ledger -> number of its decisions
MADE = {
    "1.0.0": {"main": 33, "free": 28},
    "native": {"main": 33, "free": 24},
    "nehalem": {"main": 33, "free": 24},
}
#: store -> number of later turns of a task, which belong to its decision
TURNS = {"1.0.0": 0, "native": 2, "nehalem": 2}
#: ledgers by a former revision of their policy (`conservative` 5), whose pmfs cannot be computed again
OTHER_REVISION = {("1.0.0", "main")}
LEDGERS = [(store, ledger) for store, ledgers in MADE.items() for ledger in ledgers]


@pytest.fixture(params=LEDGERS, ids="-".join)
def ledger(request):
    """The names of a store and of one of its ledgers."""
    return request.param


@pytest.fixture
def config(ledger, tmp_path, monkeypatch):
    """The configuration of the ledger, in the folder of its store, which this code has migrated."""
    store, label = ledger
    unpack(DATA / f"store_{store}.tar.xz", tmp_path)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"{label}.yaml"
    sections = yaml.safe_load(file.read_text())
    sections.pop("conversation", None)  # its setting `sticky_prefix` is gone
    file.write_text(yaml.safe_dump(sections))
    run("migrate", "--config", file.name, code=0)
    return file


def opened(config: Path) -> Router:
    return Router.open(load(config.name).settings, jobs=MemoryJobs())


def learned_on(config: Path, question: str) -> tuple[AuditResult, AuditResult]:
    """Audits before and after another question was answered, judged and learned."""
    with contextlib.chdir(config.parent), opened(config) as router:
        before = router.verify(deep=True)
        router.learn()  # what the other ledger's decisions teach
        decision = router.route(question)
        router.outcome(decision.id, answer="Paris", steps=1)
        router.feedback(decision.id, label=["Paris"])
        assert router.learn() == 1
        return before, router.verify(deep=True)


@pytest.mark.other_processor
def test_a_released_store_verifies_and_learns_on(ledger, config):
    """Every draw and pmf of the store is computed again, its policy is its ledger's, and further rows are learned."""
    store, label = ledger
    before, after = learned_on(config, "a question of today")
    if ledger not in OTHER_REVISION:
        remedy = "run `python -m tests.data.make_store`; a released store goes into OTHER_REVISION"
        assert before.replay_sha256, f"{ledger} is of another revision of its policy: {remedy}"
        assert_compared(before)
    assert (before.ok, before.decisions) == (True, sum(MADE[store].values()) + TURNS[store]), before.notes
    not_checkable = MADE[store][label] if ledger in OTHER_REVISION else 0
    assert (before.deep_decisions, before.not_checkable) == (MADE[store][label], not_checkable)
    assert_compared(after)


@pytest.mark.parametrize("ledger", [("native", "main"), ("native", "free")], ids="-".join)
def test_another_processor_learns_on(ledger, config, other_processor):
    """Two processors verify a kept store, and each learns on from what the other one learned."""
    assert_compared(*learned_on(config, "a question of today"))
    assert_compared(*other_processor.call(learned_on, config, "a question on another processor"))
    with opened(config) as router:
        assert_compared(router.verify(deep=True))


def test_every_decision_of_a_released_store_is_explained(config):
    """The facts of each guard are read: every decision has an explanation in words."""
    with opened(config) as router:
        with router.database.read() as connection:
            keys = connection.execute(select(decisions.c.id)).scalars().all()
        rule = closing_rule(router.settings.learning)
        for key in keys:
            assert explain(router.store, key, rule=rule).reasons


def test_columns_of_a_released_store_have_the_facts_of_its_json(config):
    """`migrate` has filled the columns; report, totals and audit are those that the JSON of the rows gives."""
    with opened(config) as router:
        filled = readings(router, until=1e11)
        with router.database.write() as connection:
            connection.execute(update(decisions).values(EMPTY))
        assert readings(router, until=1e11) == filled
        assert count_unfilled(router.database) == filled["verify"].decisions
