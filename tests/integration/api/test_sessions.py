"""GET /v1/sessions: the decisions of a conversation, for those whose it is."""

import pytest


def routed(http, question, *, session="chat/17", **more):
    reply = http.post("/v1/route", json={"question": question, "session_id": session, **more})
    assert reply.status_code == 200, reply.text
    return reply.json()["decision_id"]


def test_the_turns_of_a_conversation_in_order(serve):
    """The newest decisions, the oldest of them first, with how they ended; another session's are not among them."""
    http = serve(conversation={"sticky_turns": 3}).http
    made = [routed(http, f"question {number}") for number in range(4)]
    routed(http, "another", session="chat-18")
    http.post("/v1/outcomes", json={"decision_id": made[0], "answer": "yes", "steps": 1})
    found = http.get("/v1/sessions/chat%2F17").json()
    assert (found["session_id"], found["tenant"], found["more"]) == ("chat/17", "default", False)
    assert [each["decision_id"] for each in found["decisions"]] == made
    assert [each["question"] for each in found["decisions"]] == [f"question {number}" for number in range(4)]
    assert [each["status"] for each in found["decisions"]] == ["answered", None, None, None]
    stays = [each["sticky"] for each in found["decisions"]]
    assert stays[0] is stays[3] is None
    assert stays[2] == {"first": made[0], "turn": 3, "turns": 3}
    assert len({each["arm"] for each in found["decisions"][:3]}) == 1


def test_a_long_conversation_is_cut(serve):
    """At most `limit`, the newest ones, and `more` says that there are others."""
    http = serve().http
    made = [routed(http, f"question {number}") for number in range(4)]
    found = http.get("/v1/sessions/chat/17", params={"limit": 2}).json()
    assert [each["decision_id"] for each in found["decisions"]] == made[2:]
    assert found["more"]
    assert not http.get("/v1/sessions/chat/17", params={"limit": 4}).json()["more"]


@pytest.mark.parametrize("params", [{"limit": 0}, {"limit": 201}, {"limit": "x"}, {"tenant": "a b"}, {"wait": 1}])
def test_what_is_refused(unmoved, params):
    """A limit out of range, a tenant that is none, and parameters that the endpoint does not have."""
    assert unmoved.get("/v1/sessions/s", params=params).status_code == 422


def test_an_unknown_conversation_is_not_found(serve):
    """A session without decisions is a 404; so is another tenant's."""
    http = serve().http
    routed(http, "who?", tenant="acme")
    assert http.get("/v1/sessions/nobody").status_code == 404
    assert http.get("/v1/sessions/chat/17").status_code == 404
    assert http.get("/v1/sessions/chat/17", params={"tenant": "acme"}).status_code == 200
    assert http.get(f"/v1/sessions/{'s' * 129}").status_code == 422
