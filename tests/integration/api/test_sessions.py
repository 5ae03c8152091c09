"""Ids of sessions: every id that can begin a task ends it, and no two ids are one."""

from urllib.parse import quote

import httpx
import pytest
from hypothesis import example, given, settings, strategies as st

from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Query
from tests.support.additions import marked, needs
from tests.support.servers.faulty_models import generator
from tests.support.servers.http_service import refused

#: headers with the id of a conversation, of an agent in it, and of a message
SESSION, AGENT, MESSAGE = "x-ragbandit-session-id", "x-claude-code-agent-id", "x-openwebui-message-id"
CHAT = {"model": "auto", "messages": [{"role": "user", "content": "q?"}]}
ids = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=128)


@pytest.fixture(scope="module")
def service(serve_module):
    arms = {"small": {"class": "model"}, "large": {"class": "model"}}
    tree = {"arms": arms, "generator": generator("http://127.0.0.1:9/v1", "m"), "conversation": {"unit": "task"}}
    return serve_module(**tree, server={"model_aliases": {"*": "auto"}})


def begun(service, session=None, **headers):
    """The decision of a question of this session."""
    body = {"question": "q?"} | ({} if session is None else {"session_id": session})
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    reply = service.http.post("/v1/route", json=body, headers=sent)
    assert reply.status_code == 200, reply.text
    return service.router.decision(reply.json()["decision_id"]).decision


def ended(service, session):
    """The reply to a request that ends the tasks of a session."""
    return service.http.post(f"/v1/sessions/{quote(session, safe='')}/end", json={})


@settings(max_examples=40)
@given(session=ids.filter(lambda text: text.strip() and text not in (".", "..")))
@example(session="a//b")
@example(session="a/b/")
@example(session="/a/b")
@example(session="/")
@example(session="x/end")
@example(session="x/end/")
@example(session="/end/end//end")
@example(session="%41")
@example(session="%2F")
@example(session="...")
@example(session="a/../b")
@example(session="q?x#y")
@example(session="t\u00efcket")
@example(session="two\nlines\n")
def test_an_id_that_begins_a_task_ends_it(service, session):
    """The id of a session may have any characters; encoded once, as a part of a path, it ends the session."""
    decision = begun(service, session)
    first = decision.turn_of or decision.id
    assert decision.query.session == session
    reply = ended(service, session)
    assert (reply.status_code, reply.json().get("decision_id"), reply.json().get("ended")) == (200, first, 1)
    assert begun(service, session).turn_of is None
    assert ended(service, session).json()["ended"] == 1


def test_slashes_of_a_session_are_not_joined(service):
    """`a//b` is another session than `a/b`, however many slashes a client adds before and behind the path."""
    firsts = {session: begun(service, session) for session in ("s/b", "s//b", "s/b/")}
    for session, path in (("s//b", "/v1/sessions/s//b/end"), ("s/b/", "//v1//sessions/s/b//end//")):
        reply = httpx.post(httpx.URL(service.url).copy_with(raw_path=path.encode()), json={})
        assert (reply.json()["decision_id"], reply.json()["ended"]) == (firsts[session].id, 1)
    assert ended(service, "s/b").json() == {"decision_id": firsts["s/b"].id, "ended": 1, "feedback": None}
    assert ended(service, "nobody/here").status_code == 404


@needs("anthropic")
@pytest.mark.parametrize("session", [".", ".."])
def test_an_id_that_no_path_can_have_is_refused(service, session):
    """HTTP clients resolve these in paths, so no task begins with them, at any interface."""
    refused(service.http.post("/v1/route", json={"question": "q?", "session_id": session}), 422, "INVALID_INPUT")
    reply = service.http.post("/v1/route", json={"question": "q?"}, headers={SESSION: session})
    refused(reply, 422, "INVALID_INPUT", field=SESSION)
    user = '{"session_id": "' + session + '"}'
    for headers, metadata in (({SESSION: session}, {}), ({}, {"user_id": user})):
        reply = service.http.post("/v1/messages", json=CHAT | {"max_tokens": 9, "metadata": metadata}, headers=headers)
        assert reply.status_code == 400, reply.text
        assert (SESSION if headers else "metadata.user_id") in reply.text
    with pytest.raises(InvalidInput, match="URL"):
        service.router.route(Query(text="q?", session=session))


def test_ids_in_headers_are_utf_8(service):
    """A name in UTF-8 is the same session in a header, in a body and in a path; other bytes are read as Latin-1."""
    name = "Zo\u00eb \u4e2d\u6587"
    first = begun(service, x_ragbandit_session_id=name)
    assert first.query.session == name
    assert begun(service, name).turn_of == first.id
    agent = begun(service, x_ragbandit_session_id=name, x_claude_code_agent_id="\u00fc")
    assert (agent.turn_of, agent.query.sent.agent) == (None, "\u00fc")
    assert ended(service, name).json()["ended"] == 2
    reply = service.http.post("/v1/route", json={"question": "q?"}, headers=[(SESSION.encode(), b"Zo\xeb")])
    assert service.router.decision(reply.json()["decision_id"]).decision.query.session == "Zo\u00eb"


@pytest.mark.parametrize(
    ("name", "most"),
    [(SESSION, 128), ("x-openwebui-chat-id", 128), (AGENT, 128), ("x-ragbandit-agent", 128), (MESSAGE, 512)],
)
def test_long_ids_in_headers_are_refused(service, name, most):
    """An id above its cap is refused by name, since a part of it could be another id; at the cap it is stored whole."""
    longest = "L" * (most - 1) + "1"
    reply = service.http.post("/v1/route", json={"question": "q?"}, headers={name: f"{longest}2"})
    assert f"has {most + 1} characters" in refused(reply, 422, "INVALID_INPUT", field=name)["message"]
    reply = service.http.post("/v1/chat/completions", json=CHAT, headers={name: f"{longest}2"})
    assert (reply.status_code, name in reply.text) == (400, True)
    reply = service.http.post("/v1/route", json={"question": "q?"}, headers={name: longest})
    stored = service.router.decision(reply.json()["decision_id"]).decision.query
    assert name == MESSAGE or longest in (stored.session, stored.sent.agent)


@pytest.mark.parametrize(
    ("path", "more", "field"),
    marked(
        [
            ("/v1/chat/completions", {"user": "u" * 257}, "user"),
            ("/v1/chat/completions", {"safety_identifier": "u" * 257}, "safety_identifier"),
            ("/v1/chat/completions", {"model": "m" * 513}, "model"),
            ("/v1/messages", {"max_tokens": 9, "metadata": {"user_id": "u" * 257}}, "metadata.user_id"),
            ("/v1/messages", {"max_tokens": 9, "metadata": {"user_id": f"u_session_{'s' * 129}"}}, "metadata.user_id"),
        ]
    ),
)
def test_long_ids_in_bodies_of_chats_are_refused(service, path, more, field):
    """Ids of users, models and sessions in chats are not cut either."""
    counted = service.router.status().counters.decided
    reply = service.http.post(path, json=CHAT | more)
    assert reply.status_code == 400, reply.text
    assert field in reply.text
    assert "characters" in reply.text
    assert service.router.status().counters.decided == counted
