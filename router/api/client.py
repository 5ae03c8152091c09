"""HTTP client: needs httpx and nothing heavy. Errors come back as the classes that the service raised."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx

from ragbandit.router import errors
from ragbandit.router.errors import InvalidInput, NotReady, Overloaded, RagBanditError

__all__ = ["Client"]

_BY_CODE: dict[str, type[RagBanditError]] = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RagBanditError)
}
#: JSON objects as the service sends them
Reply = dict[str, Any]


class Client:
    """Client of one service. Safe to use from several threads.

    url: of the service. timeout_s: longest wait for any reply but an answer's. transport: for tests (httpx).
    """

    def __init__(self, url: str, *, timeout_s: float = 60.0, transport: httpx.BaseTransport | None = None) -> None:
        self._http = httpx.Client(base_url=url, timeout=timeout_s, transport=transport)
        self._timeout_s = timeout_s

    def route(self, question: str, *, decision_id: str | None = None, **more: object) -> Reply:
        """POST /v1/route. `more`: context, arms, budget, tenant as in the HTTP body."""
        return self._post("/v1/route", {"question": question, "decision_id": decision_id, **more})

    def route_batch(self, items: Sequence[Mapping[str, object]]) -> list[Reply]:
        """POST /v1/route/batch, each item as the body of /v1/route; a decision or {"error": ...} per item."""
        return self._post_items("/v1/route/batch", items)

    def answer(
        self, question: str, *, decision_id: str | None = None, wait_s: float | None = None, **more: object
    ) -> Reply:
        """POST /v1/answer; status "pending" if it takes longer than wait_s."""
        if wait_s is not None and not isinstance(wait_s, int | float):
            raise InvalidInput(f'"wait_s" must be a number, not {wait_s!r:.80}', field="wait_s", remedy="pass seconds")
        waits = None if wait_s is None else {"wait_s": wait_s}
        limit = self._timeout_s + (wait_s or 0.0)
        body = {"question": question, "decision_id": decision_id, **more}
        return self._post("/v1/answer", body, params=waits, timeout_s=limit)

    def outcome(self, decision_id: str, **body: object) -> Reply:
        """POST /v1/outcomes."""
        return self._post("/v1/outcomes", {"decision_id": decision_id, **body})

    def feedback(self, decision_id: str, **body: object) -> Reply:
        """POST /v1/feedback with one of label, rating, reward, event; and rater, source, feedback_id where known."""
        return self._post("/v1/feedback", {"decision_id": decision_id, **body})

    def feedback_batch(self, items: Sequence[Mapping[str, object]]) -> list[Reply]:
        """POST /v1/feedback/batch; a receipt or {"error": ...} per item."""
        return self._post_items("/v1/feedback/batch", items)

    def decision(self, decision_id: str) -> Reply:
        """GET /v1/decisions/{id}."""
        return self._get(f"/v1/decisions/{_quoted(decision_id)}")

    def cancel(self, decision_id: str) -> Reply:
        """POST /v1/decisions/{id}/cancel; status "pending" while a worker has still to end it."""
        return self._post(f"/v1/decisions/{_quoted(decision_id)}/cancel", {})

    def status(self) -> Reply:
        """GET /v1/status."""
        return self._get("/v1/status")

    def ready(self) -> bool:
        """True if /ready replies 200; False while nothing answers."""
        try:
            return self._http.get("/ready").status_code == 200
        except httpx.TransportError:
            return False

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _get(self, path: str) -> Reply:
        return self._reply("GET", path)

    def _post(
        self,
        path: str,
        body: Mapping[str, object],
        *,
        params: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
    ) -> Reply:
        sent = {key: value for key, value in body.items() if value is not None}
        return self._reply("POST", path, json=sent, params=params, timeout=timeout_s or self._timeout_s)

    def _post_items(self, path: str, items: Sequence[Mapping[str, object]]) -> list[Reply]:
        try:
            sent = [dict(item) for item in items]
        except (TypeError, ValueError) as error:
            remedy = f"pass a list of dicts, each as the body of {path.removesuffix('/batch')}"
            raise InvalidInput('"items" must be a list of mappings', field="items", remedy=remedy) from error
        reply = self._post(path, {"items": sent})
        return list(reply["items"])

    def _reply(self, method: str, path: str, **more: Any) -> Reply:
        try:
            request = self._http.build_request(method, path, **more)
        except (ValueError, TypeError) as error:
            message = f"the request cannot be sent as JSON: {error}"
            raise InvalidInput(
                message, remedy="send text in UTF-8, finite numbers, booleans, lists and dicts"
            ) from error
        try:
            response = self._http.send(request)
        except httpx.TransportError as error:
            raise NotReady(
                f"no service answered at {self._http.base_url}{path}: {error}",
                remedy="check the URL (on the command line --url or RAGBANDIT_URL), and that the service is running",
            ) from error
        try:
            body = response.json()
        except ValueError as error:
            raise RagBanditError(f"{path} did not reply with JSON (HTTP {response.status_code})") from error
        if response.is_error:
            reply = body.get("error", {}) if isinstance(body, dict) else {}
            kind = _BY_CODE.get(reply.get("code", ""), RagBanditError)
            told = kind(reply.get("message", str(body)), field=reply.get("field"), remedy=reply.get("remedy"))
            if isinstance(told, Overloaded) and response.headers.get("retry-after", "").isdigit():
                told.retry_after_s = float(response.headers["retry-after"])
            raise told
        return dict(body)


def _quoted(decision_id: object) -> str:
    if not isinstance(decision_id, str):
        message = f'"decision_id" must be text, not {type(decision_id).__name__}'
        raise InvalidInput(message, field="decision_id", remedy="pass the decision id that route or answer gave")
    return quote(decision_id, safe="")
