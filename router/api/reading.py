"""Reads the bodies of requests: small ones on the event loop, large ones one at a time in a thread."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from fastapi import Request

from ragbandit.shared.errors import InvalidInput

_Given = ParamSpec("_Given")
_Value = TypeVar("_Value")

#: size from which a body is large, bytes
LARGE: Final = 32_768
#: most values of a body: objects, lists, members of objects, and texts in lists. Numbers in lists do not count, since
#: clients send texts for embeddings as lists of tokens
MAX_VALUES: Final = 200_000
_READER: Final = ThreadPoolExecutor(1, thread_name_prefix="read")


async def read_body(
    request: Request, read: Callable[_Given, _Value], *given: _Given.args, **more: _Given.kwargs
) -> _Value:
    """Call a function that reads the request's body, or a value made of it. Raises what the function raises."""
    if len(await request.body()) < LARGE:
        return read(*given, **more)
    work = partial(copy_context().run, partial(read, *given, **more))
    return await asyncio.get_running_loop().run_in_executor(_READER, work)


def check_values(body: Any) -> None:
    """Raise InvalidInput for a body with more than MAX_VALUES values, since most readers take time for each of them."""
    count, waiting = 0, [body]
    while waiting:
        value = waiting.pop()
        members = value.values() if isinstance(value, dict) else value
        count += 1 + (len(value) if isinstance(value, dict) else sum(isinstance(one, str) for one in value))
        if count > MAX_VALUES:
            message = f"the body has more than {MAX_VALUES:,} values"
            raise InvalidInput(message, field="body", remedy="send fewer messages, parts, tools or parameters")
        waiting += [one for one in members if isinstance(one, dict | list)]
