"""What a process and its store have of a client's conversation after its answer, and after its erasure."""

import gc
import json

import httpx
import pytest
from sqlalchemy import select

from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.router.storage.sql.tables import metadata
from ragbandit.shared.types.encodings import Encoding
from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.support.additions import needs
from tests.support.waiting import until

SECRET = "Zygmunt-Przybylski"
USER = {"role": "user", "content": f"Who is {SECRET}?"}
CHAT = {"model": "auto", "messages": [{"role": "system", "content": f"You are {SECRET}."}, USER]}
#: door -> (path, body)
DOORS = {
    "chat": ("/v1/chat/completions", CHAT),
    "Messages": ("/v1/messages", {"model": "auto", "max_tokens": 9, "messages": [USER], "system": f"Be {SECRET}."}),
    "Responses": ("/v1/responses", {"model": "auto", "input": [USER], "instructions": f"Be {SECRET}."}),
}


@pytest.fixture
def serve(serve):
    """A function that starts a service with these settings, whose arms ask a scripted server."""
    with ScriptedServer(lambda _: Reply(text="Nobody.")) as server:

        def start(**more):
            generator = {"name": "openai", "model": "m", "openai": {"base_url": server.url}}
            arms = {"small": {"class": "model"}, "large": {"class": "model", "effort": "high"}}
            return serve(inline=True, **{"generator": generator, "arms": arms, **more})

        yield start


def held():
    """The texts with SECRET that objects of this process refer to, except those of these tests and of the server."""
    gc.collect()
    own = [USER, CHAT, globals()]
    own += [part for _, body in DOORS.values() for part in (body, *body.get("messages", ()))]
    texts = []
    for owner in gc.get_objects():
        if isinstance(owner, Encoding) and owner.has_bytes(SECRET.encode()):
            texts.append("an Encoding")
        if any(owner is one for one in own) or type(owner).__name__ == "_Exchange":
            continue
        texts += [f"{type(owner).__name__}: {one[:60]!r}" for one in gc.get_referents(owner) if _has_secret(one)]
    return texts


def _has_secret(one):
    return (type(one) is bytes and SECRET.encode() in one) or (type(one) is str and f" {SECRET}" in one)


def rows(service):
    with service.router.store.database.read() as connection:
        return json.dumps([[str(row) for row in connection.execute(select(table))] for table in metadata.sorted_tables])


@pytest.mark.parametrize(
    "door",
    [
        "chat",
        *(pytest.param(name, marks=needs(of)) for name, of in (("Messages", "anthropic"), ("Responses", "responses"))),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_no_conversation_stays(serve, door, stream):
    """When the answer has come, no object of the process has a text of the conversation, and no row has after its
    erasure.
    """
    service, (path, body) = serve(), DOORS[door]
    reply = httpx.post(f"{service.url}{path}", json=body | {"stream": stream}, timeout=30)
    assert (reply.status_code, "Nobody." in reply.text) == (200, True), reply.text
    assert SECRET in rows(service)
    del reply
    until(lambda: not held())
    erase(service.router.store.database, Selection(tenant="default"), features=True, actor="cli:me", now=9.0)
    assert SECRET not in rows(service)


def test_nothing_of_a_refused_chat_stays(serve):
    """With `log.text: none` a chat is refused, and neither a row nor an object of the process has its texts."""
    arms = {name: {"run_by": "caller"} for name in ("small", "large")}
    service = serve(log={"text": "none"}, arms=arms)
    reply = httpx.post(f"{service.url}/v1/chat/completions", json=CHAT, timeout=30)
    assert reply.status_code >= 400
    del reply
    until(lambda: not held())
    assert SECRET not in rows(service)
