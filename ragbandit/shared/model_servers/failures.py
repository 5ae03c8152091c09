"""Failures of model servers, as arms raise them and outcomes store them."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.texts.redaction import without_keys
from ragbandit.shared.types import DecisionId

#: unreachable: no connection. broken: the connection ended before the reply. unreadable: the reply has an invalid form.
#: timeout: no reply in time. limited: status 429. failed: status 5xx. denied: the arm's key, model or address is wrong,
#: or its quota is used up. refused: the request is wrong, or the arm is unable to answer it (see `Failure.inability`)
FailureKind = Literal["unreachable", "broken", "timeout", "limited", "failed", "unreadable", "denied", "refused"]
#: context: the prompt, perhaps with its answer, does not fit the model. limit: the answer may have fewer tokens.
#: parameter: the server does not support a parameter of the request. form: it does not support a kind of message, part
#: or tool, or a request of this size. model: it does not have the model
Inability = Literal["context", "limit", "parameter", "form", "model"]
#: sign that a server no longer has the model. named: status 410, the server's own code, or words with the model's name.
#: words: only words about some model, which may repeat what a caller wrote
GoneSign = Literal["named", "words"]

#: key in the `made_by` of a failed outcome; the value is `Failure.facts`
FAILURE: Final = "failure"
#: key in the `made_by` of a failed outcome; the value is the id of the decision that answers the question instead
SUCCESSOR: Final = "successor"
#: reason of a failover because the first arm was unable to answer this request
UNABLE: Final = "unable"
#: statuses of servers that are overloaded, or still load their model
_OVERLOADED: Final = (498, 503, 529)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A failure of a model server."""

    kind: FailureKind
    #: HTTP status; None without a reply
    status: int | None = None
    #: seconds that the reply asks its client to wait; None if it asks for none
    retry_after_s: float | None = None
    code: str | None = None
    #: parameter of the request that the server names
    param: str | None = None
    gone: GoneSign | None = None
    #: why the arm is unable to answer a refused request; None if the request is wrong for every arm
    inability: Inability | None = None
    #: tokens of the prompt, and most tokens that the model takes ("context") or writes ("limit"); None if unknown
    tokens: int | None = None
    most_tokens: int | None = None

    def without_keys(self, secrets: Iterable[str]) -> "Failure":
        """The failure without a `code` or `param` that contains a key or one of these secrets."""
        known = [*secrets]
        code, param = (
            None if text is None or without_keys(text, secrets=known) != text else text
            for text in (self.code, self.param)
        )
        return replace(self, code=code, param=param)

    @property
    def is_unable(self) -> bool:
        """Whether the arm is unable to answer this request, which another arm may be able to answer."""
        return self.kind == "refused" and self.inability is not None

    @property
    def is_overload(self) -> bool:
        """Whether the server has too much to do, so that the same request may succeed later."""
        return self.kind == "failed" and (self.status in _OVERLOADED or "overload" in (self.code or "").lower())

    @property
    def reason(self) -> str:
        """Why another arm is asked: UNABLE, or the kind of the failure."""
        return UNABLE if self.is_unable else self.kind

    @property
    def has_no_quota(self) -> bool:
        """Whether the quota of the arm's key is used up, so that waiting does not help."""
        return self.kind == "denied" and self.status == 429

    @property
    def facts(self) -> dict[str, Any]:
        """The fields that are not None, as stored in `Outcome.made_by`."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def name(self) -> str:
        """A name for counters: "http_" and the status, "timeout", "malformed" or "connection"."""
        if self.status is not None:
            return f"http_{self.status}"
        return {"timeout": "timeout", "unreadable": "malformed"}.get(self.kind, "connection")

    @property
    def may_pass(self) -> bool:
        """Whether another attempt may succeed."""
        # Status 409 is a conflict of locks: another attempt may succeed.
        return self.kind not in ("unreadable", "denied", "refused") or self.status == 409


class ServerFailed(ArmFailed):
    """The model server of an arm failed."""

    def __init__(self, message: str, *, failure: Failure, field: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message, field=field, remedy=remedy)
        self.failure = failure


def failure_of(made_by: Mapping[str, Any]) -> Failure | None:
    """The failure of a server in an outcome's `made_by`; None if no server failed."""
    fields = made_by.get(FAILURE)
    if not isinstance(fields, dict) or "kind" not in fields:
        return None
    return Failure(**{name: fields[name] for name in Failure.__dataclass_fields__ if name in fields})


def successor_of(made_by: Mapping[str, Any]) -> DecisionId | None:
    """Id of the decision that answers instead, in the `made_by` of a failed outcome; None if no decision does."""
    successor = made_by.get(SUCCESSOR)
    return DecisionId(successor) if isinstance(successor, str) else None
