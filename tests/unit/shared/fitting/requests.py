"""Requests as a chat that changes its model has them, fitted for each kind of server."""

import copy

from ragbandit.shared.model_servers.fitting.chats import fit_chat
from ragbandit.shared.model_servers.fitting.kinds import server_features

#: vendor of the strict servers -> (kind of the server, name of a model)
VENDORS = {
    "openai": ("openai", "gpt-4o"),
    "mistral": ("mistral", "mistral-large"),
    "deepseek": ("deepseek", "deepseek-chat"),
    "gemini": ("gemini", "gemini-pro"),
    "bedrock": ("bedrock", "openai.gpt-oss"),
    "qwen": ("template", "Qwen3-8B"),
    "gemma": ("unknown", "gemma-2-9b-it"),
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"a": {}}}}}


def fitted_for(vendor, body, *, model=None):
    """Returns (the body that this vendor's server gets, what was changed)."""
    kind, name = VENDORS[vendor]
    takes, before = server_features(kind, model=model or name), copy.deepcopy(body)
    sent, fitted = fit_chat({"model": model or name, **body}, server=takes)
    assert body == before, "the given body was changed"
    return sent, fitted


def user(text="Hi"):
    return {"role": "user", "content": text}


def answer(text="Well."):
    return {"role": "assistant", "content": text}


def system(text="Be brief.", role="system"):
    return {"role": role, "content": text}


def called(*ids, name="weather", text=None, arguments='{"a": 1}'):
    function = {"name": name, "arguments": arguments}
    calls = [{"id": one, "type": "function", "function": function} for one in ids]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def result(key, content="cold"):
    return {"role": "tool", "tool_call_id": key, "content": content}


def chat(*messages, **fields):
    return {"messages": list(messages), "tools": [TOOL], **fields}
