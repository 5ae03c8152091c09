"""HTTP: /v1/route replies as FastAPI would, and /v1/route/batch decides each question for itself."""

import json

import pytest

from tests.support.servers.http_service import QUESTION, refused

BODIES = {
    "plain": {"question": QUESTION},
    "everything": {
        "question": QUESTION,
        "context": {"a": 1, "b": None, "c": 0.5, "d": True, "e": "x"},
        "arms": ["single_step", "multi_step"],
        "budget": {"rounds": 2, "seconds": 1.5},
        "tenant": "acme",
    },
    "a conversation": {
        "question": QUESTION,
        "session_id": "chat 17",
        "sticky_turns": 2,
        "messages": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": ""}],
    },
    "a role too many": {"question": QUESTION, "messages": [{"role": "tool", "content": "42"}]},
    "a message of another type": {"question": QUESTION, "messages": ["Hi."]},
    "a message with NUL": {"question": QUESTION, "messages": [{"role": "user", "content": "\x00"}]},
    "no question in a conversation": {"question": " ", "messages": [{"role": "user", "content": "Hi."}]},
    "a session too long": {"question": QUESTION, "session_id": "s" * 129},
    "a blank session": {"question": QUESTION, "session_id": " "},
    "turns below 0": {"question": QUESTION, "session_id": "s", "sticky_turns": -1},
    "empty budget": {"question": QUESTION, "budget": {}},
    "no question": {},
    "question of another type": {"question": 3},
    "empty question": {"question": " "},
    "a field too many": {"question": QUESTION, "wait_s": 3},
    "unknown arm": {"question": QUESTION, "arms": ["nobody"]},
    "context too deep": {"question": QUESTION, "context": {"a": {"b": 1}}},
    "cap of another type": {"question": QUESTION, "budget": {"rounds": 1.5}},
    "cap below 1": {"question": QUESTION, "budget": {"rounds": 0}},
    "a list": [1, 2],
    "text": "question",
    "null": None,
}
RAW = {
    **{name: json.dumps(body).encode() for name, body in BODIES.items()},
    "nothing": b"",
    "no JSON": b"{",
    "not a number": b'{"question": "who?", "context": {"a": NaN}}',
    "too large for a float": b'{"question": "who?", "budget": {"seconds": 1e999}}',
    "half a surrogate": b'{"question": "\\ud800"}',
    "no UTF-8": b'{"question": "\xff"}',
    "UTF-16": json.dumps({"question": QUESTION}).encode("utf-16"),
    "a key twice": b'{"question": "who?", "question": "where?"}',
    "too deep": b'{"question": ' + b"[" * 5000 + b"]" * 5000 + b"}",
}


@pytest.mark.parametrize("key", [None, "ticket-1", "no id"])
@pytest.mark.parametrize("raw", RAW.values(), ids=RAW.keys())
def test_plain_requests_are_answered_as_by_fastapi(shared, raw, key):
    """Whatever is sent to /v1/route, the reply is the one of FastAPI's own way: status, headers and body."""
    replies = []
    # A vendor's JSON type is read by FastAPI, and never by the route's own handler.
    for number, kind in enumerate(("application/json", "application/x+json")):
        named = {} if key is None else {"idempotency-key": key if " " in key else f"{key}-{number}-{hash(raw)}"}
        response = shared.http.post("/v1/route", content=raw, headers={"content-type": kind, **named})
        reply = response.json()
        if response.status_code == 200:
            assert response.headers["x-ragbandit-decision-id"] == reply["decision_id"]
            # A turn that stays on the arm of an earlier one is offered only this arm.
            assert b"sticky_turns" in raw or set(reply["pmf"]) == {"single_step", "multi_step", "no_retrieval"} - (
                {"no_retrieval"} if b"arms" in raw else set()
            )
            reply = sorted(reply)
        names = sorted(name for name in response.headers if name != "date")
        replies.append((response.status_code, names, reply))
    assert replies[0] == replies[1]


def test_batch(http, service):
    """A batch gives each question its own decision or error, in order, whatever its neighbours are."""
    items = [
        {"question": QUESTION, "decision_id": "d1", "arms": ["single_step"]},
        {"question": " "},
        {"question": QUESTION, "decision_id": "d1", "arms": ["single_step"]},
        {"question": "Who wrote Emma?", "decision_id": "d1"},
        {"question": QUESTION, "surplus": 1},
        {"question": QUESTION, "tenant": "acme", "context": {"a": 1}, "budget": {"rounds": 2}},
        {"question": QUESTION, "arms": ["nobody"]},
    ]
    response = http.post("/v1/route/batch", json={"items": items})
    assert response.status_code == 200
    replies = response.json()["items"]
    codes = [reply["error"]["code"] if "error" in reply else "decided" for reply in replies]
    wrong = "INVALID_INPUT"
    assert codes == ["decided", wrong, "decided", "CONFLICT", wrong, "decided", wrong]
    assert [replies[at]["error"]["field"] for at in (1, 3, 4, 6)] == ["question", "decision_id", "surplus", "arms"]
    assert replies[0]["decision_id"] == replies[2]["decision_id"] == "d1"
    assert set(replies[0]) == set(http.post("/v1/route", json=items[0]).json())
    kept = service.router.decision(replies[5]["decision_id"]).decision
    assert (kept.query.tenant, kept.query.context, kept.query.budget.rounds) == ("acme", {"a": 1}, 2)
    assert replies[5]["pmf"] == dict(zip(kept.arms, kept.pmf, strict=True))
    again = http.post("/v1/route/batch", json={"items": items[:1]}).json()["items"]
    assert again[0]["decision_id"] == "d1"


@pytest.mark.parametrize(
    ("body", "field"),
    [({}, "items"), ({"items": []}, "items"), ({"items": [{}] * 513}, "items"), ({"items": [3]}, "items.0")],
)
def test_bad_batch(unmoved, body, field):
    """A batch that is not a list, empty or too long is refused as a whole."""
    refused(unmoved.post("/v1/route/batch", json=body), 422, "INVALID_INPUT", field=field)
