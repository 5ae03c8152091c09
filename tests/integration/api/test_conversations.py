"""HTTP: questions with what was said before them."""

import time

import pytest

from ragbandit.router.storage.access.spending import Spender, read_spending
from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.support.additions import needs

ASKED, ALONE = "And when was he born?", "When was Bram Stoker born?"
SAID = [{"role": "user", "content": "Who wrote Dracula?"}, {"role": "assistant", "content": "Bram Stoker."}]
BODY = {"question": ASKED, "messages": SAID, "session_id": "chat-17"}
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def model(monkeypatch):
    """A server that rewrites every question in one way, and its settings."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with ScriptedServer({"": ALONE}) as server:
        yield server


def rewritten_by(server, **rewrite):
    generator = {"name": "openai", "model": "small", "openai": {"base_url": server.url}}
    return {"rewrite": {"generator": generator, "seconds": 20.0, **rewrite}}


def test_a_conversation_is_routed_by_its_rewrite(serve, model):
    """The reply has the question that was decided on; the record has the user's words, the turns and the session."""
    http = serve(conversation=rewritten_by(model)).http
    reply = http.post("/v1/route", json=BODY).json()
    assert reply["question"] == ALONE
    record = http.get(f"/v1/decisions/{reply['decision_id']}").json()
    assert (record["question"], record["asked"], record["session_id"]) == (ALONE, ASKED, "chat-17")
    assert record["messages"] == SAID
    assert record["request"]["rewrite"]["by"] == "small"


def test_a_batch_rewrites_its_items_at_once(serve):
    """Each item is rewritten and refused for itself; those without messages are as they were."""
    replies = {"Who wrote Dracula": ALONE, "": Reply(status=400)}
    with ScriptedServer(replies) as server:
        http = serve(conversation=rewritten_by(server)).http
        items = [
            BODY,
            {"question": "Who filmed it?"},
            {"question": "Why?", "messages": [{"role": "user", "content": "It is broken."}]},
            {"question": " ", "messages": SAID},
            {**BODY, "session_id": ""},
        ]
        reply = http.post("/v1/route/batch", json={"items": items}).json()["items"]
    assert [item.get("question") for item in reply[:3]] == [ALONE, None, "Why?"]
    assert [item["error"]["field"] for item in reply[3:]] == ["question", "session_id"]


@needs("responses")
def test_a_rewrite_is_paid_from_the_budget(serve, monkeypatch):
    """What rewrites cost is spent by their tenant, and once the budget is spent no door asks the model again."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with ScriptedServer({"": ALONE}) as server:
        rewrite = rewritten_by(server)
        rewrite["rewrite"]["generator"]["token_prices"] = {"input": 1000.0, "output": 1000.0}
        tenants = {"default": {"dollars_per_day": 0.01, "budget_stop": True}}
        service = serve(conversation=rewrite, tenants=tenants, reward={"cost": {"dollars": 1.0}})
        first = service.http.post("/v1/route", json={**BODY, "arms": None})
        assert first.status_code == 200, first.text
        record = service.http.get(f"/v1/decisions/{first.json()['decision_id']}").json()
        cost = record["request"]["rewrite"]["dollars"]
        assert cost > 0.01
        with service.router.database.read() as connection:
            spender = Spender("tenant", "default")
            assert read_spending(connection, [spender], now=time.time())[spender].month == pytest.approx(cost, rel=1e-6)
        service.app.state.budgets._cached.clear()
        chat = {"model": "auto", "messages": [*SAID, {"role": "user", "content": ASKED}]}
        for path, body in (
            ("/v1/route", BODY),
            ("/v1/answer", BODY),
            ("/v1/chat/completions", chat),
            ("/v1/responses", {"model": "auto", "input": chat["messages"]}),
        ):
            assert service.http.post(path, json=body).status_code == 429, path
        (item,) = service.http.post("/v1/route/batch", json={"items": [BODY]}).json()["items"]
        assert item["error"]["code"] == "TOO_MANY_REQUESTS"
        assert len(server.requests) == 1
