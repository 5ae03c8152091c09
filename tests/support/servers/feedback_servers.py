"""Twins of the HTTP APIs that feedback is imported from: real servers with the shapes and faults of the originals.

Langfuse `GET /api/public/v3/scores` (langfuse 5.0.4), LangSmith `GET /feedback` (langsmith 0.14.17), Phoenix
`GET /v1/projects/{p}/span_annotations` (arize-phoenix-client 3.5.0), Open WebUI `GET /api/v1/evaluations/feedbacks/...`
(0.12.4). Entries are kept in `entries`, which a test changes between two imports; `faults` are replies that come first.
"""

import base64
import json
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self
from urllib.parse import parse_qs, urlsplit

#: what no importer may keep, and no log show
SECRET = "Zygmunt-Przybylski"
KEY = "the-key-of-a-test"


def date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


class Twin:
    """A server on a free port of 127.0.0.1. A subclass answers in `reply`."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        #: replies to the next requests: (status, headers, body), a number of seconds to wait, or None for a good one
        self.faults: list[Any] = []
        self.requests: list[tuple[str, dict[str, list[str]]]] = []
        #: called before each good reply, with the number of the request
        self.meanwhile = lambda number: None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def known(self, headers: Any) -> bool:
        """Whether the request has the right key."""
        return headers.get("authorization") == f"Bearer {KEY}"

    def reply(self, path: str, asked: dict[str, list[str]]) -> tuple[int, Any]:
        raise NotImplementedError

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        twin = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                asked = parse_qs(parts.query)
                twin.requests.append((parts.path, asked))
                fault = twin.faults.pop(0) if twin.faults else None
                if isinstance(fault, float):
                    time.sleep(fault)
                    fault = None
                if fault is not None:
                    return self._send(*fault)
                if not twin.known(self.headers):
                    return self._send(401, {}, b'{"detail": "who are you?"}')
                twin.meanwhile(len(twin.requests))
                status, body = twin.reply(parts.path, asked)
                return self._send(status, {"content-type": "application/json"}, json.dumps(body).encode())

            def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


class LangfuseTwin(Twin):
    """Scores, the newest first; an opaque cursor."""

    environment: ClassVar = {"LANGFUSE_PUBLIC_KEY": "pk-lf-1", "LANGFUSE_SECRET_KEY": KEY}
    #: None: as many as are asked for
    page: int | None = None
    #: cursors given before are not taken any more
    forgetful = False

    def known(self, headers: Any) -> bool:
        told = base64.b64encode(f"pk-lf-1:{KEY}".encode()).decode()
        return headers.get("authorization") == f"Basic {told}"

    def add(
        self, identity: str, /, *, at: float, value: Any = True, trace: str | None = None, **more: Any
    ) -> dict[str, Any]:
        entry = {
            "id": identity,
            "projectId": "p1",
            "name": "user-feedback",
            "value": value,
            "dataType": "BOOLEAN",
            "source": "API",
            "timestamp": date(at),
            "environment": "default",
            "createdAt": date(at),
            "updatedAt": date(at),
            "comment": f"said {SECRET}",
            "subject": None if trace is None else {"kind": "trace", "id": trace},
        }
        self.entries.append(entry | more)
        return self.entries[-1]

    def reply(self, path: str, asked: dict[str, list[str]]) -> tuple[int, Any]:
        if path != "/api/public/v3/scores":
            return 404, {"message": "no such route"}
        limit = int(asked.get("limit", ["50"])[0])
        if limit > 100:
            return 400, {"message": "limit"}
        found = sorted(self.entries, key=lambda one: (one["timestamp"], str(one["id"])), reverse=True)
        if "id" in asked:
            found = [one for one in found if one["id"] in asked["id"][0].split(",")]
        if "fromTimestamp" in asked:
            found = [one for one in found if seconds(one["timestamp"]) >= seconds(asked["fromTimestamp"][0])]
        if "toTimestamp" in asked:
            found = [one for one in found if seconds(one["timestamp"]) < seconds(asked["toTimestamp"][0])]
        begin = 0
        if "cursor" in asked:
            if self.forgetful:
                self.forgetful = False
                return 400, {"message": "invalid cursor"}
            begin = json.loads(base64.urlsafe_b64decode(asked["cursor"][0]))
        end = begin + (self.page or limit)
        fields = asked.get("fields", [""])[0].split(",")
        hidden = {"subject": "subject", "authorUserId": "annotation", "comment": "details"}
        shown = [
            {name: value for name, value in one.items() if name not in hidden or hidden[name] in fields}
            for one in found[begin:end]
        ]
        meta: dict[str, Any] = {"limit": limit}
        if end < len(found):
            meta["cursor"] = base64.urlsafe_b64encode(json.dumps(end).encode()).decode()
        return 200, {"data": shown, "meta": meta}


class LangSmithTwin(Twin):
    """Feedback, the newest first, by offset."""

    environment: ClassVar = {"LANGSMITH_API_KEY": KEY}

    def known(self, headers: Any) -> bool:
        return headers.get("x-api-key") == KEY

    def add(
        self, identity: str, /, *, at: float, score: Any = 1.0, run: str | None = None, **more: Any
    ) -> dict[str, Any]:
        entry = {
            "id": identity,
            "created_at": date(at),
            "modified_at": date(at),
            "run_id": run,
            "trace_id": run,
            "key": "stars",
            "score": score,
            "value": None,
            "comment": f"said {SECRET}",
            "correction": None,
            "feedback_source": {"type": "app", "metadata": {}, "user_id": "u-1", "user_name": SECRET},
        }
        self.entries.append(entry | more)
        return self.entries[-1]

    def reply(self, path: str, asked: dict[str, list[str]]) -> tuple[int, Any]:
        if path.startswith("/feedback/"):
            found = [one for one in self.entries if one["id"] == path.removeprefix("/feedback/")]
            return (200, found[0]) if found else (404, {"detail": "not found"})
        if path != "/feedback":
            return 404, {"detail": "no such route"}
        found = sorted(self.entries, key=lambda one: (one["created_at"], str(one["id"])), reverse=True)
        low, high = seconds(asked["min_created_at"][0]), seconds(asked["max_created_at"][0])
        found = [one for one in found if low <= seconds(one["created_at"]) <= high]
        begin = int(asked["offset"][0])
        return 200, found[begin : begin + min(100, int(asked["limit"][0]))]


class PhoenixTwin(Twin):
    """Annotations of the spans that are asked for."""

    environment: ClassVar = {"PHOENIX_API_KEY": KEY}
    page = 1000

    def add(self, identity: str, /, *, at: float, span: str, score: float | None = 1.0, **more: Any) -> dict[str, Any]:
        entry = {
            "id": identity,
            "name": "helpful",
            "annotator_kind": "HUMAN",
            "span_id": span,
            "result": {"score": score, "label": None, "explanation": f"said {SECRET}"},
            "metadata": {},
            "identifier": "",
            "created_at": date(at),
            "updated_at": date(at),
            "source": "APP",
            "user_id": "u-1",
        }
        self.entries.append(entry | more)
        return self.entries[-1]

    def reply(self, path: str, asked: dict[str, list[str]]) -> tuple[int, Any]:
        if path != "/v1/projects/my%20project/span_annotations":
            return 404, {"detail": "no such project"}
        if len(asked["span_ids"]) > 100:
            return 422, {"detail": "too many"}
        found = [one for one in self.entries if one["span_id"] in asked["span_ids"]]
        begin = int(asked.get("cursor", ["0"])[0])
        end = begin + min(self.page, int(asked["limit"][0]))
        return 200, {"data": found[begin:end], "next_cursor": str(end) if end < len(found) else None}


class OpenWebUiTwin(Twin):
    """Ratings of the administrator's list, 30 a page."""

    environment: ClassVar = {"OPENWEBUI_API_KEY": KEY}

    def add(
        self, identity: str, /, *, at: float, rating: Any = 1, message: str | None = None, **more: Any
    ) -> dict[str, Any]:
        entry = {
            "id": identity,
            "user_id": "u-1",
            "version": 0,
            "type": "rating",
            "data": {"rating": rating, "reason": "", "comment": f"said {SECRET}", "model_id": "auto"},
            "meta": {"arena": False, "model_id": "auto", "message_id": message, "chat_id": "c-1"},
            "created_at": int(at),
            "updated_at": int(at),
            "user": {"id": "u-1", "name": SECRET, "email": f"{SECRET}@example.com", "role": "user"},
        }
        self.entries.append(entry | more)
        return self.entries[-1]

    def reply(self, path: str, asked: dict[str, list[str]]) -> tuple[int, Any]:
        base = "/api/v1/evaluations/feedbacks"
        if path == f"{base}/all/ids":
            names = ("id", "user_id", "created_at", "updated_at")
            return 200, [{name: one[name] for name in names} for one in self.entries]
        if path != f"{base}/list":
            return 404, {"detail": "Not Found"}
        assert (asked["order_by"], asked["direction"]) == (["updated_at"], ["desc"])
        found = sorted(self.entries, key=lambda one: one["updated_at"], reverse=True)
        begin = 30 * (int(asked["page"][0]) - 1)
        return 200, {"items": found[begin : begin + 30], "total": len(found)}
