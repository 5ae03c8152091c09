"""Replies of model servers, made of their values and read."""

import json

from ragbandit.shared.dialects.chat.message_parts import MessageParts
from ragbandit.shared.dialects.chat.replies import ModelReply
from ragbandit.shared.model_servers.event_reader import DONE


def read(*values, done=True, **more):
    """The reply of these values; its deltas together are its message, as a client that reads along sees it."""
    reply, sent = ModelReply(**more), MessageParts()
    for value in values:
        reply.take(value)
        sent.add(json.loads(json.dumps(reply.delta, allow_nan=False)))
    if done:
        reply.take(DONE)
    reply.end()
    sent.add(sent.rest(reply.message.whole))
    assert sent.whole == reply.message.whole
    return reply


def chunk(delta=None, finish=None, **more):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]}


def whole(message, finish="stop", **more):
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish, **more}]}


def piece(arguments=None, *, name=None, **more):
    return chunk({"tool_calls": [{"function": {"name": name, "arguments": arguments}, **more}]})


def calls_of(reply):
    return [
        (call["id"], call["type"], call["function"]["name"], call["function"]["arguments"])
        for call in reply.message.whole.get("tool_calls", [])
    ]
