"""Erasure: texts are gone from database and file; what was learned stays, and verify says what was erased."""

from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest
from sqlalchemy import select

from ragbandit.router.serving.checks.reports import make_outcome, unrun_outcome
from ragbandit.router.serving.failover import replacement_arms, replacement_decision
from ragbandit.router.serving.health.circuit_breaker import OUT_OF_SECONDS
from ragbandit.router.storage import erasure as erasure
from ragbandit.router.storage.access.audit_log import entries
from ragbandit.router.storage.access.expected_dollars import ExpectedDollars
from ragbandit.router.storage.erasure import Erased, Selection, erasable, erase
from ragbandit.router.storage.jobs.scores import NOT_ITS_FAULT
from ragbandit.router.storage.paired_answers import answers_to, store_answer
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.rows.outcome_rows import KNOWN_REASONS, NOT_COUNTED
from ragbandit.router.storage.sql.counters import row_counts, stored_counts
from ragbandit.router.storage.sql.tables import closures, decisions, feedback, outcomes, paired_answers
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ERASED, NO_CONVERSATION, CallFailed, Cost, Feedback, Query, Retrieved
from tests.conftest import on_sqlite
from tests.support.audits import assert_compared, verified
from tests.support.examples import made_paired_answer
from tests.support.request_facts import records

SECRET = "Zygmunt-Przybylski"
TABLES = (decisions, outcomes, feedback, closures, paired_answers)


def told(world, *, tenant: str = "default", learned: bool = True, ours: bool = False):
    """A decision with the secret in every text of it."""
    query = Query(text=f"who is {SECRET}?", context={"user": SECRET}, tenant=tenant)
    decision = world.router.submit(query, run_by="worker" if ours else "caller").result(30)
    if learned:
        trace = (
            Retrieved(query=SECRET, ids=("a",), scores=(1.0,), seconds=0.5),
            CallFailed(purpose="x", error=SECRET, seconds=1.0),
        )
        texts = {"answer": SECRET, "stop_reason": SECRET}
        outcome = make_outcome(decision_id=decision.id, now=world.now, status="answered", steps=1.0, **texts)
        world.store.add_outcome(replace(outcome, trace=trace, run_by=decision.run_by))
        world.feedback(decision, label=[SECRET])
        world.learn()
        said = {"kind": "rating", "value": 0.5, "source": "judge", "rater": SECRET, "received_at": world.now}
        facts = {"reason": SECRET, "scores": {"right": 0.5}}
        world.store.add_feedback([Feedback(id=f"j{decision.id}", decision_id=decision.id, facts=facts, **said)])
        pair(world, decision)
    return decision


def pair(world, decision, **more) -> bool:
    """Store an answer of a paired comparison, with the secret in every text of it."""
    values = {"answer": SECRET, "error": SECRET, "unjudged": SECRET, "stop_reason": SECRET, "quality": 0.25} | more
    return store_answer(world.database, made_paired_answer(decision, arm=decision.arm, **values))


def texts(world) -> str:
    """Everything that the tables have."""
    with world.database.read() as connection:
        return "\n".join(str(row) for table in TABLES for row in connection.execute(select(table)))


def assert_counters(world) -> None:
    with world.database.read() as connection:
        assert stored_counts(connection, label="main") == row_counts(connection, label="main")
    assert world.counters().balanced


def test_texts_are_gone_and_the_ledger_stays(world, other_processor):
    """All texts of an erased decision are blank; reward, propensity, rating and seq stay, and verify counts it as
    erased, here and on another processor.
    """
    gone, stays = told(world), told(world, tenant="other")
    before = [dict(row) for row in world.updates()]
    assert erase(world.database, Selection(decision=gone.id), features=False, actor="cli:me", now=9.0) == Erased(
        decisions=1, waiting=0
    )
    record = world.router.decision(gone.id)
    assert (record.decision.query.text, record.decision.query.context) == ("", {})
    assert (record.outcome.answer, record.outcome.trace, record.outcome.stop_reason) == (None, (), ERASED)
    assert sorted(map(str, [note.value for note in record.feedback])) == ["()", "0.5"]
    assert [(note.rater, note.facts) for note in record.feedback if note.facts] == [
        (ERASED, {"scores": {"right": 0.5}})
    ]
    assert (record.decision.pmf, record.decision.arm, record.reward) == (gone.pmf, gone.arm, record.reward)
    assert record.decision.features is not None
    assert [dict(row) for row in world.updates()] == before
    assert SECRET in world.router.decision(stays.id).decision.query.text
    assert pair(world, gone, quality=0.75)  # a run of `report --decide` that began before the erasure ends after it
    with world.database.read() as connection:
        (paired,) = answers_to(connection, [gone.id])
    texts_of = attrgetter("answer", "error", "unjudged", "stop_reason")
    assert (*texts_of(paired), paired.quality) == (None, ERASED, ERASED, ERASED, 0.75)
    verdict = world.router.verify(deep=True)
    assert (verdict.ok, verdict.erased, verdict.replay_sha256) == (True, 1, verdict.live_sha256)
    assert_compared(other_processor.call(verified, world.settings))
    assert_counters(world)


def test_feedback_after_erasure_has_no_texts(world):
    """Feedback on an erased decision is stored without its texts, and is a duplicate if it is repeated."""
    decision = told(world)
    erase(world.database, Selection(decision=decision.id), features=False, actor="cli:me", now=9.0)
    said = {"decision_id": decision.id, "received_at": world.now, "rater": SECRET}
    items = [
        Feedback(id="label", kind="label", value=(SECRET,), source="human", **said),
        Feedback(id="score", kind="rating", value=0.25, source="judge", facts={"reason": SECRET, "n": 1}, **said),
    ]
    receipts = [receipt for _ in range(2) for receipt in world.store.add_feedback(items)]
    assert [(receipt.duplicate, receipt.late) for receipt in receipts] == [(False, True)] * 2 + [(True, True)] * 2
    assert SECRET not in texts(world)
    stored = {note.id: (note.value, note.rater, note.facts) for note in world.router.decision(decision.id).feedback}
    assert (stored["label"], stored["score"]) == (((), ERASED, {}), (0.25, ERASED, {"n": 1}))
    assert world.router.verify(deep=True).ok


def test_an_outcome_after_erasure_has_no_texts(world):
    """The outcome of an erased decision is stored without its texts; a stop reason that the service reads stays."""
    reasons = {SECRET: ERASED, "length": "length", "tool_calls": "tool_calls"}
    for sent, stored in reasons.items():
        decision = told(world, learned=False)
        erase(world.database, Selection(decision=decision.id), features=False, actor="cli:me", now=9.0)
        assert world.outcome(decision, answer=SECRET, stop_reason=sent)
        assert world.router.decision(decision.id).outcome.stop_reason == stored
        assert not world.outcome(decision, answer=SECRET, stop_reason=sent)
    assert SECRET not in texts(world)
    assert NOT_COUNTED | NOT_ITS_FAULT | {OUT_OF_SECONDS} <= KNOWN_REASONS


def test_nothing_is_left_in_the_file(make_world):
    """Neither the SQLite file nor its log has a byte of the text any more."""
    world = make_world()
    told(world)
    folder = Path(world.settings.data_dir)
    assert any(SECRET.encode() in file.read_bytes() for file in folder.glob("ragbandit.db*"))
    world.router.close()
    erase(world.database, Selection(tenant="default"), features=False, actor="cli:me", now=9.0)
    world.database.close()
    assert not any(SECRET.encode() in file.read_bytes() for file in folder.glob("ragbandit.db*"))


def test_by_tenant_and_by_time(world, monkeypatch):
    """A tenant's decisions before a time are erased in batches, and nobody else's; a dry run counts the same."""
    monkeypatch.setattr(erasure, "BATCH", 2)
    told(world, tenant="a")
    told(world, tenant="b")
    world.now += 100
    told(world, tenant="a")
    selection = Selection(tenant="a", before=world.now)
    assert erasable(world.database, selection) == Erased(decisions=1, waiting=0)
    assert erase(world.database, selection, features=False, actor="cli:me", now=9.0).decisions == 1
    with world.database.read() as connection:
        rows = connection.execute(
            select(decisions.c.tenant, decisions.c.text).order_by(decisions.c.made_at, decisions.c.tenant)
        ).all()
    assert [(row.tenant, row.text == "") for row in rows] == [("a", True), ("b", False), ("a", False)]
    (entry,) = (one for one in entries(world.database) if one.action == "store.erase")
    assert (entry.actor, entry.made_at, entry.facts["tenant"]) == ("cli:me", 9.0, "a")


def test_nothing_given_erases_nothing():
    """A selection of everything is refused."""
    with pytest.raises(InvalidInput, match="what to erase"):
        Selection()


def test_what_waits_is_closed(world):
    """A waiting decision is closed and never learned, and the worker that claims it reads that it is cancelled."""
    judged, asked = told(world, learned=False), told(world, learned=False, ours=True)
    world.feedback(judged, label=[SECRET])
    found = erase(world.database, Selection(tenant="default"), features=False, actor="cli:me", now=9.0)
    assert (found.decisions, found.waiting) == (2, 2)
    assert {world.router.decision(one.id).state for one in (judged, asked)} == {"closed"}
    _, is_cancelled = world.store.decision_to_answer(asked.id)
    assert is_cancelled
    assert world.learn() == 0
    assert SECRET not in texts(world)
    assert world.router.decision(judged.id).late == {note.id for note in world.router.decision(judged.id).feedback}
    assert_counters(world)


def test_it_is_ended_after_it_was_cut_off(world, monkeypatch):
    """The same request again erases what one that was cut off has left."""
    monkeypatch.setattr(erasure, "BATCH", 2)
    for _ in range(5):
        told(world)
    selection = Selection(before=world.now + 1)

    def dies(_done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        erase(world.database, selection, features=False, actor="cli:me", now=9.0, progress=dies)
    assert SECRET in texts(world)
    assert erase(world.database, selection, features=False, actor="cli:me", now=10.0).decisions == 5
    assert SECRET not in texts(world)


@pytest.mark.parametrize("entities", [{SECRET: 0.0}, [[SECRET, 0.0]]])
def test_keys_of_facts_are_erased(world, entities):
    """Only numbers that the product has named stay among the facts: words of a question leave as keys and as values."""
    gone = told(world)
    ours = {
        "quality": [0.5, 0.25, 0.0],
        "incumbent": {"arm": gone.arm, "share": 0.5, SECRET: 1},
        "cold_start_floor": {},
    }
    facts = ours | {
        "entities": entities,
        SECRET: 1,
        "own": {SECRET: [True]},
        "cold_start_floor": {gone.arm: 0.2, SECRET: 0},
    }
    world.write(decisions.update().where(decisions.c.id == gone.id).values(facts=canonical(facts)))
    erase(world.database, Selection(decision=gone.id), features=False, actor="cli:me", now=9.0)
    stays = {"quality": [0.5, 0.25, 0.0], "incumbent": {"share": 0.5}, "cold_start_floor": {gone.arm: 0.2}}
    assert world.router.decision(gone.id).decision.facts == stays | {ERASED: "texts"}
    assert SECRET not in texts(world)


@on_sqlite
def test_without_features_the_policy_goes_on(world):
    """Where features are erased verify says how many updates cannot be learned again, and learning goes on."""
    gone = told(world)
    told(world, tenant="other")
    erase(world.database, Selection(decision=gone.id), features=True, actor="cli:me", now=9.0)
    assert world.router.decision(gone.id).decision.features is None
    verdict = world.router.verify(deep=True)
    assert (verdict.ok, verdict.erased, verdict.not_relearnable) == (True, 1, 1)
    assert any("cannot be learned again" in note for note in verdict.notes)
    told(world)
    assert world.counters().learned == 3
    assert world.router.verify().ok


@pytest.mark.parametrize("named", [0, 1])
def test_both_decisions_of_a_failover(world, named):
    """A decision that answers in place of a failed one is stored once, with the failure; both are erased together."""
    first = told(world, learned=False, ours=True)
    failure = {"failure": {"kind": "failed", "status": 503}}
    failed = unrun_outcome(first.id, stop_reason="error", error=SECRET, now=world.now, made_by=failure)
    worker_arms = world.settings.worker_arms
    given = {
        "conversation": NO_CONVERSATION,
        "passing": {},
        "attempts": 2,
        "rules": world.settings.rule_book,
        "expected": ExpectedDollars(),
    }
    others = replacement_arms(first, worker_arms=worker_arms, **given)
    parts = {"arms": others, "unhealthy": others[:1], "conversation": NO_CONVERSATION, "secret": b"s"}
    parts |= {"limits": world.settings.budget, "passing": {}, "worker_arms": worker_arms}
    second = replacement_decision(first, failed, **parts)
    assert (second.arm, second.propensity, second.query.arm_by) == (others[1], 1.0, "failover")
    failed = replace(failed, made_by={**failure, "successor": second.id})
    assert world.store.add_outcome(failed, successor=second)
    assert not world.store.add_outcome(failed, successor=second)
    assert world.counters().decided == 2
    late = replace(failed, cost=Cost(seconds_total=world.settings.budget.seconds))
    assert replacement_decision(first, late, **parts) is None
    chosen = Selection(decision=[first, second][named].id)
    assert erasable(world.database, chosen).decisions == 2


def test_what_follows_an_erased_response(world):
    """Responses that continue an erased one or have its items are erased with it, over links of every kind; other turns
    of its session are counted, and erased by the session.
    """

    def asked(key, *, session="talk", **request):
        query = Query(text=f"who is {SECRET}?", id=key, session=session, **records(**request))
        return world.router.submit(query, run_by="worker").result(30).id

    asked("resp_0")
    asked("resp_1", previous_response_id="resp_0")
    asked("resp_2", session="other", previous_response_id="resp_1", quoted=["x"])
    asked("resp_3", session=None, quoted=["resp_2", "2"])
    asked("resp_4", session=None, failover={"arm": "a", "first": "resp_3", "attempt": 2})
    asked("branch", previous_response_id="resp_0")
    asked("chat", session="other")
    erasing = {"features": False, "actor": "cli:me", "now": 9.0}
    one = Selection(decision="resp_1")
    assert erasable(world.database, one) == Erased(decisions=4, waiting=4, may_repeat=3)
    assert erase(world.database, one, **erasing) == Erased(decisions=4, waiting=4, may_repeat=3)
    assert erasable(world.database, one).decisions == 4  # an interrupted erasure finds the same decisions
    texts_left = {key: world.router.decision(key).decision.query.text for key in ("resp_0", "branch", "chat")}
    assert set(texts_left.values()) == {f"who is {SECRET}?"}
    assert erase(world.database, Selection(session="talk"), **erasing).decisions == 4 + 2
    assert erase(world.database, Selection(session="other"), **erasing).decisions == 1
    assert SECRET not in texts(world)
    assert_counters(world)
