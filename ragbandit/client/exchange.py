"""One call to the service without input and output: what is sent, what a reply means, and when to try again."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

from ragbandit.client.connection import Connection
from ragbandit.shared import errors
from ragbandit.shared.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    NotReady,
    Overloaded,
    RagBanditError,
    TooManyRequests,
    Unauthorized,
)
from ragbandit.shared.redaction import without_secrets
from ragbandit.shared.retries import pause_before_retry, retry_after_s

#: longest reply that is read, bytes
MAX_REPLY: Final = 64 << 20
_BY_CODE: Final[Mapping[str, type[RagBanditError]]] = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RagBanditError)
}
#: of a refusal without a code of ours: something between here and the service refused it
_BY_STATUS: Final[Mapping[int, type[RagBanditError]]] = {
    400: InvalidInput,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: InvalidInput,
    422: InvalidInput,
    429: TooManyRequests,
    502: NotReady,
    503: NotReady,
    504: NotReady,
}
#: what to do about a refusal that brings no remedy of its own
_REMEDIES: Final[Mapping[type[RagBanditError], str]] = {
    Unauthorized: "pass api_key=, or set RAGBANDIT_API_KEY; `ragbandit keys create` makes one",
    Forbidden: "use a key whose role may do this",
}
#: pauses between attempts, seconds
_BACK_OFF: Final = {"base_s": 0.1, "longest_s": 2.0}
#: nothing of the request can have been answered; the same request may be sent again, since it carries its own id
_BROKEN: Final = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A request to the service. Every call may be sent again: it reads, or it carries an id of its own."""

    method: str
    path: str
    params: Mapping[str, float | str] | None = None
    body: bytes | None = None
    #: longest it may take; None: what the connection allows
    limit_s: float | None = None
    #: a good reply is handed on as it opens, its body unread
    stream: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceivedReply:
    """A whole reply."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    #: of a stream: the open reply
    opened: httpx.Response | None = None


def check_size(size: int, *, call: Call, ends: float) -> None:
    """Raise if a reply is late, or larger than any of ours. size: bytes of it so far; ends: a time.monotonic()."""
    if time.monotonic() > ends:
        raise httpx.ReadTimeout("the reply was not whole in time")
    if size > MAX_REPLY:
        raise RagBanditError(f"{call.path} replied with more than {MAX_REPLY} bytes")


def encoded(body: object) -> bytes:
    """The body as JSON in UTF-8. Raises InvalidInput for what JSON cannot hold."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        message = f"the request cannot be sent as JSON: {error}"
        raise InvalidInput(message, remedy="send text in UTF-8, finite numbers, booleans, lists and dicts") from error


def pause_after(failed: Exception | ReceivedReply, *, attempts: int, most_s: float = 0.0) -> float | None:
    """Seconds after which the same call is worth another attempt; None if it is not.

    attempts: made so far. most_s: longest Retry-After that is obeyed.
    """
    if isinstance(failed, Exception):
        return pause_before_retry(attempts, **_BACK_OFF) if isinstance(failed, _BROKEN) else None
    header = failed.headers.get("retry-after")
    if failed.status not in (429, 503) or header is None or (asked_s := retry_after_s(header)) > most_s:
        return None
    pause = pause_before_retry(attempts, **_BACK_OFF)
    return None if pause is None else asked_s + pause


def away(error: Exception, *, call: Call, connection: Connection) -> RagBanditError:
    """The error of a service that cannot be reached, or that did not answer in time."""
    where = f"{connection.shown_url}{call.path}"
    if isinstance(error, httpx.PoolTimeout):
        message = f"all {connection.connections} connections of this client are in use"
        return NotReady(message, remedy="make fewer calls at once, or raise connections=")
    if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
        remedy = "send the same id again to learn what became of it, or raise timeout_s"
        return NotReady(f"the service at {where} did not answer in time", remedy=remedy)
    reason = without_secrets(str(error)) or type(error).__name__
    return NotReady(
        f"no service answered at {where}: {reason}",
        remedy="check the URL (on the command line --url or RAGBANDIT_URL), and that the service is running",
    )


def refused(received: ReceivedReply, *, path: str) -> RagBanditError:
    """The error that the service raised, or that something before it did."""
    after = received.headers.get("retry-after")
    try:
        body = json.loads(received.body)
    except ValueError:
        body = None
    detail = body.get("error") if isinstance(body, dict) else None
    detail = detail if isinstance(detail, dict) else {}
    kind = _BY_CODE.get(str(detail.get("code", ""))) or _BY_STATUS.get(received.status, RagBanditError)
    message, field, remedy = (_text(detail.get(name)) for name in ("message", "field", "remedy"))
    if message is None:
        message = f"{path} did not reply with JSON (HTTP {received.status})" if body is None else f"{body!r:.300}"
    error = kind(message, field=field, remedy=remedy or _REMEDIES.get(kind))
    if isinstance(error, Overloaded) and after is not None and after.isdigit():
        error.retry_after_s = float(after)
    return error


def request_of(
    call: Call, *, http: httpx.Client | httpx.AsyncClient, ends: float, connection: Connection
) -> httpx.Request:
    """One attempt at a call, which waits for each thing no longer than until `ends`, a time.monotonic()."""
    left = max(ends - time.monotonic(), 0.001)
    silence = left if connection.read_timeout_s is None else min(connection.read_timeout_s, left)
    connect = min(connection.connect_timeout_s, left)
    return http.build_request(
        call.method,
        call.path,
        params=call.params,
        content=call.body,
        headers={} if call.body is None else {"Content-Type": "application/json"},
        timeout=httpx.Timeout(silence, connect=connect, pool=connect),
    )


def value_of(received: ReceivedReply, *, path: str) -> Any:
    """The JSON value of a good reply."""
    try:
        return json.loads(received.body)
    except ValueError as error:
        message = f"{path} did not reply with JSON (HTTP {received.status})"
        raise RagBanditError(message, remedy="check that the URL is that of the service") from error


def _text(value: object) -> str | None:
    return None if value is None else str(value)
