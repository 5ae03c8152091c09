"""Errors in the replies of model servers: their kind, message, parameter, and the wait that they ask for."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ragbandit.shared.model_servers.failures import Failure, FailureKind
from ragbandit.shared.model_servers.refusals import CONTEXT_CODES, read_refusal
from ragbandit.shared.model_servers.waits import asked_wait_s, is_daily_quota, limits_end_s

#: maximum number of characters of a server's message that are read
_LONGEST: Final = 1000
#: maximum number of levels of a body, and of items of a list, in which a message is searched
_DEEPEST: Final = 5
#: maximum number of refused fields that are read, and of parts of a field's place
_MOST_PLACES: Final = 20
_DEEPEST_PLACE: Final = 16
#: types of errors in FastAPI's form for fields that the server does not know
_EXTRA: Final = ("extra_forbidden", "value_error.extra", "unexpected_keyword_argument")
#: fields with a server's message, in lower case, in the order of the search
_MESSAGES: Final = (
    *("message", "error_description", "error", "msg", "detail", "error_message", "error_msg", "status_msg"),
    *("description", "base_resp", "errors", "reason", "title", "fault", "faultstring", "text", "metadata", "raw"),
    *("code", "type"),
)
#: texts that servers send instead of an error message if there is no error, in lower case
NO_ERROR: Final = ("", "success", "ok", "none", "null")
#: status -> kind; other statuses are "failed" (5xx), "refused" (4xx) or "denied" (3xx: redirects are not followed)
_KINDS: Final[Mapping[int, FailureKind]] = {
    **dict.fromkeys((401, 402, 403, 404, 407, 410), "denied"),
    **dict.fromkeys((408, 504), "timeout"),
    429: "limited",
    # 424: the model failed (TGI, Bedrock). 425: too early. 498: no capacity (Groq). 499: a proxy gave up.
    **dict.fromkeys((424, 425, 498, 499), "failed"),
}
#: code or type of an error in a reply with status 200 -> the status that it stands for
_STATUSES: Final = {
    **dict.fromkeys(("overloaded_error", "overloaded", "server_overloaded"), 529),
    **dict.fromkeys(("rate_limit_error", "rate_limit_exceeded"), 429),
    **dict.fromkeys(("invalid_request_error", *CONTEXT_CODES), 400),
}
#: names of errors of httpx and aiohttp about a connection that cannot be made
_UNREACHABLE: Final = frozenset({"ConnectError", "ConnectTimeout", "ClientConnectorError", "ConnectionTimeoutError"})
#: names of errors of httpx and aiohttp about a connection that broke or could not be used
_BROKEN: Final = frozenset(
    {"ReadError", "WriteError", "CloseError", "RemoteProtocolError", "LocalProtocolError", "ProxyError"}
    | {"TooManyRedirects", "UnsupportedProtocol", "ClientError"}
)
#: maximum number of characters of a text in which a server's message is searched
_READ: Final = 100_000
#: a tag; `name` is the name of an element whose text is not shown
_TAG: Final = re.compile(r"<(?:(?P<end>/?)(?P<name>script|style|head)\b)?[^<>]*>?", re.IGNORECASE)
#: error codes of servers; a text with digits is not accepted, since it might be a key
_CODE: Final = re.compile(r"[A-Za-z][A-Za-z_]{0,63}")
_PARAM_NAME: Final = re.compile(r"[A-Za-z_][\w.\[\]-]{0,127}")
#: codes of a status 429 that another attempt does not change, since the quota or the money of the key is used up
_NO_QUOTA: Final = frozenset(
    {"insufficient_quota", "insufficient_credits", "insufficient_balance", "billing_hard_limit_reached"}
    | {"billing_not_active", "exceeded_current_quota_error", "Arrearage"}
)


def failure_of_status(status: int, *, headers: Mapping[str, str] | None = None, body: object = None) -> Failure:
    """The failure in a reply. status: 300 to 599. headers: names in lower case. body: parsed if it is JSON."""
    message = server_message(body)
    after_s = asked_wait_s(headers=headers or {}, body=body, message=message)
    kind = _KINDS.get(status, "failed" if status >= 500 else "refused" if status >= 400 else "denied")
    code = _error_code(body)
    if status == 429 and (code in _NO_QUOTA or is_daily_quota(body, message=message, after_s=after_s)):
        kind, after_s = "denied", 0.0
    elif status == 429:
        after_s = after_s or limits_end_s(headers or {})
    failure = Failure(kind=kind, status=status, retry_after_s=after_s or None, code=code, param=_error_param(body))
    if kind != "refused":
        return failure
    refusal = read_refusal(status, code=code, message=message)
    return replace(failure, inability=refusal.inability, tokens=refusal.tokens, most_tokens=refusal.most_tokens)


def status_of_names(*names: object) -> int | None:
    """The HTTP status for the code or type of an error; None if none of `names` is known."""
    return next((_STATUSES[name] for name in names if isinstance(name, str) and name in _STATUSES), None)


def failure_of_error(error: Exception) -> Failure:
    """The failure of an error of httpx or aiohttp, or of reading a reply."""
    status = getattr(error, "status_code", None)
    if status is not None and 300 <= status < 600:
        headers = getattr(getattr(error, "response", None), "headers", None)
        return failure_of_status(status, headers=headers, body=getattr(error, "body", None))
    names = {base.__name__ for cause in (error, error.__cause__) for base in type(cause).__mro__}
    if names & _UNREACHABLE:
        return Failure(kind="unreachable")
    if any(name.endswith(("Timeout", "TimeoutError")) for name in names):
        return Failure(kind="timeout")
    return Failure(kind="broken" if names & _BROKEN else "unreadable")


def server_message(body: object, *, depth: int = 0) -> str:
    """The error message in an object, a list, a text or an HTML page; "" if it contains none."""
    if isinstance(body, str):
        text = body[:_READ].strip()
        text = " ".join((_page_text(text) if text.startswith("<") else text).split())[:_LONGEST]
        return "" if text.lower() in NO_ERROR else text
    if depth > _DEEPEST:
        return ""
    parts: list[object] = body[:_DEEPEST] if isinstance(body, list) else []
    if isinstance(body, Mapping):
        parts = list(map({str(name).lower(): part for name, part in body.items()}.get, _MESSAGES))
    elif isinstance(body, int) and body is not True and body and depth:
        return str(body)
    return next(filter(None, (server_message(part, depth=depth + 1) for part in parts)), "")


def _page_text(page: str) -> str:
    """The text between the tags of a page, without the elements that are not shown, in linear time."""
    parts: list[str] = []
    hidden, begin, at = "", 0, 0
    for tag in _TAG.finditer(page):
        parts.append(page[at : tag.start()])
        name, at = (tag["name"] or "").lower(), tag.end()
        if name and not hidden and not tag["end"]:
            hidden, begin = name, len(parts)
        elif name and name == hidden and tag["end"]:
            del parts[begin:]
            hidden = ""
    return " ".join([*parts, page[at:]])


def _error_of(body: object) -> Mapping[str, Any]:
    """The object with the code of an error; {} if there is none."""
    body = body[0] if isinstance(body, list) and body else body
    if not isinstance(body, Mapping):
        return {}
    return _error_of(body["error"]) if isinstance(body.get("error"), Mapping) else body


def _error_param(body: object) -> str | None:
    place = next((row.get("loc") for row in _refused_rows(body)), None)
    parts = place[: _DEEPEST + 1] if isinstance(place, list) else []
    param = _error_of(body).get("param") or ".".join(str(part) for part in parts if part != "body")
    return param if isinstance(param, str) and _PARAM_NAME.fullmatch(param) else None


def refused_places(body: object) -> list[list[object]]:
    """The places of the fields that the server does not know, see `_refused_rows`."""
    extra = (row for row in _refused_rows(body) if row.get("type") in _EXTRA)
    return [place[:_DEEPEST_PLACE] for row in extra if isinstance(place := row.get("loc"), list)]


def _refused_rows(body: object) -> list[Mapping[str, Any]]:
    """The rows of an error in FastAPI's form, a list of {"loc": ["body", name, ...]}."""
    error = _error_of(body)
    detail = error.get("detail") or error.get("message")
    detail = detail.get("detail") if isinstance(detail, Mapping) else detail
    return [row for row in detail[:_MOST_PLACES] if isinstance(row, Mapping)] if isinstance(detail, list) else []


def _error_code(body: object) -> str | None:
    error = _error_of(body)
    codes = (error.get(name) for name in ("code", "type"))
    return next((code for code in codes if isinstance(code, str) and _CODE.fullmatch(code)), None)
