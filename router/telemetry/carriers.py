"""Carriers: the place of a decision in a trace, as W3C headers, and the id of the request that asked for it.

They are kept with the decision (`Query.request`), so that they outlive Redis and every process. They are no part of the
request's body: the same request may come again with another trace.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

import uuid_utils

from ragbandit.shared.types import Json

#: keys of `Query.request`, and names of the headers
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
#: key of `Query.request`
REQUEST_ID: Final = "request_id"
#: key of an ASGI scope
SCOPE_ID: Final = "ragbandit.request_id"

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
#: what is taken as a caller's own id of its request
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def carrier_of(request: Mapping[str, Json]) -> dict[str, str]:
    """The W3C headers that are kept with a decision; empty where it is in no trace."""
    headers = {name: request[name] for name in (TRACEPARENT, TRACESTATE) if isinstance(request.get(name), str)}
    return {name: value for name, value in headers.items() if isinstance(value, str)}


def trace_id_of(request: Mapping[str, Json]) -> str | None:
    """The trace that a decision is in, 32 hex digits; None where it is in none."""
    parent = request.get(TRACEPARENT)
    matched = _TRACEPARENT.fullmatch(parent) if isinstance(parent, str) else None
    return matched[1] if matched else None


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The id that the caller sent as x-request-id, if it is one, or else a new one. headers: as ASGI has them."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(sent := value.decode("latin-1")):
            return sent
    return f"req_{uuid_utils.uuid7().hex}"
