"""A verdict that is bought over HTTP and on the dashboard: its plan, its run by a learner, and who may ask."""

import json
import time
from types import SimpleNamespace

import pytest

from ragbandit.client import Client
from ragbandit.router.queue.presence import WorkerState
from ragbandit.router.reporting import verdict_requests
from ragbandit.router.reporting.verdict_requests import newest_request
from ragbandit.router.storage.access.audit_log import entries
from ragbandit.router.storage.access.reservations import reserve
from ragbandit.router.storage.access.spending import Spender
from ragbandit.router.storage.sql.leases import Lease
from ragbandit.shared.errors import Conflict
from ragbandit.workers.chores.bought_verdicts import carry_out_request
from ragbandit.workers.judge.rubric import CRITERIA
from ragbandit.workers.running.context import Context
from tests.support.additions import needs
from tests.support.servers.http_service import refused
from tests.support.servers.visitors import answered

SCORES = json.dumps({name: {"reason": "so", "score": 0.75} for name in CRITERIA})
ARMS = {"no_retrieval": {}, "direct": {"class": "no_retrieval"}}
TERMS = {"against": "direct"}
LEARNER = WorkerState(name="learn-1", queue="learn", state="idle", host="h", heard_at=None)


@pytest.fixture
def asking(serve):
    service = serve(
        generator={"name": "scripted", "script": {"": "Paris"}},
        judge={"generator": {"name": "scripted", "script": {"": SCORES}}},
        arms=ARMS,
        policy={"name": "uniform"},
    )
    for number in range(12):
        answered(service, f"question {number}?", answer="Lyon")
    return service


def look(service) -> None:
    """Let a learner look once for a request."""
    router = service.router
    carry_out_request(
        Context(settings=router.settings, store=router.store, ledger=router.ledger, jobs=router.process.jobs)
    )


def work(service) -> dict:
    """Let a learner look once; the request after it."""
    look(service)
    return service.http.get("/v1/report/decide").json()


def test_a_plan_is_asked_for_and_then_bought(asking):
    """Without a budget a learner only plans; with one it asks, once, and the report has the comparison. While a request
    is open, the same one again changes nothing, and another one is refused.
    """
    with Client(asking.url) as client:
        assert client.paired_request()["state"] == "none"
        assert client.decide(**TERMS)["state"] == "waiting"
        planned = work(asking)
        assert (planned["state"], planned["against"], planned["asked"]) == ("planned", "direct", 0)
        assert "routed questions of the period" in planned["plan"][0]
        terms = {"since": planned["since"], "until": planned["until"], **TERMS}
        assert client.decide(budget=1.0, **terms)["state"] == client.decide(budget=1.0, **terms)["state"] == "waiting"
        with pytest.raises(Conflict):
            client.decide(budget=2.0, **terms)
    lease = Lease(database=asking.router.database, name="decide")
    assert lease.acquire(holder="elsewhere/decide", lease_s=30.0)
    assert work(asking)["state"] == "waiting"
    lease.release(holder="elsewhere/decide")
    done = work(asking)
    assert (done["state"], done["dollars"]) == ("ended", 0.0)
    assert done["ended"] == "every question that can be asked was asked"
    query = {"since": terms["since"], "until": terms["until"], **TERMS}
    assert asking.http.get("/v1/report", params=query).json()["asked"]["asked"] == done["asked"] > 0
    [entry] = [one for one in entries(asking.router.database) if one.action == "report.decide"]
    assert (entry.actor, entry.facts["asked"]) == ("http:without a key", done["asked"])


@pytest.fixture
def later(monkeypatch):
    """A function that lets requests read a time so many seconds from now."""

    def move(seconds: float) -> None:
        at = time.time() + seconds
        monkeypatch.setattr(verdict_requests, "time", SimpleNamespace(time=lambda: at))

    return move


@needs("dashboard")
def test_a_request_that_nobody_carries_out_names_the_process_and_ends(asking, visit, later):
    """If only the service runs, the reply and the page say that a learner is missing and how to start one. After ten
    minutes the request has ended: no later learner spends its dollars, and it can be made again.
    """
    command = "ragbandit worker --queue learn"
    made = asking.http.post("/v1/report/decide", json={"budget": 1.0, **TERMS}).json()
    assert (made["state"], command in made["missing"]) == ("waiting", True)
    assert f"<code>{command}</code>" in visit(asking).page("/ui")
    later(601.0)
    ended = work(asking)
    assert (ended["state"], ended["asked"], ended["missing"]) == ("ended", 0, None)
    assert "no learner began it within 10 min" in ended["ended"]
    assert asking.http.post("/v1/report/decide", json={"budget": 2.0, **TERMS}).json()["state"] == "waiting"


def test_a_learner_that_waits_for_its_turn_keeps_a_request(asking, later):
    """While a learner waits for another process that asks questions, its request does not end, and lacks no process."""
    asking.router.process.jobs.workers = lambda: [LEARNER]
    lease = Lease(database=asking.router.database, name="decide")
    assert lease.acquire(holder="elsewhere/decide", lease_s=30.0)
    asking.http.post("/v1/report/decide", json=TERMS).raise_for_status()
    for seconds in (500.0, 1000.0, 1500.0):
        later(seconds)
        waiting = work(asking)
        assert (waiting["state"], waiting["missing"]) == ("waiting", None)
    lease.release(holder="elsewhere/decide")
    assert work(asking)["state"] == "planned"


def test_what_cannot_be_asked_is_refused(asking):
    """A request whose judge or period cannot be used ends with the reason and what to do."""
    asking.http.post("/v1/report/decide", json={"judge": "check", **TERMS}).raise_for_status()
    done = work(asking)
    assert done["state"] == "refused"
    assert "nothing scores the answers" in done["ended"]
    refused(
        asking.http.post("/v1/report/decide", json={"since": 9.0, "until": 8.0}), 422, "INVALID_INPUT", field="since"
    )
    refused(asking.http.post("/v1/report/decide", json={"judge": "os:getcwd"}), 422, "INVALID_INPUT", field="judge")


@pytest.mark.parametrize(("arm", "reason"), [("mine", "is run by your code"), ("other", "is not configured")])
def test_an_arm_that_no_learner_runs_is_refused_at_once(serve, arm, reason):
    """A comparison with an arm of the caller's code, or with an unknown arm, is not stored as a request."""
    service = serve(arms={**ARMS, "mine": {"run_by": "caller"}})
    reply = service.http.post("/v1/report/decide", json={"against": arm})
    refused(reply, 422, "INVALID_INPUT", field="against")
    assert reason in reply.text
    assert service.http.get("/v1/report/decide").json()["state"] == "none"


@needs("dashboard")
def test_admins_press_the_button(asking, visit, with_keys):
    """An administrator sees the plan, gives a budget and reads how it ended; an operator only reads. The dollars are
    booked on the key, and a spent budget of the key ends the run.
    """
    browser, operator = visit(asking), visit(asking)
    browser.log_in(with_keys(asking, "admin", scopes={"dollars_per_day": 0.5, "budget_stop": True}))
    key = with_keys(asking, "operator")
    operator.log_in(key)
    assert "Plan for the last 24 hours" in browser.page("/ui")
    assert "/ui/decide" not in operator.page("/ui")
    assert browser.send("/ui/decide", on="/ui", judge="", time="day").headers["location"] == "/ui?time=day"
    assert "A learner looks for it" not in browser.page("/ui")
    asking.router.process.jobs.workers = lambda: [LEARNER]
    assert "A learner looks for it" in browser.page("/ui")
    look(asking)
    page = browser.page("/ui")
    assert "Ask these questions" in page
    assert "can be asked have been asked" in page
    assert "Nothing was asked" in operator.page("/ui")
    with asking.router.database.read() as connection:
        request = newest_request(connection, label="main")
    form = {"since": str(request.since), "until": str(request.until), "against": request.against, "time": "day"}
    browser.send("/ui/decide", on="/ui", budget="1", **form)
    spender = Spender("key", request.charged)
    reserve(asking.router.database, [spender], dollars=0.5, now=time.time(), check=lambda _sums: None)
    look(asking)
    assert "has spent its 0.5 dollars" in browser.page("/ui")
    assert browser.send("/ui/decide", on="/ui", budget="many", **form).status_code == 422
    head = {"authorization": f"Bearer {key}"}
    assert asking.http.post("/v1/report/decide", json={}, headers=head).status_code == 403
