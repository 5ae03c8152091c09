"""How often a long conversation is written and hashed, from the body of its request to the body for a server."""

import hashlib
import json

import pytest

from ragbandit.router.api.openai import chats, tool_loops
from ragbandit.router.storage.jobs import answers
from ragbandit.router.storage.rows import conversion
from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.shared.texts import json_values
from ragbandit.shared.types import Conversation, encodings
from ragbandit.strategies.base import Prompt, Request
from ragbandit.strategies.generators.chat_generator import ChatGenerator

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}


def long_chat():
    messages = [{"role": "user", "content": f"{number} {'what is it? ' * 500}"} for number in range(20)]
    return {"messages": messages, "tools": [TOOL], "temperature": 0.5}


@pytest.fixture
def counted(monkeypatch):
    """Numbers of bytes that were written as JSON, and that were hashed."""
    written, hashed = [], []

    def counting(function, sizes, *, of):
        def count(*given):
            result = function(*given)
            sizes.append(len(of(given, result)))
            return result

        return count

    fast = counting(json_values.encoder(), written, of=lambda _, result: result)
    monkeypatch.setattr(json_values, "encoder", lambda: fast)
    slow = counting(json.JSONEncoder.encode, written, of=lambda _, result: result)
    monkeypatch.setattr(json.JSONEncoder, "encode", slow)
    canonical = counting(conversion.canonical, written, of=lambda _, result: result)
    for module in (conversion, answers):
        monkeypatch.setattr(module, "canonical", canonical)
    monkeypatch.setattr(encodings, "_digest", counting(encodings._digest, hashed, of=lambda given, _: given[0]))
    monkeypatch.setattr(hashlib, "sha256", counting(hashlib.sha256, hashed, of=lambda given, _: b"".join(given)))
    return written, hashed


def passed_on(sent):
    """The body for a server, of the body of a request."""
    chat = chats.read_chat(sent, passed=True)
    tool_loops.hash_conversation(chat.fields["messages"], earlier_hash="a caller", encoding=chat.encoding)
    conversation = Conversation(fields=chat.fields, encoding=chat.encoding)
    assert len(answers._conversation_json(conversation)) > 100_000
    generator = ChatGenerator("gpt-4o", options=OpenAiOptions(base_url="http://127.0.0.1:9/v1", kind="openai"))
    request = Request(prompt=Prompt(instructions="", body=""), max_tokens=1, conversation=conversation)
    fields, *_ = generator.chat_fields(request, sent=conversation, streams=False)
    return conversation.encoding.body(fields)


def test_a_conversation_is_written_and_hashed_twice(counted):
    """Its JSON is written once for all that needs it, and once with sorted names for the stored hash; it is hashed for
    that and for its digests. A message that a process has met before is not hashed again for its place in the chat.
    """
    size = len(passed_on(long_chat()))
    for sizes in counted:
        sizes.clear()
    assert len(passed_on(long_chat())) == size
    written, hashed = map(sum, counted)
    assert size < written < 2.1 * size
    assert size < hashed < 2.1 * size
