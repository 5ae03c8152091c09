"""Failures of servers: what they mean for the arm, for the caller and for the next arm."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.outbound import retry_after_s
from ragbandit.shared.types import DecisionId

#: unreachable: no connection; broken: it ended before the reply; unreadable: the reply is none; limited: 429; failed:
#: 5xx; denied: the key or the model of the arm is wrong; refused: the request is wrong, so no other arm is asked
FailureKind = Literal["unreachable", "broken", "timeout", "limited", "failed", "unreadable", "denied", "refused"]

#: key of an outcome's `made_by` with its failure
FAILURE: Final = "failure"
#: the same with the decision of the arm that answers in its place
SUCCESSOR: Final = "successor"
#: key of a query's `request`: of a decision that answers in place of another {"first": the decision that was drawn,
#: "attempt": its number, from 2, "arm": that failed before, "reason": how, "left": arms that may be asked after it};
#: false: the caller wants no other arm
FAILOVER: Final = "failover"
#: longest Retry-After that is heeded, seconds
LONGEST_RETRY_S: Final = 3600.0
#: characters of a server's message that are kept, and how deep it is looked for
_LONGEST: Final = 1000
_DEEPEST: Final = 5
#: fields that servers put their messages into, in the order in which they are tried
_MESSAGES: Final = (
    *("error", "message", "msg", "detail", "error_message", "error_msg", "status_msg", "description", "base_resp"),
    *("errors", "reason", "title", "code", "type"),
)
#: status -> kind; of other statuses, 5xx is "failed" and 4xx "refused"
_KINDS: Final[Mapping[int, FailureKind]] = {
    **dict.fromkeys((401, 402, 403, 404), "denied"),
    **dict.fromkeys((408, 504), "timeout"),
    429: "limited",
}
#: failures of status 4xx besides _KINDS that another attempt may change: a conflict of locks, and too early
_PASSING: Final = (409, 425)
#: names of httpx's errors: no connection was made; and it ended before the reply did, or could not be used
_UNREACHABLE: Final = frozenset({"ConnectError", "ConnectTimeout"})
_BROKEN: Final = frozenset(
    {"ReadError", "WriteError", "CloseError", "RemoteProtocolError", "LocalProtocolError", "ProxyError"}
    | {"TooManyRedirects", "UnsupportedProtocol"}
)
_HIDDEN: Final = re.compile(r"<(script|style|head)\b.*?</\1\s*>", re.IGNORECASE | re.DOTALL)
_TAG: Final = re.compile(r"<[^<>]*>?")
#: a code in words; with digits it might be a key
_CODE: Final = re.compile(r"[A-Za-z][A-Za-z_]{0,63}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """How a server failed."""

    kind: FailureKind
    #: HTTP status of the reply; None if there was no reply
    status: int | None = None
    #: seconds until the next attempt, by the server's Retry-After; None without that header
    retry_after_s: float | None = None
    #: the server's own code of the error
    code: str | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """As `Outcome.made_by` has it under FAILURE."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def name(self) -> str:
        """One word for counters: "http_" and the status, "timeout", "malformed" or "connection"."""
        if self.status is not None:
            return f"http_{self.status}"
        return {"timeout": "timeout", "unreadable": "malformed"}.get(self.kind, "connection")

    @property
    def may_pass(self) -> bool:
        """True if another attempt may succeed."""
        return self.kind not in ("unreadable", "denied", "refused") or self.status in _PASSING


class ServerFailed(ArmFailed):
    """The server of an arm failed."""

    def __init__(self, message: str, *, failure: Failure, field: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message, field=field, remedy=remedy)
        self.failure = failure


def failure_of(made_by: Mapping[str, Any]) -> Failure | None:
    """The failure of a server in an outcome's `made_by`; None if there is none."""
    facts = made_by.get(FAILURE)
    if not isinstance(facts, dict) or "kind" not in facts:
        return None
    return Failure(**{name: facts[name] for name in Failure.__dataclass_fields__ if name in facts})


def successor_of(made_by: Mapping[str, Any]) -> DecisionId | None:
    """The decision that answers in place of a failed one, by its outcome's `made_by`; None if there is none."""
    successor = made_by.get(SUCCESSOR)
    return DecisionId(successor) if isinstance(successor, str) else None


def link_of(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The FAILOVER facts of a query's `request`; {} for a decision that answers in place of no other."""
    link = request.get(FAILOVER)
    return link if isinstance(link, Mapping) else {}


def failover_facts(request: Mapping[str, Any]) -> dict[str, Any] | None:
    """The FAILOVER facts as a reply has them; None for a decision that answers in place of no other."""
    return {name: value for name, value in link_of(request).items() if name != "left"} or None


def failure_of_status(status: int, *, headers: Mapping[str, str] | None = None, body: object = None) -> Failure:
    """The failure of a reply with this status, 400 to 599. headers: by lower-case names. body: as JSON, if it is."""
    after_s = min(retry_after_s((headers or {}).get("retry-after")), LONGEST_RETRY_S)
    kind = _KINDS.get(status, "failed" if status >= 500 else "refused")
    return Failure(kind=kind, status=status, retry_after_s=after_s or None, code=_code(body))


def failure_of_error(error: Exception) -> Failure:
    """The failure that an error of httpx, or of reading a reply, stands for."""
    status = getattr(error, "status_code", None)
    if status is not None and 400 <= status < 600:
        headers = getattr(getattr(error, "response", None), "headers", None)
        return failure_of_status(status, headers=headers, body=getattr(error, "body", None))
    names = {type(each).__name__ for each in (error, error.__cause__)}
    if names & _UNREACHABLE:
        return Failure(kind="unreachable")
    if any(name.endswith(("Timeout", "TimeoutError")) for name in names):
        return Failure(kind="timeout")
    return Failure(kind="broken" if names & _BROKEN else "unreadable")


def server_message(body: object, *, depth: int = 0) -> str:
    """The words of an error in a body of any form: an object, a list, text or a page of HTML; "" if it has none."""
    if isinstance(body, str):
        text = _TAG.sub(" ", _HIDDEN.sub(" ", body)) if body.lstrip().startswith("<") else body
        return " ".join(text.split())[:_LONGEST]
    if depth > _DEEPEST:
        return ""
    parts: list[object] = list(body[:_DEEPEST]) if isinstance(body, list) else []
    if isinstance(body, Mapping):
        parts = [body.get(name) for name in _MESSAGES]
    words = (server_message(part, depth=depth + 1) for part in parts)
    return next((text for text in words if text), str(body) if isinstance(body, int) and depth else "")


def _code(body: object) -> str | None:
    """The code of an error, if it is a word."""
    body = body[0] if isinstance(body, list) and body else body
    if not isinstance(body, Mapping):
        return None
    if isinstance(body.get("error"), Mapping):
        return _code(body["error"])
    codes = (body.get(name) for name in ("code", "type"))
    return next((code for code in codes if isinstance(code, str) and _CODE.fullmatch(code)), None)
