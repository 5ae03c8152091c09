"""Arms whose model is gone: they are not offered, also after a restart, until their settings change."""

from dataclasses import replace

import pytest

from ragbandit.router.learning.monitoring.arm_changes import declare_change
from ragbandit.router.operation.findings import findings_of_store
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.serving.health.outcome_poller import OutcomePoller
from ragbandit.router.storage.access.audit_log import entries
from ragbandit.shared.model_servers.absent_models import gone_sign
from ragbandit.shared.model_servers.error_replies import failure_of_status
from ragbandit.shared.types import ArmName, Query

UNKNOWN = {"error": {"message": "The model `m` does not exist", "code": "model_not_found"}}
#: a message about some model
WORDS = {"error": {"message": "no such model"}}
MODEL = {"name": "scripted", "model": "m"}


def end(world, arm, *, status=404, body=WORDS, text="which?", model="m", look=True, stop_reason=None, **caller):
    """A worker's outcome of this arm, and the look that follows it. status: None for an answer."""
    world.now += 40.0
    query = Query(text=text, arms=(ArmName(arm),), **caller)
    decision = world.router.submit(query, run_by="worker").result(30)
    made_by = {"arm": "model", "generator": model}
    if status is not None:
        failure = failure_of_status(status, body=body)
        made_by["failure"] = replace(failure, gone=gone_sign(failure, body=body, model="m")).facts
    outcome = make_outcome(decision_id=decision.id, now=world.now, status="answered" if status is None else "failed")
    world.store.add_outcome(
        replace(outcome, run_by="worker", made_by=made_by, stop_reason=stop_reason or outcome.stop_reason)
    )
    if look:
        world.router.service.refresh_steps()
    return decision


@pytest.fixture
def world(make_world):
    world = make_world(arms={"old": {"class": "model"}, "new": {"class": "model"}}, generator=MODEL)
    world.router.service.refresh_steps()
    return world


def offered(world):
    """The arms of a new question, long after any cool-down."""
    world.now += 5000.0
    world.router.service.refresh_steps()
    return set(world.router.submit(Query(text="who?"), run_by="worker").result(30).arms)


def retired(world):
    return "arm.gone" in {entry.action for entry in entries(world.database)}


def problems(world, words="is gone"):
    findings = findings_of_store(world.database, settings=world.settings, now=world.now)
    return [finding.line for finding in findings if words in finding.what]


def test_a_model_that_two_questions_do_not_find_is_gone(world):
    """After 404 for two questions the arm is not offered, a finding names model and remedy, and a restart keeps it."""
    end(world, "old")
    end(world, "old")
    assert offered(world) == {"old", "new"}
    end(world, "old", text="another question")
    assert offered(world) == {"new"}
    assert "arms.old: its model m is gone (HTTP 404)" in problems(world)[0]
    world.restart(arms=world.settings.arms)
    assert offered(world) == {"new"}
    assert [entry.action for entry in entries(world.database)].count("arm.gone") == 1
    world.restart(arms={**world.settings.arms, "old": {"class": "model", "max_tokens": 7}})
    assert offered(world) == {"old", "new"}
    assert problems(world) == []


def test_a_named_model_is_gone_at_once(world):
    """One reply with the server's own code retires an arm, unless the arm has answered since."""
    end(world, "old", body=UNKNOWN, look=False)
    end(world, "old", status=None)
    assert offered(world) == {"old", "new"}
    end(world, "old", body=UNKNOWN)
    assert offered(world) == {"new"}


@pytest.mark.parametrize(
    ("other", "callers"),
    [
        ({"tenant": "b", "api_key": "kb"}, [{"tenant": "a", "api_key": f"ka{number}"} for number in range(2)]),
        ({"tenant": "a", "api_key": "kb"}, [{"tenant": "a", "api_key": "ka"}] * 2),
    ],
    ids=["tenant", "key"],
)
def test_words_need_two_callers(world, other, callers):
    """Words about a model retire no arm if only one caller received them, unless no other asked in the last hour."""
    for number, caller in enumerate(callers):
        end(world, "old", text=f"question {number}", **caller)
        end(world, "new", status=None, **other)
    assert not retired(world)
    world.now += 3600.0
    end(world, "old", text="question 2", **callers[0])
    assert retired(world)


def test_words_to_two_callers(world):
    """Two tenants that receive words about a model are enough, also with the same question."""
    for tenant in ("a", "b"):
        end(world, "old", tenant=tenant, api_key=f"k{tenant}")
        assert retired(world) == (tenant == "b")


@pytest.mark.parametrize(("stop_reason", "counts"), [("error", True), ("request_refused", False)])
def test_a_chat_that_asks_for_what_is_missing(world, stop_reason, counts):
    """Failures of chats that name a missing file suspend no arm and are no finding; other 404s are both."""
    for number in range(5):
        end(world, "old", body=None, text=f"question {number}", stop_reason=stop_reason)
    assert len(problems(world, "answers failed")) == counts
    reader = OutcomePoller(world.database, settings=world.settings.health, seconds=120.0)
    (health,) = reader.read([ArmName("old")], now=world.now)
    assert health.failures == 5 * counts


def test_a_declared_change_brings_the_arm_back(world):
    """Status 410 retires an arm at once, and `policy restart` offers it again."""
    end(world, "old", status=410, body=None)
    assert offered(world) == {"new"}
    declare_change(world.database, ArmName("old"), actor="cli:test", reason="it is back", now=world.now)
    assert offered(world) == {"old", "new"}


def test_if_every_model_is_gone_all_arms_are_offered(world):
    """A retired arm is left out among failing arms, unless all arms of the question are retired."""
    end(world, "old", status=410)
    for number in range(5):
        end(world, "new", status=500, text=f"question {number}")
    assert set(world.router.submit(Query(text="who?"), run_by="worker").result(30).arms) == {"new"}
    end(world, "new", status=410)
    assert offered(world) == {"old", "new"}


@pytest.mark.parametrize(
    "second",
    [{"status": None}, {"body": {"detail": "Not Found"}}, {"body": None}, {"model": "earlier"}, {"status": 500}],
)
def test_other_outcomes_retire_no_arm(world, second):
    """A success in between, another 404, or an outcome of another model is not a second sign."""
    end(world, "old")
    end(world, "old", text="another question", **second)
    if second != {"status": None}:
        assert offered(world) == {"old", "new"}
        return
    end(world, "old", text="a third question")
    assert offered(world) == {"old", "new"}
