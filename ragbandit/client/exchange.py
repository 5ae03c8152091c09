"""Builds requests and reads replies for both clients. The clients themselves send and wait."""

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
from ragbandit.shared.errors import InvalidInput, LimitReached, NotReady, Overloaded, RagBanditError
from ragbandit.shared.model_servers.outbound import retry_pause
from ragbandit.shared.model_servers.waits import retry_after_s
from ragbandit.shared.proxies import httpx_options, proxy_in_words
from ragbandit.shared.texts.plain_values import for_json
from ragbandit.shared.texts.redaction import without_secrets
from ragbandit.shared.types import DecisionUnit, OutcomeStatus

DEFAULT_URL: Final = "http://127.0.0.1:8100"


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """Address, key and limits of a client, see `AsyncClient`. Raises InvalidInput, which names the field."""

    url: str | None
    api_key: str | None = field(repr=False)
    timeout_s: float
    connect_timeout_s: float
    retries: int
    connections: int
    route_timeout_s: float

    def __post_init__(self) -> None:
        for name in ("timeout_s", "connect_timeout_s", "route_timeout_s", "connections", "retries"):
            _check_limit(getattr(self, name), field=name, may_be_zero=name == "retries")
        url = os.environ.get("RAGBANDIT_URL") or DEFAULT_URL if self.url is None else self.url
        key = (os.environ.get("RAGBANDIT_API_KEY", "").strip() or None) if self.api_key is None else self.api_key
        object.__setattr__(self, "url", _check_url(url))
        object.__setattr__(self, "api_key", None if key is None else _check_key(key))

    @property
    def shown_url(self) -> str:
        """The URL without secrets."""
        return without_secrets(self.url or "")

    @property
    def route(self) -> str:
        """The proxy in words, for messages; "" without one."""
        return proxy_in_words(self.url or "")

    def pool(self) -> dict[str, Any]:
        """Arguments of httpx.Client and httpx.AsyncClient."""
        limits = httpx.Limits(max_connections=self.connections, max_keepalive_connections=min(20, self.connections))
        headers = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        fixed = {"base_url": self.url, "headers": headers, "limits": limits, "follow_redirects": False}
        return fixed | httpx_options(self.url or "")


#: largest value of a limit, in seconds or as a count
_MOST: Final = 1_000_000


def _check_limit(value: Any, *, field: str, may_be_zero: bool = True) -> None:
    kinds = int if field in ("connections", "retries") else int | float
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _MOST or (value == 0 and not may_be_zero):
        number = "whole number" if kinds is int else "number"
        remedy = f"pass a {number} {'from' if may_be_zero else 'above'} 0 to {_MOST:,}"
        raise InvalidInput(f'"{field}" is out of range: {value!r:.80}', field=field, remedy=remedy)


def _check_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except (TypeError, httpx.InvalidURL):
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        shown = without_secrets(url) if isinstance(url, str) else type(url).__name__
        message = f"{shown!r:.200} is not the URL of a service"
        raise InvalidInput(message, field="url", remedy=f"write it as {DEFAULT_URL}")
    return url.rstrip("/")


def _check_key(key: str) -> str:
    # A header cannot contain any other character, and httpx's error about it would print the key.
    if not isinstance(key, str) or not key or not key.isascii() or any(c.isspace() or not c.isprintable() for c in key):
        message = "the API key is empty, or contains a character that no key contains"
        raise InvalidInput(message, field="api_key", remedy="pass the key as it was printed when it was made")
    return key


#: largest reply, bytes
MAX_REPLY: Final = 64 << 20
_BY_CODE: Final[Mapping[str, type[RagBanditError]]] = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RagBanditError)
}
#: HTTP status -> kind of error, for replies of a proxy, which contain no error code
_BY_STATUS: Final[Mapping[int, type[RagBanditError]]] = {
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    429: errors.TooManyRequests,
    **dict.fromkeys((400, 413, 422), InvalidInput),
    **dict.fromkeys((502, 503, 504), NotReady),
}
#: kind of error -> remedy, for replies without a remedy
_REMEDIES: Final[Mapping[type[RagBanditError], str]] = {
    errors.Unauthorized: "pass api_key=, or set RAGBANDIT_API_KEY; "
    "`ragbandit keys create --name NAME --role app` makes one",
    errors.Forbidden: "use a key whose role may do this",
}
_BACK_OFF: Final = {"base_s": 0.1, "longest_s": 2.0}
#: longest Retry-After after which a request is repeated, seconds
_MOST_RETRY_AFTER_S: Final = 2.0
#: errors after which a request is repeated
_BROKEN: Final = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A request to the service. It may be repeated, since it only reads, or has an id that the service stores once."""

    method: str
    path: str
    params: Mapping[str, float | str] | None = None
    body: bytes | None = None
    #: time limit, seconds; None for `Connection.timeout_s`
    limit_s: float | None = None
    #: whether the body of a successful reply is left unread
    stream: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceivedReply:
    """A complete reply, or the open reply of a stream in `opened`."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    opened: httpx.Response | None = None


def check_size(size: int, *, call: Call, ends: float) -> None:
    """Raises httpx.ReadTimeout for a late reply, RagBanditError above MAX_REPLY. size: bytes so far. ends: deadline by
    time.monotonic().
    """
    if time.monotonic() > ends:
        raise httpx.ReadTimeout("the reply was not complete in time")
    if size > MAX_REPLY:
        raise RagBanditError(f"{call.path} replied with more than {MAX_REPLY} bytes")


def encode_json(body: object) -> bytes:
    """Encode a body as JSON in UTF-8. Raises InvalidInput for values that JSON cannot represent."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=for_json).encode()
    except (TypeError, ValueError, RecursionError) as error:
        message = f"the request cannot be sent as JSON: {error}"
        raise InvalidInput(message, remedy="send text in UTF-8, finite numbers, booleans, lists and dicts") from error


def pause_after(failed: Exception | ReceivedReply, *, attempts: int) -> float | None:
    """Seconds to wait before the next attempt; None if the call should not be repeated.

    failed: the error, or a reply with an error status. attempts: number of attempts so far.
    """
    if isinstance(failed, Exception):
        return retry_pause(attempts, **_BACK_OFF) if isinstance(failed, _BROKEN) else None
    header = failed.headers.get("retry-after")
    if failed.status not in (429, 503) or header is None:
        return None
    wait_s = retry_after_s(header)
    if wait_s > _MOST_RETRY_AFTER_S:
        return None
    return wait_s + (retry_pause(attempts, **_BACK_OFF) or 0.0)


def unreachable_error(error: Exception, *, call: Call, connection: Connection) -> RagBanditError:
    """Convert an error of httpx to NotReady: the service cannot be reached, or did not answer in time."""
    where = f"{connection.shown_url}{call.path}"
    if isinstance(error, httpx.PoolTimeout):
        message = f"all {connection.connections} connections of this client are in use"
        return NotReady(message, remedy="make fewer calls at once, or raise connections=")
    if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout | TimeoutError):
        remedy = "send the same id again to get the result, or raise timeout_s"
        return NotReady(f"the service at {where} did not answer in time", remedy=remedy)
    reason = without_secrets(str(error)) or type(error).__name__
    remedy = "check the URL (on the command line --url or RAGBANDIT_URL), and that the service is running"
    remedy += ", or list its host in NO_PROXY" if connection.route else ""
    return NotReady(f"no service answered at {where}{connection.route}: {reason}", remedy=remedy)


def error_of_reply(received: ReceivedReply, *, path: str) -> RagBanditError:
    """The error in a reply of the service, or of a proxy in front of it."""
    after = received.headers.get("retry-after")
    try:
        body = json.loads(received.body)
    except ValueError:
        body = None
    detail = body.get("error") if isinstance(body, dict) else None
    detail = detail if isinstance(detail, dict) else {}
    kind = _BY_CODE.get(str(detail.get("code", ""))) or _BY_STATUS.get(received.status, RagBanditError)
    texts = {name: str(value) for name, value in detail.items() if value is not None}
    message = texts.get("message")
    if message is None:
        message = f"{path} did not reply with JSON (HTTP {received.status})" if body is None else f"{body!r:.300}"
    error = kind(message, field=texts.get("field"), remedy=texts.get("remedy") or _REMEDIES.get(kind))
    if isinstance(error, LimitReached):
        error.limits = body["limits"] if isinstance(body, dict) and isinstance(body.get("limits"), list) else ()
    if isinstance(error, Overloaded) and after is not None and after.isdigit():
        error.retry_after_s = float(after)
    return error


def build_request(
    call: Call, *, http: httpx.Client | httpx.AsyncClient, ends: float, connection: Connection
) -> httpx.Request:
    """The request for one attempt. Its timeouts expire at `ends` by time.monotonic()."""
    remaining_s = max(ends - time.monotonic(), 0.001)
    connect_s = min(connection.connect_timeout_s, remaining_s)
    return http.build_request(
        call.method,
        call.path,
        params=call.params,
        content=call.body,
        headers={} if call.body is None else {"Content-Type": "application/json"},
        timeout=httpx.Timeout(remaining_s, connect=connect_s, pool=connect_s),
    )


def parse_object(received: ReceivedReply, *, path: str) -> dict[str, Any]:
    """Parse the JSON object of a successful reply."""
    try:
        value = json.loads(received.body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        message = f"{path} did not reply with a JSON object (HTTP {received.status})"
        raise RagBanditError(message, remedy="check that a RagBandit service has this URL")
    return value


class Options(TypedDict, total=False):
    """Optional fields of POST /v1/route. A field that is None is not sent."""

    cost_weight: float | str | None
    aim: Mapping[str, float] | None
    context: Mapping[str, Any] | None
    arms: Sequence[str] | None
    budget: Mapping[str, float] | None
    tenant: str | None
    session_id: str | None
    messages: Sequence[Mapping[str, str]] | None
    unit: DecisionUnit | None
    effort_min: str | None
    effort_max: str | None
    failover: bool | None


class AskOptions(Options, total=False):
    """`Options`, and a decision id chosen by the caller."""

    decision_id: str | None


class ReportFields(TypedDict, total=False):
    """Fields that a function can report about its run. A field that is None is not sent."""

    status: OutcomeStatus
    answer: str | None
    steps: float | None
    cost: Mapping[str, float] | None
    stop_reason: str | None


class ReportedOutcome(ReportFields, total=False):
    """Fields of POST /v1/outcomes. A field that is None is not sent."""

    error: str | None


class DecideFields(TypedDict, total=False):
    """Fields of a paired comparison; see POST /v1/report/decide."""

    #: period, seconds since 1970
    since: float
    until: float
    tenant: str
    #: the arm to compare with
    against: str
    #: judge, check or labels
    judge: str


class Judgement(TypedDict, total=False):
    """Fields of POST /v1/feedback: one of label, rating, reward, event or retract, with further fields about it."""

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
    """A new UUIDv7."""
    import uuid_utils  # imported here to keep the import of the client fast

    return str(uuid_utils.uuid7())


def post_call(
    path: str, body: Mapping[str, object], *, params: Mapping[str, float] | None = None, limit_s: float | None = None
) -> Call:
    """A POST request with a JSON body, without the fields that are None."""
    return Call(method="POST", path=path, params=params, body=encode_json(_without_none(body)), limit_s=limit_s)


def answer_call(
    question: str, *, decision_id: str | None, wait_s: float | None, more: Mapping[str, object], timeout_s: float
) -> Call:
    """The request POST /v1/answer. Its time limit is `timeout_s` plus `wait_s`."""
    if wait_s is not None:
        _check_limit(wait_s, field="wait_s")
    body = {"question": question, "decision_id": new_id() if decision_id is None else decision_id, **more}
    params = None if wait_s is None else {"wait_s": wait_s}
    return post_call("/v1/answer", body, params=params, limit_s=timeout_s + (wait_s or 0.0))


def items_with_ids(items: Sequence[Mapping[str, object]], *, path: str, key: str) -> list[dict[str, object]]:
    """Copy a batch, and add an id to each item without one. path: endpoint for one item. key: name of the id field."""
    try:
        return [{key: new_id(), **_without_none(item)} for item in items]
    except (TypeError, ValueError, AttributeError) as error:
        remedy = f"pass a list of dicts, each as the body of {path}"
        raise InvalidInput('"items" must be a list of mappings', field="items", remedy=remedy) from error


def batch_entries(reply: Mapping[str, Any], *, path: str, count: int) -> list[Any]:
    """The entries of a batch reply. Raises RagBanditError unless there are `count` entries."""
    entries = reply.get("items")
    if not isinstance(entries, list) or len(entries) != count:
        raise RagBanditError(f"{path} did not reply with one entry per item")
    return entries


def unsent_receipt(feedback_id: object) -> ClientFeedbackReply:
    """Receipt for feedback on a decision made without the service."""
    return ClientFeedbackReply(
        feedback_id=str(feedback_id), duplicate=False, late=False, waiting_for=None, degraded=True
    )


def quote_id(decision_id: object) -> str:
    """Quote an id for a URL path. Raises InvalidInput for an id that is not a text."""
    if not isinstance(decision_id, str):
        message = f'"decision_id" must be text, not {type(decision_id).__name__}'
        raise InvalidInput(message, field="decision_id", remedy="pass the decision id that route or answer returned")
    return quote(decision_id, safe="")


def _without_none(body: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in body.items() if value is not None}
