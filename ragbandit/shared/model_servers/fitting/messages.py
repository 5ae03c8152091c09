"""Requests for Anthropic's Messages as its servers take them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ragbandit.shared.model_servers.fitting.call_order import NO_RESULT
from ragbandit.shared.model_servers.fitting.contents import BLANK, is_blank, media_type, without_blank_end
from ragbandit.shared.model_servers.fitting.fitted import Fitted
from ragbandit.shared.model_servers.fitting.kinds import Takes
from ragbandit.shared.model_servers.fitting.naming import fit_block_names
from ragbandit.shared.model_servers.fitting.roles import BEGINNING
from ragbandit.shared.model_servers.fitting.schemas import fit_block_schemas
from ragbandit.shared.model_servers.message_parts import listed, object_in, words_of

_RESULT: Final = "tool_result"


def fit_messages(body: Mapping[str, Any], *, takes: Takes, fitted: Fitted) -> dict[str, Any]:
    """The body of a request for Messages as this server takes it. The given body stays as it is, and messages that
    nothing changes are the same objects.
    """
    whole = dict(body)
    fit_block_names(whole, takes=takes, fitted=fitted)
    for name, fit in (("messages.order", _ordered), ("messages.content", _filled)):
        messages = fit(whole["messages"])
        if messages != whole["messages"]:
            whole["messages"] = messages
            fitted.changed.add(name)
    if "system" in whole:
        _fit_system(whole, fitted=fitted)
    if not whole["messages"] or whole["messages"][0].get("role") == "assistant":
        _begin(whole, fitted=fitted)
    fit_block_schemas(whole, takes=takes, fitted=fitted)
    return whole


def _fit_system(body: dict[str, Any], *, fitted: Fitted) -> None:
    system = body["system"]
    kept = [part for part in system if not is_blank(part)] if isinstance(system, list) else system
    if is_blank(kept) or kept in (None, []):
        del body["system"]
    elif kept != system:
        body["system"] = kept
    if body.get("system") != system and system not in (None, [], ""):
        fitted.changed.add("system")


def _begin(body: dict[str, Any], *, fitted: Fitted) -> None:
    """Begin with a user's message: with the system's text if there are no messages at all."""
    content: Any = BEGINNING
    if not body["messages"]:
        content = body.pop("system", BLANK)
    body["messages"] = [{"role": "user", "content": content}, *body["messages"]]
    fitted.changed.add("messages.order")


def _filled(messages: Sequence[Any]) -> list[Any]:
    """The messages without blank texts, with types of images as their bytes have them."""
    filled, last = list[Any](), len(messages) - 1
    for at, message in enumerate(messages):
        sent, is_answer = message.get("content"), message.get("role") == "assistant"
        content = sent
        if isinstance(sent, list):
            content = [_block(block) for block in sent if not is_blank(block)]
        elif is_blank(sent):
            content = ""
        if is_answer and at == last:
            content = without_blank_end(content)
        if content in ("", []):
            if is_answer:
                continue
            content = BLANK
        filled.append(message if content == sent else {**message, "content": content})
    return filled


def _block(block: Any) -> Any:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == _RESULT and isinstance(block.get("content"), str | list):
        content = block["content"]
        if is_blank(content):
            content = ""
        elif isinstance(content, list):
            content = [_block(part) for part in content if not is_blank(part)]
        return block if content == block["content"] else {**block, "content": content}
    source = object_in(block, "source") if kind == "image" else {}
    if source.get("type") != "base64":
        return block
    media = media_type(words_of(source.get("media_type")), data=words_of(source.get("data")))
    return block if media == source.get("media_type") else {**block, "source": {**source, "media_type": media}}


def _ordered(messages: Sequence[Any]) -> list[Any]:
    """The messages with the results of calls at the beginning of the turn that follows the calls."""
    if not any(block.get("type") == _RESULT or _calls([block]) for one in messages for block in _blocks(one)):
        return list(messages)
    placed, rest = list[Any](), list(messages)
    while rest:
        message = rest.pop(0)
        if message.get("role") != "assistant":
            placed.append(_without_strays(message))
            continue
        calls, parts = _calls(_blocks(message)), [message]
        while rest and rest[0].get("role") == "assistant":
            parts.append(rest.pop(0))
            calls += _calls(_blocks(parts[-1]))
        placed += parts
        if calls:
            placed += _answered(calls, rest=rest)
    return placed


def _answered(calls: Sequence[str], *, rest: list[Any]) -> list[Any]:
    """Take the results of calls out of the messages that follow, and make one turn of them, with the next user's."""
    follows = bool(rest) and rest[0].get("role") == "user"
    own = _results(rest[0]) if follows else {}
    blocks = _blocks(rest[0]) if follows else []
    begin = [block for block in blocks[: len(calls)] if block.get("type") == _RESULT]
    if set(own) == set(calls) and len(begin) == len(calls):
        return [rest.pop(0)]
    found = dict[str, Any]()
    for at, message in enumerate(rest):
        if any(key in _calls(_blocks(message)) for key in calls):
            break  # an id is used again
        if results := _results(message):
            found |= {key: block for key, block in results.items() if key in calls and key not in found}
            content = [block for block in _blocks(message) if block not in found.values()]
            rest[at] = {**message, "content": content}
    answers = [found.get(key) or {"type": _RESULT, "tool_use_id": key, "content": NO_RESULT} for key in calls]
    turn: dict[str, Any] = {"role": "user", "content": answers}
    if follows:
        turn = _without_strays({**rest.pop(0)})
        turn["content"] = [*answers, *_blocks(turn)]
    rest[:] = [message for message in rest if message.get("content") != []]
    return [turn]


def _without_strays(message: Any) -> Any:
    """A user's message with results of calls that are gone as texts."""
    if not _results(message):
        return message
    return {
        **message,
        "content": [_stray(block) if block.get("type") == _RESULT else block for block in _blocks(message)],
    }


def _stray(block: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "text", "text": f"Result of a tool:\n{words_of(block.get('content'))}"}


def _blocks(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    return listed(content) if isinstance(content, list) else [{"type": "text", "text": words_of(content)}]


def _calls(blocks: Sequence[Any]) -> list[str]:
    return [words_of(block.get("id")) for block in blocks if block.get("type") == "tool_use"]


def _results(message: Mapping[str, Any]) -> dict[str, Any]:
    """Id of a call -> its result in a message."""
    return {words_of(block.get("tool_use_id")): block for block in _blocks(message) if block.get("type") == _RESULT}
