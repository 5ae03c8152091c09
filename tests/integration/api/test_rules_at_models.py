"""Rules of now hold wherever a question goes to a model: in the queue, in tool loops, at auxiliary models."""

import json

import pytest

from ragbandit.router.serving.failover import replacement_arms
from ragbandit.router.storage.access.expected_dollars import ExpectedDollars
from ragbandit.shared.types import NO_CONVERSATION, Query
from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.support.additions import needs, only_with
from tests.support.request_facts import records
from tests.support.servers.scripted_http import ScriptedHttp, json_reply
from tests.support.waiting import until

ARMS = ("eu", "us", "far")
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
TURNS = [
    {"role": "user", "content": "Who wrote Dracula?"},
    {"role": "assistant", "content": "Bram Stoker."},
    {"role": "user", "content": "Where was he born?"},
]
EMBEDDED = {"model": "embed", "input": ["PRIVATE text"]}


VECTORS = {"object": "list", "data": [{"index": 0, "embedding": [0.1]}]}


def reply_of(sent):
    if sent["model"] == "pick":
        return Reply(text="us")
    if sent.get("tools") and sent["messages"][-1]["role"] == "user":
        return Reply(message={"tool_calls": [CALL]}, finish="tool_calls")
    return Reply(text=f"the {sent['model']} answer")


@pytest.fixture(scope="module")
def models():
    with ScriptedServer(reply_of) as server:
        yield server


def sections(models, **more):
    generator = {"name": "openai", "openai": {"base_url": models.url}, "context_tokens": 4000, "supports": ["tools"]}
    return {
        "policy": {"name": "uniform"},
        "generators": {name: generator | {"model": name} for name in ARMS},
        "generator": generator | {"model": "us"},
        "arms": {name: {"class": "model", "generator": name} for name in ARMS},
        "conversation": {"rewrite": {"generator": generator | {"model": "rewrite"}}},
        "context": {"data": {"type": "category", "values": ["open", "closed"], "header": "X-Data"}},
    } | more


@pytest.fixture(scope="module")
def vectors():
    """A server of embeddings."""
    with ScriptedHttp(json_reply(VECTORS)) as server:
        yield server


@pytest.fixture(scope="module")
def service(serve_module, models, vectors):
    """A service whose rules let every other model read open data, and none read closed data."""
    picking = {"name": "llm", "params": {"fallback": "eu"}}
    pick = {"generator": {"name": "openai", "model": "pick", "openai": {"base_url": models.url}}}
    rules = [
        {"name": "closed", "when": {"context.data": "closed"}, "arms": ["eu", "us"]},
        {
            "name": "open",
            "when": {"context.data": "open"},
            "arms": ["eu", "us"],
            "models": ["rewrite", "pick", "embeddings"],
        },
    ]
    more = {"rules": rules} | only_with("model_picks", {"policy": {**picking, "pick": pick}})
    more |= only_with("embeddings", {"embeddings": {"base_url": f"{vectors.url}/v1"}})
    return serve_module(inline=True, **sections(models, **more))


def asked_models(models, work):
    """The names of the models that were asked while this function ran."""
    before = len(models.requests)
    work()
    return [request.body["model"] for request in models.requests[before:]]


@needs("model_picks")
def test_an_auxiliary_model_reads_what_a_rule_lets_it_read(service, models):
    """The models that rewrite and pick read no question under a rule, unless the rule names them."""
    body = {"question": TURNS[-1]["content"], "messages": TURNS[:-1]}

    def ask(data):
        reply = service.http.post("/v1/answer?wait_s=20", json=body, headers={"X-Data": data})
        assert reply.json()["status"] == "answered", reply.text
        return reply.json()["arm"]

    arms = []
    *auxiliary, answering = asked_models(models, lambda: arms.append(ask("open")))  # the pick may be explored past
    assert (auxiliary, answering in ("eu", "us")) == (["rewrite", "pick"], True)
    assert asked_models(models, lambda: arms.append(ask("closed"))) == ["eu"]
    assert arms == [answering, "eu"]


@pytest.mark.parametrize("door", ["route", "batch", "chat"])
def test_a_preview_asks_no_auxiliary_model(service, models, door):
    """A question with earlier turns is previewed as it was written, and neither rewritten nor picked for."""
    body = {"question": TURNS[-1]["content"], "messages": TURNS[:-1]}
    path, sent = {
        "route": ("/v1/route", body),
        "batch": ("/v1/route/batch", {"items": [body]}),
        "chat": ("/v1/chat/completions", {"model": "auto", "messages": TURNS}),
    }[door]
    headers, shown = {"X-Data": "open", "x-ragbandit-preview": "true"}, []
    assert asked_models(models, lambda: shown.append(service.http.post(path, json=sent, headers=headers))) == []
    preview = shown[0].json().get("items", [shown[0].json()])[0]
    assert {entry["arm"] for entry in preview["arms"]} == {"eu", "us"}


@needs("embeddings")
def test_texts_for_embeddings_obey_the_rules(service, vectors):
    """The server of embeddings gets no text under a rule that does not name it: 403, with the rule's name."""

    def embed(data):
        return service.http.post("/v1/embeddings", json=EMBEDDED, headers={"X-Data": data} if data else {})

    refused = embed("closed")
    assert (refused.status_code, vectors.seen) == (403, []), refused.text
    assert "the rules closed do not let" in refused.json()["error"]["message"]
    for data in ("open", None):
        reply = embed(data)
        assert reply.status_code == 200, reply.text


@pytest.fixture
def before_and_after(serve, models):
    """A function that starts a service on one store; the service before it is closed."""
    running = []

    def start(*, inline=True, **more):
        if running:
            running.pop().close()
        running.append(serve(inline=inline, **sections(models, **more)))
        return running[-1]

    return start


BANK = [{"name": "bank", "when": {"tenant": "bank"}, "arms": ["eu"]}]
FORCED = {"tenant": "bank", "arms": ["us"]}


def test_a_question_that_waited_is_not_run_against_a_new_rule(before_and_after, models):
    """A queued question whose arm a rule has forbidden since fails as not_permitted, and no model gets its text."""
    service = before_and_after(inline=False)
    waiting = {"question": "BANKTEXT waits", **FORCED, "tenant": "bank"}
    key = service.http.post("/v1/answer?wait_s=0", json=waiting).json()["decision_id"]
    other = service.http.post("/v1/answer?wait_s=0", json=waiting | {"question": "free", "tenant": "shop"}).json()
    service = before_and_after(rules=BANK)

    def outcome(decision_id):
        return service.http.get(f"/v1/decisions/{decision_id}").json()["outcome"]

    until(lambda: outcome(key) is not None and outcome(other["decision_id"]) is not None)
    assert (outcome(key)["status"], outcome(key)["stop_reason"]) == ("failed", "not_permitted")
    assert outcome(other["decision_id"])["status"] == "answered"
    assert not any("BANKTEXT" in json.dumps(request.body) for request in models.requests)
    assert service.http.get("/v1/status").json()["arms"]["us"]["state"] == "closed"


def test_a_tool_loop_leaves_an_arm_that_a_new_rule_forbids(before_and_after, models):
    """The results of tools go to a permitted arm: the arm that called them is not asked, and nothing is refused."""
    service = before_and_after(rules=[{"when": {"agent": "subagent"}, "arms": ["us"]}])
    headers = {"x-ragbandit-agent": "helper"}
    messages = [{"role": "user", "content": "LOOPTEXT?"}]
    body = {"model": "auto", "messages": messages, "tools": TOOLS}
    first = service.http.post("/v1/chat/completions", json=body, headers=headers).json()
    messages += [first["choices"][0]["message"], {"role": "tool", "tool_call_id": "call_1", "content": "found"}]
    service = before_and_after(rules=[{"when": {"agent": "subagent"}, "arms": ["eu"]}])
    replies = []
    work = lambda: replies.append(service.http.post("/v1/chat/completions", json=body, headers=headers))  # noqa: E731
    assert asked_models(models, work) == ["eu"]
    assert replies[0].status_code == 200, replies[0].text


def test_a_failover_obeys_the_rules_of_now(make_world):
    """The arms that may answer instead are those of the rules of now, not those of the decision, and neither are those
    that an earlier failure has left.
    """
    region = {"region": {"type": "category", "values": ["eu", "us"], "header": "X-Region", "proxy": True}}
    server = {"trusted_proxies": ["10.0.0.0/8"]}
    world = make_world(context=region, server=server)
    names = list(world.settings.arms)
    later = world.settings.model_validate(
        {"context": region, "server": server, "rules": [{"when": {"context.region": "eu"}, "arms": names[:2]}]}
    )
    found = {"conversation": NO_CONVERSATION, "worker_arms": world.settings.worker_arms, "passing": {}, "attempts": 2}
    found["expected"] = ExpectedDollars()
    left = {"failover": {"first": "d", "attempt": 2, "arm": names[0], "reason": "http_500", "left": names[1:]}}
    for request in ({}, left):
        for context, allowed in (({"region": "eu"}, names[:2]), ({"region": "us"}, names), ({}, [])):
            decision = world.router.route(Query(text="who?", context=context, **records(**request)))
            others = replacement_arms(decision, **found, rules=later.rule_book)
            possible = left["failover"]["left"] if request else [arm for arm in names if arm != decision.arm]
            assert set(others) == set(possible) & set(allowed), (request, context)
