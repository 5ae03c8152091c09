"""Conversations without a session id: which requests count as turns of one conversation."""

import time

import httpx
import pytest

from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.rows.conversion import query_hash
from ragbandit.shared.types import DERIVED, Query, StickyTurn

MODEL = {"name": "openai", "model": "m", "context_tokens": 4000, "openai": {"base_url": "http://127.0.0.1:9/v1"}}
SYSTEM = {"role": "system", "content": "Be brief."}
FIRST = [SYSTEM, {"role": "user", "content": "When is high tide?"}]
#: the same beginning as another client writes it, and a second turn
SECOND = [
    {"role": "developer", "content": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
    {"role": "user", "content": [{"type": "text", "text": "When is high tide?"}]},
    {"role": "assistant", "content": "At noon."},
    {"role": "user", "content": "And low tide?"},
]
OTHER = [SYSTEM, {"role": "user", "content": "When is low tide?"}]
TOOLS = [{"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture
def stored(serve, answering):
    """A function: the decision that a chat, or a response with `input`, stores. keys: number of API keys."""

    def start(*, keys=1, **conversation):
        service = serve(
            arms={name: {"class": "model"} for name in ("small", "large")},
            generator=MODEL,
            conversation={"rewrite": {"by": "off"}, **conversation},
        )
        answering(service, answer="At noon.")
        store = KeyStore(service.router.database)
        made = [
            store.create(name="test", role="app", now=time.time(), actor="cli:test", scopes={}) for _ in range(keys)
        ]
        service.app.state.gate.ring.known = None

        def post(messages=None, *, key=0, headers=(), **body):
            path, sent = "/v1/responses", {"model": "auto", **body}
            if messages is not None:
                path, sent = "/v1/chat/completions", sent | {"messages": messages}
            headers = {"authorization": f"Bearer {made[key].text}", **dict(headers)}
            reply = httpx.post(service.url + path, json=sent, headers=headers, timeout=60)
            assert reply.status_code == 200, reply.text
            return service.router.decision(reply.json()["id"].removeprefix("chatcmpl-")).decision

        return post

    return start


def test_turns_of_one_conversation_share_a_derived_session(stored):
    """Tools, system text, first question, API key and `prompt_cache_key` identify a conversation without an id."""
    post = stored(sticky_prefix=True, keys=2)
    first = post(FIRST).query.session
    assert first.startswith(DERIVED)
    assert post(SECOND).query.session == first
    assert post(input=SECOND, store=False).query.session == first
    assert post(input=SECOND).query.session == first
    named = post(FIRST, prompt_cache_key="chat-1").query.session
    assert post(OTHER, prompt_cache_key="chat-1").query.session == named
    assert post(FIRST, prompt_cache_key=17).query.session == first
    others = [post(OTHER), post(FIRST, key=1), post(FIRST, tools=TOOLS), post(FIRST, key=1, prompt_cache_key="chat-1")]
    assert len({first, named, *(decision.query.session for decision in others)}) == 6
    assert post([SYSTEM, {"role": "assistant", "content": "Ask me."}]).query.session is None


def test_an_id_that_the_caller_sends_counts_first(stored):
    """A header or a chain of responses names the session as before, and a derived one keeps no drawn arm."""
    post = stored(sticky_prefix=True, sticky_turns=3)
    assert post(SECOND, headers={"x-ragbandit-session-id": "mine"}).query.session == "mine"
    begun = post(input=FIRST)
    assert begun.query.session == begun.id
    assert post(input="And low tide?", previous_response_id=begun.id).query.session == begun.id
    assert [StickyTurn.key in post(FIRST).facts for _ in range(3)] == [False] * 3


def test_nothing_is_derived_without_sticky_prefixes(stored):
    """Without `sticky_prefix` a chat without an id has no session, and its hash is the same either way."""
    assert stored()(FIRST, prompt_cache_key="chat-1").query.session is None
    query = Query(text="When is high tide?")
    derived = Query(text="When is high tide?", session=f"{DERIVED}4711")
    assert query_hash(derived, run_by="worker") == query_hash(query, run_by="worker")
