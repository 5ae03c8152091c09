"""The calls of the service, each as steps that a client drives: bodies, ids, replies, and what is done without it.

Every call that writes carries an id of ours where the caller gives none, so that sending it again is the same request.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast
from urllib.parse import quote

from ragbandit.client.connection import Connection
from ragbandit.client.exchange import Call, Steps, encoded, exchange
from ragbandit.client.replies.decisions import (
    AnswerReply,
    CancellationReply,
    ClientOutcomeReply,
    ClientRouteReply,
    PendingReply,
    RecordReply,
    RouteReply,
)
from ragbandit.client.replies.errors import ErrorReply
from ragbandit.client.replies.feedback import ClientFeedbackReply, ReceiptReply
from ragbandit.client.replies.overview import OverviewReply
from ragbandit.client.replies.status import StatusReply
from ragbandit.router.errors import InvalidInput, RagBanditError

__all__ = ["Calls", "is_degraded", "new_id"]

log = logging.getLogger("ragbandit.client")

#: decision ids of a client whose service was away begin with this
_DEGRADED: Final = "degraded-"
#: own ids of callers that are remembered as degraded, so that nothing is reported for them
_REMEMBERED: Final = 10_000


def new_id() -> str:
    """A UUIDv7, as the service makes them."""
    import uuid_utils  # not needed for `import`

    return str(uuid_utils.uuid7())


def is_degraded(decision_id: str) -> bool:
    """Whether a client made this decision id because its service was away: nothing is stored under it."""
    return isinstance(decision_id, str) and decision_id.startswith(_DEGRADED)


class Calls:
    """The calls of one client. Safe to use from several threads.

    default_arm: what `route` names when the service is away; None: it raises. route_timeout_s: longest that `route`
    waits then, seconds.
    """

    def __init__(self, connection: Connection, *, default_arm: str | None, route_timeout_s: float) -> None:
        if default_arm is not None and (not isinstance(default_arm, str) or not default_arm):
            message = f'"default_arm" must be the name of an arm, not {default_arm!r:.80}'
            raise InvalidInput(message, field="default_arm", remedy="name an arm of the service")
        self.connection = connection
        self.default_arm = default_arm
        #: decisions that this client had to do without
        self.degraded = 0
        self._route_timeout_s = route_timeout_s
        self._away = False
        self._own_ids: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def route(
        self, question: str, *, decision_id: str | None, default_arm: str | None, more: Mapping[str, object]
    ) -> Steps[ClientRouteReply]:
        """Steps of POST /v1/route. default_arm: instead of the client's."""
        default = self.default_arm if default_arm is None else default_arm
        key = new_id() if decision_id is None else decision_id
        limit_s = None if default is None else min(self._route_timeout_s, self.connection.timeout_s)
        try:
            reply = yield from self._post(
                "/v1/route", {"question": question, "decision_id": key, **more}, limit_s=limit_s
            )
        except RagBanditError as error:
            if default is None or not _is_away(error) or not _allowed(default, arms=more.get("arms")):
                raise
            return self._without_service(default, key=key, own=decision_id is not None, error=error)
        with self._lock:
            self._away = False
            self._own_ids.pop(key, None)
        return cast(ClientRouteReply, reply)

    def route_batch(self, items: Sequence[Mapping[str, object]]) -> Steps[list[RouteReply | ErrorReply]]:
        """Steps of POST /v1/route/batch."""
        found = yield from self._post_items("/v1/route/batch", items, key="decision_id")
        return cast(list[RouteReply | ErrorReply], found)

    def answer(
        self,
        question: str,
        *,
        decision_id: str | None,
        wait_s: float | None,
        more: Mapping[str, object],
    ) -> Steps[AnswerReply | PendingReply]:
        """Steps of POST /v1/answer."""
        call = self.answer_call(question, decision_id=decision_id, wait_s=wait_s, more=more)
        reply = _object((yield from exchange(call, connection=self.connection)), path=call.path)
        return cast(AnswerReply | PendingReply, reply)

    def answer_stream(
        self, question: str, *, decision_id: str | None, wait_s: float | None, more: Mapping[str, object]
    ) -> Steps[Any]:
        """Steps that open POST /v1/answer?stream=true: the open reply of httpx."""
        call = self.answer_call(question, decision_id=decision_id, wait_s=wait_s, more=more)
        params = {**(call.params or {}), "stream": "true"}
        return (yield from exchange(replace(call, params=params, stream=True), connection=self.connection))

    def answer_call(
        self, question: str, *, decision_id: str | None, wait_s: float | None, more: Mapping[str, object]
    ) -> Call:
        """POST /v1/answer."""
        if wait_s is not None and (not isinstance(wait_s, int | float) or isinstance(wait_s, bool)):
            raise InvalidInput(f'"wait_s" must be a number, not {wait_s!r:.80}', field="wait_s", remedy="pass seconds")
        body = {"question": question, "decision_id": new_id() if decision_id is None else decision_id, **more}
        return Call(
            method="POST",
            path="/v1/answer",
            params=None if wait_s is None else {"wait_s": wait_s},
            body=encoded(_sent(body)),
            limit_s=self.connection.timeout_s + (wait_s or 0.0),
        )

    def outcome(self, decision_id: str, *, body: Mapping[str, object]) -> Steps[ClientOutcomeReply]:
        """Steps of POST /v1/outcomes; none for a degraded decision."""
        if self.is_degraded(decision_id):
            return ClientOutcomeReply(decision_id=decision_id, duplicate=False, degraded=True)
        reply = yield from self._post("/v1/outcomes", {"decision_id": decision_id, **body})
        return cast(ClientOutcomeReply, reply)

    def feedback(self, decision_id: str, *, body: Mapping[str, object]) -> Steps[ClientFeedbackReply]:
        """Steps of POST /v1/feedback; none for a degraded decision."""
        key = body.get("feedback_id")
        key = new_id() if key is None else key
        if self.is_degraded(decision_id):
            return _not_sent(key)
        reply = yield from self._post("/v1/feedback", {**body, "decision_id": decision_id, "feedback_id": key})
        return cast(ClientFeedbackReply, reply)

    def feedback_batch(self, items: Sequence[Mapping[str, object]]) -> Steps[list[ReceiptReply | ErrorReply]]:
        """Steps of POST /v1/feedback/batch; what judges degraded decisions is not sent."""
        given = _listed(items, path="/v1/feedback")
        sent = [item for item in given if not self.is_degraded(cast(str, item.get("decision_id")))]
        found = iter((yield from self._post_items("/v1/feedback/batch", sent, key="feedback_id")) if sent else ())
        replies = [
            _not_sent(item.get("feedback_id") or new_id())
            if self.is_degraded(cast(str, item.get("decision_id")))
            else next(found)
            for item in given
        ]
        return cast(list[ReceiptReply | ErrorReply], replies)

    def decision(self, decision_id: str) -> Steps[RecordReply]:
        """Steps of GET /v1/decisions/{id}."""
        return cast(RecordReply, (yield from self._get(f"/v1/decisions/{_quoted(decision_id)}")))

    def cancel(self, decision_id: str) -> Steps[CancellationReply]:
        """Steps of POST /v1/decisions/{id}/cancel."""
        return cast(CancellationReply, (yield from self._post(f"/v1/decisions/{_quoted(decision_id)}/cancel", {})))

    def status(self) -> Steps[StatusReply]:
        """Steps of GET /v1/status."""
        return cast(StatusReply, (yield from self._get("/v1/status")))

    def overview(self, *, since: float | None, until: float | None, step: int) -> Steps[OverviewReply]:
        """Steps of GET /v1/overview."""
        times = {"since": since, "until": until}
        given = "".join(f"&{name}={value!r}" for name, value in times.items() if value is not None)
        return cast(OverviewReply, (yield from self._get(f"/v1/overview?step={step}{given}")))

    def is_degraded(self, decision_id: str) -> bool:
        """Whether this decision was made by this client, or by another, because the service was away."""
        with self._lock:
            return is_degraded(decision_id) or (isinstance(decision_id, str) and decision_id in self._own_ids)

    def _without_service(self, arm: str, *, key: str, own: bool, error: RagBanditError) -> ClientRouteReply:
        with self._lock:
            self.degraded += 1
            said, self._away = self._away, True
            if own:  # it may be reported under the caller's id, which the service may know under another arm
                self._own_ids[key] = None
                while len(self._own_ids) > _REMEMBERED:
                    self._own_ids.popitem(last=False)
        if not said:  # once an outage
            log.warning("routing by default_arm %r, nothing is learned: %s", arm, error)
        return ClientRouteReply(
            decision_id=f"{_DEGRADED}{key}",
            arm=arm,
            propensity=1.0,
            pmf={arm: 1.0},
            scores=None,
            policy="",
            version="",
            explored=False,
            fault=f"the service was away: {error.message}",
            route_ms=0.0,
            degraded=True,
        )

    def _get(self, path: str) -> Steps[dict[str, Any]]:
        return _object((yield from exchange(Call(method="GET", path=path), connection=self.connection)), path=path)

    def _post(self, path: str, body: Mapping[str, object], *, limit_s: float | None = None) -> Steps[dict[str, Any]]:
        call = Call(method="POST", path=path, body=encoded(_sent(body)), limit_s=limit_s)
        return _object((yield from exchange(call, connection=self.connection)), path=path)

    def _post_items(self, path: str, items: Sequence[Mapping[str, object]], *, key: str) -> Steps[list[dict[str, Any]]]:
        sent = [{key: new_id(), **_sent(item)} for item in _listed(items, path=path.removesuffix("/batch"))]
        found = (yield from self._post(path, {"items": sent})).get("items")
        if not isinstance(found, list) or len(found) != len(sent):
            raise RagBanditError(f"{path} did not reply with one entry per item")
        return found


def _listed(items: Sequence[Mapping[str, object]], *, path: str) -> list[dict[str, object]]:
    try:
        return [dict(item) for item in items]
    except (TypeError, ValueError) as error:
        remedy = f"pass a list of dicts, each as the body of {path}"
        raise InvalidInput('"items" must be a list of mappings', field="items", remedy=remedy) from error


def _object(reply: object, *, path: str) -> dict[str, Any]:
    if not isinstance(reply, dict):
        remedy = "check that the URL is that of the service"
        raise RagBanditError(f"{path} did not reply with a JSON object", remedy=remedy)
    return reply


def _not_sent(feedback_id: object) -> ClientFeedbackReply:
    return ClientFeedbackReply(
        feedback_id=str(feedback_id), duplicate=False, late=False, waiting_for=None, degraded=True
    )


def _allowed(arm: str, *, arms: object) -> bool:
    return not isinstance(arms, list | tuple) or arm in arms


def _is_away(error: RagBanditError) -> bool:
    """Whether the service cannot serve, and not: it refused this request."""
    return error.status >= 500 or error.status == 429


def _sent(body: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in body.items() if value is not None}


def _quoted(decision_id: object) -> str:
    if not isinstance(decision_id, str):
        message = f'"decision_id" must be text, not {type(decision_id).__name__}'
        raise InvalidInput(message, field="decision_id", remedy="pass the decision id that route or answer gave")
    return quote(decision_id, safe="")
