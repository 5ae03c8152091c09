"""Requests for Anthropic's Messages in the form that its servers accept."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from ragbandit.additions.anthropic.fitting.blocks import fit_block_names, fit_block_schemas
from ragbandit.shared.model_servers.fitting.call_order import NO_RESULT, CallPositions, fit_order
from ragbandit.shared.model_servers.fitting.contents import BLANK, is_blank_part, media_type, without_blank_end
from ragbandit.shared.model_servers.fitting.fitted import RequestChanges
from ragbandit.shared.model_servers.fitting.free_text import fit_free_text
from ragbandit.shared.model_servers.fitting.kinds import ServerFeatures
from ragbandit.shared.model_servers.fitting.roles import BEGINNING
from ragbandit.shared.reading.fields import flat_text, object_in, objects_in

_RESULT: Final = "tool_result"
#: models that take only one of `temperature` and `top_p`
_ONE_SAMPLING: Final = re.compile(r"(opus|sonnet|haiku)-(4[-.][1-9]\b|[5-9]\b)")
#: (position of a message, id of a call) of each result that was moved to another turn
_Moved: TypeAlias = set[tuple[int, str]]


def fit_before_messages(body: Mapping[str, Any], *, server: ServerFeatures) -> tuple[dict[str, Any], RequestChanges]:
    """Returns (a chat completion that can become a request for Messages, the changes). Does not change `body`."""
    whole, fitted = dict(body), RequestChanges()
    fit_free_text(whole, server=server, changes=fitted)
    fit_order(whole, changes=fitted)
    return whole, fitted


def fit_messages(
    body: Mapping[str, Any], *, model: str, server: ServerFeatures, changes: RequestChanges
) -> dict[str, Any]:
    """Returns the body of a request for Messages in a form that this server accepts. Does not change `body`.

    Unchanged messages are the same objects.
    """
    whole = dict(body)
    fit_block_names(whole, server=server, changes=changes)
    for name, fit in (("messages.order", _order_results), ("messages.content", _fit_contents)):
        messages = fit(whole["messages"])
        if messages != whole["messages"]:
            whole["messages"] = messages
            changes.changed.add(name)
    _move_system(whole, changes=changes)
    if "system" in whole:
        _fit_system(whole, changes=changes)
    if not whole["messages"] or whole["messages"][0].get("role") == "assistant":
        _begin_with_user(whole, changes=changes)
    fit_block_schemas(whole, server=server, changes=changes)
    _fit_sampling(whole, model=model, changes=changes)
    return whole


def _fit_sampling(body: dict[str, Any], *, model: str, changes: RequestChanges) -> None:
    """Leave out parameters that are refused together with thinking, or with each other."""
    refused = set[str]()
    if object_in(body, "thinking").get("type") in ("enabled", "adaptive"):
        refused = {"top_k"} if body.get("temperature") in (None, 1) else {"top_k", "temperature"}
    if _ONE_SAMPLING.search(model.lower()) and body.get("temperature") is not None and "temperature" not in refused:
        refused.add("top_p")
    for name in refused & body.keys():
        del body[name]
        changes.changed.add(name)


def _move_system(body: dict[str, Any], *, changes: RequestChanges) -> None:
    """Move leading system messages into the field `system`; later ones keep their place. Roles `developer` become
    `system`.
    """
    messages = [one | {"role": "system"} if one.get("role") == "developer" else one for one in body["messages"]]
    first = next((at for at, message in enumerate(messages) if message.get("role") != "system"), len(messages))
    if messages != body["messages"]:
        changes.changed.add("messages.role")
    if first:
        lead = [block for message in messages[:first] for block in _blocks(message)]
        given = [
            block for block in [*_blocks({"content": body.get("system") or []}), *lead] if not is_blank_part(block)
        ]
        body["system"], messages = given, messages[first:]
        changes.changed.add("messages.order")
    body["messages"] = messages


def _fit_system(body: dict[str, Any], *, changes: RequestChanges) -> None:
    system = body["system"]
    kept = [part for part in system if not is_blank_part(part)] if isinstance(system, list) else system
    if is_blank_part(kept) or kept in (None, []):
        del body["system"]
    elif kept != system:
        body["system"] = kept
    if body.get("system") != system and system not in (None, [], ""):
        changes.changed.add("system")


def _begin_with_user(body: dict[str, Any], *, changes: RequestChanges) -> None:
    """Put a user's message first. Its text is the system's text if there are no other messages."""
    content: Any = BEGINNING
    if not body["messages"]:
        content = body.pop("system", BLANK)
    body["messages"] = [{"role": "user", "content": content}, *body["messages"]]
    changes.changed.add("messages.order")


def _fit_contents(messages: Sequence[Any]) -> list[Any]:
    """Leave out blank texts, and correct the media types of images by their bytes."""
    filled = list[Any]()
    for message in messages:
        content = sent = message.get("content")
        if isinstance(sent, list):
            content = [_fit_block(block) for block in sent if not is_blank_part(block)]
        elif is_blank_part(sent):
            content = ""
        if content in ("", []):
            if message.get("role") != "user":
                continue
            content = BLANK
        filled.append(message if content == sent else {**message, "content": content})
    return without_blank_end(filled)


def _fit_block(block: Any) -> Any:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == _RESULT and isinstance(block.get("content"), str | list):
        content = block["content"]
        if is_blank_part(content):
            content = ""
        elif isinstance(content, list):
            content = [_fit_block(part) for part in content if not is_blank_part(part)]
        return block if content == block["content"] else {**block, "content": content}
    source = object_in(block, "source") if kind == "image" else {}
    if source.get("type") != "base64":
        return block
    media = media_type(flat_text(source.get("media_type")), data=flat_text(source.get("data")))
    return block if media == source.get("media_type") else {**block, "source": {**source, "media_type": media}}


def _order_results(messages: Sequence[Any]) -> list[Any]:
    """Move results of calls to the beginning of the turn after the calls. A call without a result gets NO_RESULT."""
    contents = [_blocks(message) for message in messages]
    calls, results = list(map(_call_ids, contents)), list(map(_results_by_call, contents))
    if not (any(calls) or any(results)):
        return list(messages)
    places, placed, at = CallPositions(calls=calls, results=results), list[Any](), 0
    moved: _Moved = set()
    while at < len(messages):
        begin, at = at, _end_of_answer(messages, index=at)
        placed += messages[begin:at]
        turn, follows = list(messages[at : at + 1]), at < len(messages) and messages[at].get("role") == "user"
        asked = [key for place in range(begin, at) for key in calls[place]]
        if asked and follows and _is_answer(contents[at], asked):
            placed += turn
            at += 1
            continue
        taken = [(places.take_result(key, after=at - 1), key) for key in asked]
        moved |= {(place, key) for place, key in taken if place is not None}
        missing = {"type": _RESULT, "content": NO_RESULT}
        answers = [{**missing, "tool_use_id": key} if place is None else results[place][key] for place, key in taken]
        if turn:
            turn = _without_results(turn[0], contents[at], moved=moved, at=at)
        if follows:
            turn = _begin_with_results(turn, answers=answers)
        elif answers:
            turn = [{"role": "user", "content": answers}, *turn]
        placed += turn
        at += 1
    return placed


def _end_of_answer(messages: Sequence[Any], *, index: int) -> int:
    """Index of the first message after the assistant's messages from `index` on."""
    while index < len(messages) and messages[index].get("role") == "assistant":
        index += 1
    return index


def _begin_with_results(turn: Sequence[Any], *, answers: Sequence[Any]) -> list[Any]:
    """A turn of the user that begins with the results `answers`. turn: its message, or [] if no message is left."""
    if not answers:
        return list(turn)
    rest = [block for message in turn for block in _blocks(message)]
    more = turn[0] if turn else {"role": "user"}
    return [{**more, "content": [*answers, *rest]}]


def _is_answer(blocks: Sequence[Any], calls: Sequence[str]) -> bool:
    """Whether a turn begins with the results of these calls, and has no others."""
    begin = [block for block in blocks[: len(calls)] if block.get("type") == _RESULT]
    count = sum(block.get("type") == _RESULT for block in blocks)
    return len(begin) == len(calls) == count and _results_by_call(begin).keys() == set(calls)


def _without_results(message: Any, blocks: Sequence[Any], *, moved: _Moved, at: int) -> list[Any]:
    """Remove the moved results from a message, and turn results without a call into texts; [] if nothing is left."""
    results = _results_by_call(blocks)
    if not results:
        return [message]
    kept = list[Any]()
    for block in blocks:
        if block.get("type") != _RESULT:
            kept.append(block)
        elif (at, flat_text(block.get("tool_use_id"))) not in moved:  # the result has no call
            kept.append({"type": "text", "text": f"Result of a tool:\n{flat_text(block.get('content'))}"})
    return [{**message, "content": kept}] if kept else []


def _blocks(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    return objects_in(content) if isinstance(content, list) else [{"type": "text", "text": flat_text(content)}]


def _call_ids(blocks: Sequence[Any]) -> list[str]:
    return [flat_text(block.get("id")) for block in blocks if block.get("type") == "tool_use"]


def _results_by_call(blocks: Sequence[Any]) -> dict[str, Any]:
    """Id of a call -> its result."""
    return {flat_text(block.get("tool_use_id")): block for block in blocks if block.get("type") == _RESULT}
