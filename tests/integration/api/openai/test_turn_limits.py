"""Limits of a task and of a session over HTTP, and the header that names the arm."""

from collections import Counter
from dataclasses import replace

import pytest

from ragbandit.router.operation.findings import findings_of_settings
from ragbandit.router.storage.access import expected_dollars
from ragbandit.shared.types import MovedTurn, Query
from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.integration.api.openai.test_chat_tasks import CALLS, FIRST, RESULT, TOOLS, chats
from tests.support.servers.http_service import QUESTION, refused, routed

__all__ = ["chats"]
CALL = {"role": "assistant", "content": None, "tool_calls": CALLS}
#: settings at which dollars count
DOLLARS = {"policy": {"name": "mba"}, "reward": {"cost": {"dollars": 1.0}}}


def spend(service, decision_id, dollars):
    assert service.router.outcome(decision_id, answer="x", steps=1, cost={"dollars": dollars})


def left(reply, name):
    return float(reply.headers[f"x-ragbandit-{name}-limit"]), float(reply.headers[f"x-ragbandit-{name}-remaining"])


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request):
    """The settings of a database."""
    return {} if request.param == "sqlite" else {"database_url": request.getfixturevalue("postgres_url")}


def test_turns_of_a_task(serve, database):
    """The turn after the last one of a task is refused; a repeated turn is not, and another session goes on."""
    service = serve(conversation={"unit": "task", "task_limit": {"turns": 2}}, **database)
    http, body = service.http, {"question": QUESTION, "session_id": "s"}
    replies = [http.post("/v1/route", json={**body, "decision_id": name}) for name in ("first", "second")]
    assert [left(reply, "task-turns") for reply in replies] == [(2.0, 2.0), (2.0, 1.0)]
    assert http.post("/v1/route", json={**body, "decision_id": "second"}).json()["decision_id"] == "second"
    for headers in ({}, {"x-ragbandit-preview": "true"}):
        reply = http.post("/v1/route", json=body, headers=headers)
        error = refused(reply, 429, "LIMIT_REACHED", field="session_id")
        assert error["message"] == "the task has had 2 turns, and its limit is 2"
        assert "conversation.task_limit.turns" in error["remedy"]
        assert (reply.headers["x-should-retry"], reply.headers.get("retry-after")) == ("false", None)
        assert left(reply, "task-turns") == (2.0, 0.0)
    (item, other) = http.post("/v1/route/batch", json={"items": [body, {**body, "session_id": "t"}]}).json()["items"]
    assert (item["error"]["code"], "error" in other) == ("LIMIT_REACHED", False)
    of_task = {"of": "task", "unit": "turns", "limit": 2.0}
    assert (item["limits"], other["limits"]) == ([{**of_task, "remaining": 0.0}], [{**of_task, "remaining": 2.0}])
    routed(http)
    service.router.end_session("s")
    assert left(http.post("/v1/route", json=body), "task-turns") == (2.0, 2.0)


def test_dollars_of_a_session(serve, database):
    """The dollars of all decisions of a session count: of its tasks, of its agents, and of turns that came late."""
    service = serve(conversation={"units": {"route": "task"}, "session_limit": {"dollars": 1.0}}, **DOLLARS, **database)
    http = service.http

    def ask(agent=None, **more):
        headers = {} if agent is None else {"x-ragbandit-agent": agent}
        return http.post("/v1/route", json={"question": QUESTION, "session_id": "s", **more}, headers=headers)

    first = ask()
    assert left(first, "session-dollars") == (1.0, 1.0)
    spend(service, first.json()["decision_id"], 0.25)
    service.router.end_session("s")
    for reply, dollars in ((ask(), 0.25), (ask(agent="sub"), 0.25), (ask(unit="turn"), 0.125)):
        spend(service, reply.json()["decision_id"], dollars)
    last = ask()
    assert left(last, "session-dollars") == (1.0, 0.125)
    spend(service, last.json()["decision_id"], 0.5)
    error = refused(ask(), 429, "LIMIT_REACHED", field="session_id")
    assert error["message"] == "the session has cost 1.375 dollars, and its limit is 1"
    assert refused(ask(unit="turn", agent="sub"), 429, "LIMIT_REACHED")
    assert routed(http, session_id="another")


def test_answers_that_run_count_by_estimates(serve):
    """A question whose answer a worker has not finished counts in its session by its estimate."""
    model = {"name": "openai", "model": "m", "context_tokens": 4000, "openai": {"base_url": "http://127.0.0.1:9/v1"}}
    generator = {**model, "token_prices": {"input": 0.0, "output": 1000.0}}
    limits = {"session_limit": {"dollars": 1.0}}
    service = serve(arms={"small": {"class": "model"}}, generator=generator, conversation=limits, **DOLLARS)
    body = {"question": QUESTION, "session_id": "s"}
    assert service.http.post("/v1/answer", json=body, params={"wait_s": 0}).status_code == 202
    reply = service.http.post("/v1/answer", json=body, params={"wait_s": 0})
    assert "has cost 1 dollar, and its limit is 1" in refused(reply, 429, "LIMIT_REACHED")["message"]


def test_two_keys_with_one_id(chats):
    """Two keys of a tenant may use the same id: each has a session, and a limit, of its own."""
    world = chats(keys=2, session_limit={"turns": 1})
    headers = {"x-ragbandit-session-id": "1"}
    world.post(FIRST, headers=headers)
    again = world.send("/v1/chat/completions", {"model": "auto", "messages": FIRST}, **headers)
    assert (again.status_code, again.json()["error"]["code"]) == (429, "limit_reached")
    assert again.headers["x-should-retry"] == "false"
    world.post(FIRST, headers=headers, key=1)


@pytest.mark.parametrize("unit", ["task", "turn"])
def test_a_limit_moves_loops_and_turns(chats, monkeypatch, unit):
    """With `at_limit: cheapest` results of tools beyond a limit leave an expensive arm, and say why."""
    monkeypatch.setattr(expected_dollars, "_FRESH_S", 0.0)
    limits = {"at_limit": "cheapest", "task_limit": {"turns": 2}}
    world = chats(calls=True, unit=unit, sections={"policy": {"name": "uniform"}}, **limits)
    router = world.router
    for arm, dollars in (("large", 1.0), ("small", 0.01)):
        spend(world.service, router.route(Query(text="Who?", arms=(arm,))).id, dollars)
    router.service.refresh_steps()
    named = world.post(FIRST, tools=TOOLS, headers={"x-ragbandit-arm": "large"})
    assert (named.arm, named.query.arm_by) == ("large", "caller")
    firsts = (world.post(FIRST, tools=TOOLS, headers={"x-ragbandit-session-id": f"s{count}"}) for count in range(100))
    first = next(decision for decision in firsts if decision.arm == "large")
    headers = {"x-ragbandit-session-id": first.query.session}
    messages = [*FIRST, CALL, RESULT]
    second = world.post(messages, tools=TOOLS, headers=headers)
    assert (second.turn_of, second.arm) == (first.id, "large")
    third, fourth = (world.post([*messages, *[CALL, RESULT] * count], tools=TOOLS, headers=headers) for count in (1, 2))
    assert [(one.turn_of, one.arm) for one in (third, fourth)] == [(first.id, "small")] * 2
    assert MovedTurn.of(third.facts).reason == "the task has had 2 turns, and its limit is 2; another arm is cheaper"
    again = world.post([*FIRST, {"role": "user", "content": "And low tide?"}], headers=headers)
    assert again.turn_of == (first.id if unit == "task" else None)
    assert again.arm == "small" or unit == "turn"  # a question is a task of its own
    named = world.send("/v1/chat/completions", {"model": "arm/large", "messages": FIRST}, **headers)
    assert named.status_code == 200, named.text  # a named arm is no part of a task
    assert router.verify().ok


def test_results_may_leave_their_arm_if_the_limit_is_reached_meanwhile(chats, monkeypatch):
    """If another gateway reaches the limit before results of tools are stored, the limit chooses their arm."""
    world = chats(calls=True, unit="turn", at_limit="cheapest", session_limit={"turns": 2})
    headers = {"x-ragbandit-session-id": "s"}
    first, store = world.post(FIRST, tools=TOOLS, headers=headers), world.router.store
    add, others = store.add_decisions, [replace(first, id="other", query=replace(first.query, id="other", limits=()))]

    def add_after_another(group, **more):
        if others:
            (stored,) = add([others.pop()])
            assert stored.id == "other"
        return add(group, **more)

    monkeypatch.setattr(store, "add_decisions", add_after_another)
    second = world.post([*FIRST, CALL, RESULT], tools=TOOLS, headers=headers)
    assert (others, second.turn_of, second.arm_by, second.query.arm_by) == ([], first.id, "limit", None)


def test_a_named_arm_cannot_be_replaced(serve):
    """A request that names its arm is refused beyond a limit that gives others the cheapest arm."""
    limits = {"session_limit": {"turns": 1}, "at_limit": "cheapest"}
    http = serve(conversation=limits, **DOLLARS).http
    body = {"question": QUESTION, "session_id": "s"}
    assert http.post("/v1/route", json=body, headers={"x-ragbandit-arm": "multi_step"}).json()["arm"] == "multi_step"
    refused(http.post("/v1/route", json=body, headers={"x-ragbandit-arm": "multi_step"}), 429, "LIMIT_REACHED")
    moved = http.post("/v1/route", json=body)
    assert left(moved, "session-turns") == (1.0, 0.0)
    reasons = http.get(f"/v1/decisions/{moved.json()['decision_id']}/explanation").json()["reasons"]
    reached = "A limit of its session or task was reached, so the cheapest arm answered. Nothing is learned from it."
    assert reached in reasons


def test_the_cheapest_arm_before_anything_is_known(serve):
    """Before an arm has an answer, the price of its model says which is the cheapest, with any policy."""
    model = {"name": "openai", "model": "m", "context_tokens": 4000, "openai": {"base_url": "http://127.0.0.1:9/v1"}}
    prices = {"dear": {"input": 9.0, "output": 9.0}, "low": {"input": 0.1, "output": 0.2}}
    generators = {name: {**model, "token_prices": price} for name, price in prices.items()}
    arms = {name: {"class": "model", "generator": name} for name in generators}
    arms |= {"own": {"run_by": "caller"}}
    limits = {"session_limit": {"turns": 1}, "at_limit": "cheapest"}
    http = serve(arms=arms, generators=generators, conversation=limits, policy={"name": "uniform"}).http
    for number in range(12):
        routed(http, session_id=f"s{number}")
        assert routed(http, session_id=f"s{number}")["arm"] == "low"
    assert routed(http, session_id="s0", arms=["own", "dear"])["arm"] == "dear"


def test_a_header_names_the_arm(serve):
    """The header x-ragbandit-arm names the arm; it may not contradict the body, nor come twice."""
    service = serve()
    http = service.http

    def ask(*arms, **more):
        return http.post(
            "/v1/route", json={"question": QUESTION, **more}, headers=[("x-ragbandit-arm", a) for a in arms]
        )

    decision = service.router.decision(ask("multi_step").json()["decision_id"]).decision
    assert (decision.arm, decision.propensity, decision.query.arm_by) == ("multi_step", 1.0, "caller")
    assert ask("multi_step", arms=["multi_step", "no_retrieval"]).json()["arm"] == "multi_step"
    assert refused(ask("multi_step", arms=["no_retrieval"]), 422, "INVALID_INPUT", field="x-ragbandit-arm")
    assert refused(ask("multi_step", "no_retrieval"), 422, "INVALID_INPUT")
    assert "no_retrieval" in refused(ask("unknown"), 422, "INVALID_INPUT")["remedy"]


def paid_models(sent):
    """Answers of three models: broken fails, all refuse the seed 7, and answers with the seed 8 are long."""
    if sent["model"] == "broken":
        return Reply(status=503, text="busy")
    if sent.get("seed") == 7:
        return Reply(status=400, text="seed must be less than 7")
    written = 100_000 if sent.get("seed") == 8 else 1000
    return Reply(text="Paris", changes={"usage": {"prompt_tokens": 0, "completion_tokens": written}})


def models(url, *, unpriced=()):
    """Settings of arms that are named after their models. At its listed price `broken` is the cheapest."""

    def generator(name):
        prices = {} if name in unpriced else {"token_prices": {"input": 0.0, "output": PRICES[name]}}
        return {"name": "openai", "model": name, "openai": {"base_url": url, "retries": 0}, **prices}

    return {
        "generators": {name: generator(name) for name in PRICES},
        "arms": {name: {"class": "model", "generator": name} for name in PRICES},
        "policy": {"name": "uniform"},
        "health": {"failures": 0},
    }


PRICES = {"dear": 9.0, "cheap": 1.0, "broken": 0.1}


def test_an_arm_that_only_fails_is_not_the_cheapest(serve, monkeypatch):
    """Without a breaker, turns beyond a limit are not sent to an arm whose newest answers all failed."""
    monkeypatch.setattr(expected_dollars, "_FRESH_S", 0.0)
    limits = {"session_limit": {"turns": 1}, "at_limit": "cheapest", "rewrite": {"by": "off"}}
    with ScriptedServer(paid_models) as server:
        service = serve(**models(server.url), conversation=limits, inline=True)

        def ask(model, session):
            body = {"model": model, "messages": FIRST, "max_tokens": 1000}
            reply = service.http.post("/v1/chat/completions", json=body, headers={"x-ragbandit-session-id": session})
            return reply.json().get("ragbandit", {}).get("arm"), server.requests[-1].body["model"]

        assert ask("auto", "s")
        assert ask("auto", "s") == ("cheap", "cheap")  # before anything is known, broken is asked first
        assert server.requests[-2].body["model"] == "broken"
        for number in range(5):
            ask("arm/broken", f"b{number}")
        service.router.service.refresh_steps()
        asked = len(server.requests)
        assert [ask("auto", "s") for _ in range(6)] == [("cheap", "cheap")] * 6
        assert len(server.requests) == asked + 6


def test_refused_requests_make_no_arm_the_last(serve, monkeypatch):
    """Five requests that the server of the cheapest arm refuses send no turn of others to a more expensive arm."""
    monkeypatch.setattr(expected_dollars, "_FRESH_S", 0.0)
    limits = {"session_limit": {"turns": 1}, "at_limit": "cheapest", "rewrite": {"by": "off"}}
    with ScriptedServer(paid_models) as server:
        service = serve(**models(server.url), conversation=limits, inline=True)

        def ask(model, session, **more):
            body = {"model": model, "messages": FIRST, "max_tokens": 1000, **more}
            return service.http.post("/v1/chat/completions", json=body, headers={"x-ragbandit-session-id": session})

        for number in range(5):
            ask("arm/broken", f"b{number}")
            assert ask("arm/cheap", f"c{number}", seed=7).status_code == 400
        service.router.service.refresh_steps()
        ask("auto", "s")
        assert [ask("auto", "s").json()["ragbandit"]["arm"] for _ in range(3)] == ["cheap"] * 3


def test_large_requests_to_a_named_arm_do_not_make_it_dear(serve, monkeypatch):
    """Answers to requests that name their arm count in its mean only while it has no others: a caller with large
    requests to the cheapest arm sends no turn of others to a more expensive one.
    """
    monkeypatch.setattr(expected_dollars, "_FRESH_S", 0.0)
    limits = {"session_limit": {"turns": 1}, "at_limit": "cheapest", "rewrite": {"by": "off"}}
    with ScriptedServer(paid_models) as server:
        service = serve(**models(server.url), conversation=limits, inline=True)

        def ask(model, session, **more):
            body = {"model": model, "messages": FIRST, "max_tokens": 1000, **more}
            headers = {"x-ragbandit-session-id": session}
            reply = service.http.post("/v1/chat/completions", json=body, headers=headers)
            return reply.json().get("ragbandit", {}).get("arm")

        def beyond_limit():
            service.router.service.refresh_steps()
            return {ask("auto", "s") for _ in range(3)}

        for number in range(5):
            ask("arm/broken", f"b{number}")
            ask("arm/cheap", f"c{number}", seed=8)
        ask("arm/dear", "s")
        assert beyond_limit() == {"dear"}  # nothing else is known of the arm
        assert "cheap" in {ask("auto", f"t{number}") for number in range(20)}
        assert beyond_limit() == {"cheap"}
        for number in range(5):
            ask("arm/cheap", f"d{number}", seed=8)
        monkeypatch.setattr(expected_dollars, "_READ", 4)
        assert beyond_limit() == {"cheap"}


def test_turns_of_a_task_count_once_in_the_mean_of_its_arm(serve, monkeypatch):
    """An arm with tasks of many turns is not taken for more expensive than one turn of it costs."""
    monkeypatch.setattr(expected_dollars, "_FRESH_S", 0.0)
    arms = {name: {"run_by": "caller"} for name in ("dear", "cheap")}
    limits = {"session_limit": {"turns": 4}, "at_limit": "cheapest"}
    service = serve(arms=arms, conversation=limits, **DOLLARS)
    for arm, dollars, turns in (("cheap", 0.01, 4), ("dear", 0.015, 1)):
        for _ in range(turns):
            asked = Query(text="Who?", arms=(arm,), session=arm, unit="task")
            spend(service, service.router.route(asked).id, dollars)
    service.router.service.refresh_steps()
    for _ in range(4):
        routed(service.http, session_id="s")
    assert {routed(service.http, session_id="s")["arm"] for _ in range(3)} == {"cheap"}


def test_an_arm_of_unknown_price_comes_last(serve):
    """An arm without prices, which costs $0 by its outcomes, is the cheapest for no turn, and `validate` names it."""
    limits = {"task_limit": {"turns": 999}, "session_limit": {"turns": 1, "dollars": 9.0}, "at_limit": "cheapest"}
    with ScriptedServer(paid_models) as server:
        given = models(server.url, unpriced=("cheap", "broken"))
        service = serve(**given, conversation={**limits, "rewrite": {"by": "off"}}, inline=True)
        headers = {"x-ragbandit-session-id": "s"}

        def ask(model):
            reply = service.http.post("/v1/chat/completions", json={"model": model, "messages": FIRST}, headers=headers)
            return reply.json()["ragbandit"]["arm"]

        assert ask("arm/cheap") == "cheap"
        service.router.service.refresh_steps()
        assert {ask("auto") for _ in range(6)} == {"dear"}
    found = {one.about: one.what for one in findings_of_settings(service.router.settings)}
    assert "the calls of cheap have no price: rewards and limits count them" in found["generators.cheap"]
    assert "it is never reached: a task ends after" in found["conversation.task_limit.turns"]


def test_strangers_do_not_choose_the_arm(serve, monkeypatch):
    """Outcomes that another tenant reports do not choose the cheapest arm of this tenant; its own outcomes do."""
    monkeypatch.setattr(expected_dollars, "_FRESH_S", 0.0)
    arms = {name: {"run_by": "caller"} for name in ("dear", "cheap")}
    limits = {"session_limit": {"turns": 1}, "at_limit": "cheapest"}
    service = serve(arms=arms, policy={"name": "uniform"}, conversation=limits)
    for tenant, dollars in (("ours", (1.0, 0.01)), ("theirs", (0.01, 5.0))):
        for arm, amount in zip(("dear", "cheap"), dollars, strict=True):
            spend(service, service.router.route(Query(text="Who?", arms=(arm,), tenant=tenant)).id, amount)
    service.router.service.refresh_steps()
    chosen = Counter()
    for tenant in ("ours", "theirs"):
        for _ in range(7):
            chosen[tenant, routed(service.http, session_id="s", tenant=tenant)["arm"]] += 1
    assert chosen["ours", "cheap"] >= 6
    assert chosen["theirs", "dear"] >= 6


def test_a_report_counts_what_has_reached_a_limit(serve):
    """The notes of a report count tasks, and questions of sessions, that have reached a limit, by arm."""
    limits = {"unit": "task", "units": {"route": "task"}, "task_limit": {"turns": 2}, "session_limit": {"dollars": 1.0}}
    service = serve(arms={"large": {"run_by": "caller"}, "small": {"run_by": "caller"}}, conversation=limits, **DOLLARS)
    http = service.http

    def ask(session, **more):
        return http.post("/v1/route", json={"question": QUESTION, "session_id": session, **more})

    reached = Counter()
    for number in range(6):
        first = ask(f"s{number}").json()
        if number < 4:
            ask(f"s{number}")
            assert ask(f"s{number}").status_code == 429
            reached[first["arm"]] += 1
    dear = ask("dear", unit="turn").json()
    spend(service, dear["decision_id"], 1.5)
    assert ask("dear", unit="turn").status_code == 429
    notes = http.get("/v1/report").json()["notes"]
    (tasks,) = [note for note in notes if note.startswith("tasks that have reached a limit")]
    assert sum(reached.values()) == 4
    assert all(f"{arm} {count} of " in tasks for arm, count in reached.items())
    (sessions,) = [note for note in notes if note.startswith("questions of sessions that have reached")]
    assert f"by arm: {dear['arm']} 1 of " in sessions
