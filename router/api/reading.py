"""Reads the bodies of requests: small ones on the event loop, large ones one at a time in the reading thread."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from fastapi import Request

from ragbandit.router.api.request_state import request_state
from ragbandit.shared.errors import InvalidInput, NotReady
from ragbandit.shared.reading.input_counts import BODY, InputCounts
from ragbandit.shared.reading.thread import LARGE, READING, ReadingStuck
from ragbandit.shared.texts.json_values import json_value

_Given = ParamSpec("_Given")
_Value = TypeVar("_Value")
_Owner = TypeVar("_Owner")


def reads_body(
    read: Callable[Concatenate[_Owner, Request, _Given], _Value],
) -> Callable[Concatenate[_Owner, Request, _Given], Coroutine[Any, Any, _Value]]:
    """Decorator of a blocking function that reads a request's body. Callers await it; a thread reads large bodies."""

    @wraps(read)
    async def awaited(owner: _Owner, request: Request, /, *given: _Given.args, **more: _Given.kwargs) -> _Value:
        size = len(await request.body())
        if size < LARGE:
            return read(owner, request, *given, **more)
        # A parsed body takes much memory, so further reads of it come before bodies that are not parsed yet.
        state = request_state(request.scope)
        rank, state.is_parsed = 0 if state.is_parsed else size, True
        try:
            return await READING.read(rank, read, owner, request, *given, **more)
        except ReadingStuck as error:
            raise NotReady(f"the body was not read: {error}", remedy="send a smaller body") from error

    return awaited


def body_value(body: bytes) -> Any:
    """The value of a JSON body. Raises ValueError and RecursionError, and InvalidInput beyond the caps of BODY."""
    if len(body) < LARGE:
        return json_value(body)
    counts = InputCounts(BODY, refused=_too_large)
    # A body has fewer objects, items and values than bytes, so a short one need not be counted as text.
    items = counts.count_json(body) if len(body) > BODY["values"].most else 0
    value = json_value(body)
    try:
        counts.count_members(value, items=items)
    except InvalidInput as error:
        del value  # else the traceback's frames keep the refused body in memory, and several add up
        raise error.with_traceback(None) from None
    return value


def _too_large(words: str) -> InvalidInput:
    remedy = "send fewer messages, parts, tools or parameters"
    return InvalidInput(f"the body has {words}", field="body", remedy=remedy)
