"""One call to the service without input and output: what is sent, what a reply means, and when to try again."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict
from urllib.parse import quote

import httpx

from ragbandit.client.replies.decisions import ClientFeedbackReply
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
from ragbandit.shared.outbound import pause_before_retry, retry_after_s
from ragbandit.shared.plain_values import for_json
from ragbandit.shared.redaction import without_secrets
from ragbandit.shared.types import OutcomeStatus

#: where a service listens unless it is told otherwise
DEFAULT_URL: Final = "http://127.0.0.1:8100"


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """Where and how to call; url and api_key are those of RAGBANDIT_URL and RAGBANDIT_API_KEY where they are None.

    The key is never shown. Raises InvalidInput naming the field.
    """

    url: str | None
    api_key: str | None = field(repr=False)
    #: longest a call may take from its first byte to its last, retries and waits included, seconds
    timeout_s: float
    #: longest wait for a connection, and for a place in the pool, seconds
    connect_timeout_s: float
    #: longest silence of the service within a call, seconds; None: as long as the call may take
    read_timeout_s: float | None
    #: further attempts after the first
    retries: int
    #: longest Retry-After that is obeyed, seconds; a longer one ends the call with the service's error
    retry_after_most_s: float
    #: connections at most; further calls wait for one
    connections: int
    #: longest that `route` waits if there is a default arm, seconds
    route_timeout_s: float

    def __post_init__(self) -> None:
        for name in ("timeout_s", "connect_timeout_s", "read_timeout_s", "route_timeout_s", "connections"):
            if name != "read_timeout_s" or self.read_timeout_s is not None:
                _check_limit(getattr(self, name), field=name, may_be_zero=False)
        for name in ("retries", "retry_after_most_s"):
            _check_limit(getattr(self, name), field=name)
        url = os.environ.get("RAGBANDIT_URL") or DEFAULT_URL if self.url is None else self.url
        key = (os.environ.get("RAGBANDIT_API_KEY", "").strip() or None) if self.api_key is None else self.api_key
        object.__setattr__(self, "url", _checked_url(url))
        object.__setattr__(self, "api_key", None if key is None else _checked_key(key))

    @property
    def shown_url(self) -> str:
        """The URL without a password."""
        return without_secrets(self.url or "")

    def pool(self) -> dict[str, Any]:
        """Arguments of a client of httpx."""
        most = self.connections
        return {
            "base_url": self.url,
            "headers": {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"},
            "limits": httpx.Limits(max_connections=most, max_keepalive_connections=min(20, most)),
            "follow_redirects": False,
        }


#: highest limit, in seconds and in numbers: nothing waits forever
_MOST: Final = 1_000_000


def _check_limit(value: Any, *, field: str, may_be_zero: bool = True) -> None:
    """Refuse what is not a number from 0, or above 0, to _MOST, or not whole if it is a count. Raises InvalidInput."""
    kinds = int if field in ("connections", "retries") else int | float
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _MOST or (value == 0 and not may_be_zero):
        number = "whole number" if kinds is int else "number"
        remedy = f"pass a {number} {'from' if may_be_zero else 'above'} 0 to {_MOST:,}"
        raise InvalidInput(f'"{field}" is out of range: {value!r:.80}', field=field, remedy=remedy)


def _checked_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except (TypeError, httpx.InvalidURL):
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        shown = without_secrets(url) if isinstance(url, str) else type(url).__name__
        message = f"{shown!r:.200} is no URL of a service"
        raise InvalidInput(message, field="url", remedy=f"write it as {DEFAULT_URL}")
    return url


def _checked_key(key: str) -> str:
    # A header cannot hold other characters, and the transport's error would repeat the key.
    if not isinstance(key, str) or not key or not key.isascii() or any(c.isspace() or not c.isprintable() for c in key):
        message = "the API key is empty, or has characters that no key has"
        raise InvalidInput(message, field="api_key", remedy="pass it as `ragbandit keys create` printed it")
    return key


#: longest reply that is read, bytes
MAX_REPLY: Final = 64 << 20
_BY_CODE: Final[Mapping[str, type[RagBanditError]]] = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RagBanditError)
}
#: of a refusal without a code of ours: something between here and the service refused it
_BY_STATUS: Final[Mapping[int, type[RagBanditError]]] = {
    **{kind.status: kind for kind in (Unauthorized, Forbidden, NotFound, Conflict, TooManyRequests)},
    **dict.fromkeys((400, 413, 422), InvalidInput),
    **dict.fromkeys((502, 503, 504), NotReady),
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
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=for_json).encode()
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
    return asked_s + (pause_before_retry(attempts, **_BACK_OFF) or 0.0)


def away(error: Exception, *, call: Call, connection: Connection) -> RagBanditError:
    """The error of a service that cannot be reached, or that did not answer in time."""
    where = f"{connection.shown_url}{call.path}"
    if isinstance(error, httpx.PoolTimeout):
        message = f"all {connection.connections} connections of this client are in use"
        return NotReady(message, remedy="make fewer calls at once, or raise connections=")
    if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout | TimeoutError):
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


def object_of(received: ReceivedReply, *, path: str) -> dict[str, Any]:
    """The JSON object of a good reply."""
    try:
        value = json.loads(received.body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        message = f"{path} did not reply with a JSON object (HTTP {received.status})"
        raise RagBanditError(message, remedy="check that the URL is that of the service")
    return value


def _text(value: object) -> str | None:
    return None if value is None else str(value)


class Options(TypedDict, total=False):
    """What is sent with a question, as POST /v1/route has it; None is left out."""

    cost_weight: float | str | None
    aim: Mapping[str, float] | None
    context: Mapping[str, Any] | None
    arms: Sequence[str] | None
    budget: Mapping[str, float] | None
    tenant: str | None
    session_id: str | None
    messages: Sequence[Mapping[str, str]] | None
    sticky_turns: int | None
    failover: bool | None


class AskOptions(Options, total=False):
    """`Options`, and the caller's own id."""

    decision_id: str | None


class ReportFields(TypedDict, total=False):
    """What an outcome says of an arm that has run; None is left out."""

    status: OutcomeStatus
    answer: str | None
    steps: float | None
    cost: Mapping[str, float] | None
    stop_reason: str | None


class OutcomeFields(ReportFields, total=False):
    """What an outcome says, as POST /v1/outcomes has it; None is left out."""

    error: str | None


class Judgement(TypedDict, total=False):
    """One of label, rating, reward, event and retract with what belongs to it, as POST /v1/feedback has them."""

    label: str | Sequence[str] | None
    rating: bool | float | None
    scale: str | None
    reward: float | None
    event: str | None
    retract: str | None
    source: str | None
    rater: str | None
    feedback_id: str | None


def new_id() -> str:
    """A UUIDv7, as the service makes them."""
    import uuid_utils  # not needed for `import`

    return str(uuid_utils.uuid7())


def post(path: str, body: Mapping[str, object], *, limit_s: float | None = None) -> Call:
    """POST of this body, without what is None."""
    return Call(method="POST", path=path, body=encoded(_given(body)), limit_s=limit_s)


def answer_call(
    question: str, *, decision_id: str | None, wait_s: float | None, more: Mapping[str, object], timeout_s: float
) -> Call:
    """POST /v1/answer."""
    if wait_s is not None:
        _check_limit(wait_s, field="wait_s")
    body = {"question": question, "decision_id": new_id() if decision_id is None else decision_id, **more}
    return Call(
        method="POST",
        path="/v1/answer",
        params=None if wait_s is None else {"wait_s": wait_s},
        body=encoded(_given(body)),
        limit_s=timeout_s + (wait_s or 0.0),
    )


def item_list(items: Sequence[Mapping[str, object]], *, path: str, key: str) -> list[dict[str, object]]:
    """The items of a batch, each with an id of its own. path: of one item. key: the name of its id."""
    try:
        return [{key: new_id(), **_given(item)} for item in items]
    except (TypeError, ValueError, AttributeError) as error:
        remedy = f"pass a list of dicts, each as the body of {path}"
        raise InvalidInput('"items" must be a list of mappings', field="items", remedy=remedy) from error


def replies_of(reply: Mapping[str, Any], *, path: str, count: int) -> list[Any]:
    """The entries of a batch's reply, one for each item."""
    entries = reply.get("items")
    if not isinstance(entries, list) or len(entries) != count:
        raise RagBanditError(f"{path} did not reply with one entry per item")
    return entries


def not_sent(feedback_id: object) -> ClientFeedbackReply:
    """The receipt of feedback for a decision that was made without the service."""
    return ClientFeedbackReply(
        feedback_id=str(feedback_id), duplicate=False, late=False, waiting_for=None, degraded=True
    )


def quoted(decision_id: object) -> str:
    """The id as a part of a path."""
    if not isinstance(decision_id, str):
        message = f'"decision_id" must be text, not {type(decision_id).__name__}'
        raise InvalidInput(message, field="decision_id", remedy="pass the decision id that route or answer gave")
    return quote(decision_id, safe="")


def _given(body: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in body.items() if value is not None}
