"""Check of the contract of interfaces over HTTP. It needs no test framework, no model and no Redis.

    def test_mine():
        check_door(DOOR, bodies={"POST /v1/arms": {"names": ["first"]}})

It raises AssertionError if the door breaks the contract.
"""

import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from unittest.mock import patch
from urllib.parse import quote

from starlette.testclient import TestClient

from ragbandit.router.api import app as service
from ragbandit.router.api.door import Door
from ragbandit.router.api.doors import DOORS, door_of
from ragbandit.router.api.routes import Endpoint
from ragbandit.router.api.schemas.question_headers import PREVIEW
from ragbandit.router.config.settings import Settings
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.access.api_keys import ROLES, KeyStore
from ragbandit.shared.types import Json, Role
from ragbandit.testing.damages import damaged_records

_USUAL: Final[Mapping[str, Json]] = {
    "arms": {"first": {"class": "no_retrieval"}, "second": {"class": "no_retrieval"}},
    "encoder": {"model": "hashing"},
}
#: body of a chat completion without parts of another interface's form
_CHAT: Final[Mapping[str, Json]] = {
    "messages": [{"role": "user", "content": "Hi"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
}
#: limit of all bodies, bytes
_LARGEST: Final = 16_384
#: bodies that no endpoint can read, and bodies of other types than an object
_BROKEN: Final = (b"", b"{", b'{"a": 1}{', b"\xff\xfe", b"[" * 5000, b'{"a": NaN}')
_ODD: Final = (b"[]", b"null", b"1", b'"text"', b'{"\\ud800": "\\ud800"}', b"{}")
#: values of a parameter in a path
_NAMES: Final = ("none", "%00", "%F0%9F%98%80", "..%2F..", "x" * 300, "%C0%80", "a%0Ab", "0")
#: values of a parameter of the query, and of a header
_VALUES: Final = ("", "none", "-1", "1e400", "NaN", "2026-13-45", "%00", "%F0%9F%98%80", "%C0%80", "x" * 300, "a&a=b")
_HEADERS: Final = ("", "none", "-1", "\xe9\x80", "x" * 300)
#: maximum number of damaged copies of a body that are sent
_MOST_DAMAGED: Final = 40
#: steps from one damaged copy to the next one that is sent. None shares a factor with the number of damages of a field,
#: so that every kind of damage is sent
_STEPS: Final = (1, 5, 7, 11, 13, 17, 19, 23, 25, 29, 31, 35, 37)


def check_door(
    door: Door,
    *,
    bodies: Mapping[str, Mapping[str, Json]] | None = None,
    values: Mapping[str, str] | None = None,
    settings: Mapping[str, Json] | None = None,
) -> None:
    """Serves the door together with the others of this tree, and sends requests to its endpoints.

    bodies: "POST /v1/arms" -> a body that the endpoint takes, if its schema has no example; each field is damaged.
    values: name of a parameter in a path -> a value that exists. settings: keys of the configuration that the door
    needs.
    """
    with _serve(door, settings=settings or {}) as served:
        _check_places(door)
        assert door.in_chat_form(_CHAT) == (_CHAT, []), "`in_chat_form` changes the body of a chat completion"
        for endpoint in _endpoints(door):
            call = _Call(served=served, door=door, endpoint=endpoint, path=_path_of(endpoint, values or {}))
            call.check_shape()
            call.check_keys()
            call.check_unknown()
            call.check_names()
            call.check_parameters()
            if endpoint.method == "POST":
                call.check_size()
                call.check_odd_bodies()
                call.check_body((bodies or {}).get(f"{endpoint.method} {endpoint.path}"))
        _check_documents([one for one in _endpoints(door) if one.include_in_schema], app=served.app)


@dataclass(kw_only=True)
class _Served:
    """A service with keys of every role."""

    app: service.Service
    client: TestClient
    #: role -> headers with a key of this role
    keys: Mapping[Role, Mapping[str, str]]
    #: makes headers with a new key of a role that may send one request an hour
    slow: Callable[[str], Mapping[str, str]]


@contextmanager
def _serve(door: Door, *, settings: Mapping[str, Json]) -> Iterator[_Served]:
    """A running service with the door, which no addition needs to offer yet. Resources of the door are closed."""
    with ExitStack() as stack:
        if not any(door is known for known in DOORS.values()):
            places = sorted([*DOORS.items(), ("checked", door)], key=lambda item: item[1].place)
            stack.enter_context(patch.dict(DOORS, dict(places), clear=True))
            stack.enter_context(patch.object(service, "ENDPOINTS", (*service.ENDPOINTS, *_endpoints(door))))
        [name] = [name for name, known in DOORS.items() if known is door]
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        limits = dict.fromkeys(("max_body_bytes", "max_batch_bytes", "max_chat_bytes"), _LARGEST)
        given = Settings.model_validate({**_USUAL, "server": limits, **settings, "data_dir": folder})
        app = service.create_app(lambda: Router.open(given, jobs=MemoryJobs()))
        with _client(app) as client:
            opened, closed = app.state.opened.get(name), list[object]()
            if opened is not None:
                stack.enter_context(_record_closes(type(opened), closed))
                with _client(service.operators_app(app)):  # the second port has an event loop of its own
                    pass
            yield _with_keys(app, client=client)
        if opened is not None:
            count = len({*map(id, closed)})
            assert count == 2, f"`open` was called for 2 event loops, and {count} of what it returned was closed"


def _client(app: service.Service) -> TestClient:
    return TestClient(app, base_url="http://127.0.0.1", follow_redirects=False)


@contextmanager
def _record_closes(kind: Any, closed: list[object]) -> Iterator[None]:
    close = kind.close

    async def noted(opened: object) -> None:
        try:
            await close(opened)
        except Exception as error:
            raise AssertionError(f"what `open` returned cannot be closed: {error!r}") from error
        closed.append(opened)

    with patch.object(kind, "close", noted):
        yield


def _with_keys(app: service.Service, *, client: TestClient) -> _Served:
    keys = KeyStore(app.state.router.database)

    def headers(role: str, **more: Any) -> Mapping[str, str]:
        key = keys.create(name=f"a {role}", role=role, now=time.time(), actor="cli:check", **more)
        return {"authorization": f"Bearer {key.text}"}

    by_role = {role: headers(role) for role in ROLES}
    served = _Served(app=app, client=client, keys=by_role, slow=partial(headers, scopes={"rate": "1/hour"}))
    app.state.gate.ring.known = None  # the service checks the keys again
    return served


def _endpoints(door: Door) -> Iterator[Endpoint]:
    for endpoints in door.endpoints:
        yield from endpoints.routes


def _path_of(endpoint: Endpoint, values: Mapping[str, str]) -> str:
    return re.sub(r"{(\w+)(?::\w+)?}", lambda name: quote(values.get(name[1], "none"), safe="/"), endpoint.path)


def _check_places(door: Door) -> None:
    """Each path has one endpoint, and each pattern a remedy."""
    same = [name for name, other in DOORS.items() if other.place == door.place]
    assert len(same) == 1, f"the doors {', '.join(same)} stand at one place, {door.place}"
    served = [(endpoint.method, endpoint.path) for endpoint in service.ENDPOINTS]
    for endpoint in _endpoints(door):
        count = served.count((endpoint.method, endpoint.path))
        assert count == 1, f"{endpoint.method} {endpoint.path} has {count} endpoints"
    for pattern, remedy in door.instead.items():
        assert re.compile(pattern), f"no pattern: {pattern!r}"
        assert remedy.strip(), f"`instead` has no remedy for {pattern!r}"


def _check_documents(endpoints: Sequence[Endpoint], *, app: service.Service) -> None:
    """/openapi.json has each endpoint with a tag: what it does, and its errors."""
    paths = app.openapi()["paths"] if endpoints else {}  # it takes a third of a second
    for endpoint in endpoints:
        name = f"{endpoint.method} {endpoint.path}"
        shown = paths.get(re.sub(r":\w+}", "}", endpoint.path), {}).get(endpoint.method.lower())
        assert shown is not None, f"/openapi.json lacks {name}"
        assert endpoint.summary, f"{name} has no summary in /openapi.json"
        assert shown.get("description"), f"{name} has no description in /openapi.json: give its function a docstring"
        errors = [status for status in shown["responses"] if status.startswith("4")]
        assert errors, f"{name} has no errors in /openapi.json"


@dataclass(kw_only=True)
class _Call:
    """Requests to one endpoint, and the form of its errors."""

    served: _Served
    door: Door
    endpoint: Endpoint
    path: str
    #: the form of the first error
    form: tuple[str, Any] | None = None

    @property
    def name(self) -> str:
        return f"{self.endpoint.method} {self.endpoint.path}"

    def send(
        self,
        *,
        method: str = "",
        path: str = "",
        content: bytes | None = None,
        kind: str = "application/json",
        key: Mapping[str, str] | None = None,
    ) -> Any:
        """The reply to a request. key: the header with the key; None for an admin's. A question asks for a preview."""
        sends = dict(self.served.keys["admin"] if key is None else key)
        sends |= {PREVIEW: "true"} if self.endpoint.rule.asks and not method else {}
        sends |= {"content-type": kind} if content is not None else {}
        method = method or self.endpoint.method
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in sends.items()]
        return self.served.client.request(method, path or self.path, content=content, headers=encoded)

    def check_refused(self, reply: Any, *statuses: int, case: str) -> None:
        """Asserts that the reply is an error with one of these statuses, in the form of the door."""
        assert reply.status_code in statuses, f"{self.name} {case}: {reply.status_code} {reply.text:.200}"
        self.check_error(reply, case=case)

    def check_error(self, reply: Any, *, case: str) -> None:
        if reply.status_code < 400:
            return
        assert reply.status_code != 500, f"{self.name} {case} failed: {reply.text:.300}"
        form = _error_form(reply)
        self.form = self.form or form
        assert _is_like(form, self.form), f"{self.name} {case}: an error has the form {form}, others {self.form}"

    def check_shape(self) -> None:
        """The errors of the door have its own form: it speaks for the path of its endpoint."""
        if self.door.error is None:
            return
        scope = {"type": "http", "method": self.endpoint.method, "path": self.path, "headers": [], "query_string": b""}
        assert door_of({**scope, "app": self.served.app}) is self.door, f"`speaks` is False for {self.path}"

    def check_keys(self) -> None:
        """The request is refused without a key, with a key of another role, and beyond the rate."""
        roles = self.endpoint.rule.roles
        if roles is None:
            return
        self.check_refused(self.send(key={}), 401, case="without a key")
        self.check_refused(self.send(key={"authorization": "Bearer none"}), 401, case="with a wrong key")
        for role in {*ROLES} - roles:
            self.check_refused(self.send(key=self.served.keys[role]), 403, case=f"with a key of the role {role}")
        if not self.endpoint.rule.is_probe:
            slow = self.served.slow("admin")
            self.served.app.state.gate.ring.known = None
            self.send(key=slow)
            reply = self.send(key=slow)
            self.check_refused(reply, 429, case="above the rate of its key")
            assert reply.headers.get("retry-after"), f"{self.name} has no Retry-After in a 429"

    def check_unknown(self) -> None:
        """A path below the endpoint's path, and another method, are refused."""
        below, routes = f"{self.path}/no/such/path", self.served.app.state.routes
        if routes.find("GET", below)[0] is None:
            reply = self.send(method="GET", path=below)
            assert reply.status_code in (404, 405), f"GET {below}: {reply.status_code}"
        if routes.find("PUT", self.path)[0] is None:
            reply = self.send(method="PUT")
            self.check_refused(reply, 405, case="called by PUT")
            assert self.endpoint.method in reply.headers.get("allow", ""), f"a 405 of {self.path} does not allow it"

    def check_names(self) -> None:
        """Any text may stand in the path."""
        for name in _NAMES if "{" in self.endpoint.path else ():
            path = re.sub(r"{[^}]*}", name, self.endpoint.path)
            if self.endpoint.path_regex.match(path):
                self.check_error(self.send(path=path), case=f"at {path:.80}")

    def check_parameters(self) -> None:
        """Any text may be the value of a parameter of the query, or of a header that the endpoint reads."""
        for parameter in self.endpoint.dependant.query_params:
            for value in _VALUES:
                path = f"{self.path}?{parameter.alias}={value}"
                self.check_error(self.send(path=path), case=f"with the query {parameter.alias}={value:.80}")
        for parameter in self.endpoint.dependant.header_params:
            for value in _HEADERS:
                key = {**self.served.keys["admin"], parameter.alias: value}
                self.check_error(self.send(key=key), case=f"with the header {parameter.alias}: {value:.80}")

    def check_size(self) -> None:
        body = json.dumps({"text": "x" * _LARGEST}).encode()
        if self.endpoint.body_field is not None:
            self.check_refused(self.send(content=body), 413, case="with a large body")

    def check_odd_bodies(self) -> None:
        """Texts that are not JSON, and JSON of other types, are refused as faults of the caller."""
        statuses = range(400, 500) if self.endpoint.body_field is not None else range(200, 500)
        for body in _BROKEN:
            reply = self.send(content=body)
            assert reply.status_code in statuses, f"{self.name} with the body {body!r:.60}: {reply.status_code}"
            self.check_error(reply, case=f"with the body {body!r:.60}")
        for body in _ODD:
            self.check_error(self.send(content=body), case=f"with the body {body!r:.60}")
        reply = self.send(content=b"{}", kind="text/plain")
        self.check_error(reply, case="with a body of another type")

    def check_body(self, given: Mapping[str, Json] | None) -> None:
        """The body is taken; each damaged body is taken, or refused in the door's form."""
        body = given or _example(self.endpoint)
        if body is None:
            return
        reply = self.send(content=json.dumps(body).encode())
        is_taken = reply.status_code < 400 or given is None  # an example may name what no store has
        assert is_taken, f"{self.name} does not take its body: {reply.status_code} {reply.text:.300}"
        damages = [*damaged_records(body)]
        step = next((step for step in _STEPS if len(damages) <= step * _MOST_DAMAGED), _STEPS[-1])
        for damaged in damages[::step]:
            reply = self.send(content=json.dumps(damaged).encode())
            self.check_error(reply, case=f"with the body {json.dumps(damaged):.300}")


def _example(endpoint: Endpoint) -> Mapping[str, Any] | None:
    """The example of a body in /openapi.json, which /docs offers to send; None if the endpoint reads no body."""
    if endpoint.body_field is None:
        return None
    schema: dict[str, Any] = endpoint.body_field.field_info.annotation.model_json_schema()  # type: ignore[union-attr]
    example: Mapping[str, Any] | None = schema.get("example") or next(iter(schema.get("examples", ())), None)
    assert example, f"{endpoint.method} {endpoint.path} takes a body: give one in `bodies`, or an example in its schema"
    return example


def _error_form(reply: Any) -> tuple[str, Any]:
    """Returns (media type, names of the fields of a JSON object -> names of the fields of an inner object)."""
    media = reply.headers.get("content-type", "").partition(";")[0]
    if not media.endswith("json"):
        return media, None
    value = reply.json()
    if not isinstance(value, dict):
        return media, type(value).__name__
    return media, {name: {*inner} if isinstance(inner, dict) else None for name, inner in value.items()}


def _is_like(form: tuple[str, Any], other: tuple[str, Any]) -> bool:
    """Whether two errors have one form; an inner object may have more fields than the other."""
    if form[0] != other[0] or not isinstance(form[1], dict) or not isinstance(other[1], dict):
        return form == other
    if form[1].keys() != other[1].keys():
        return False
    pairs = [(inner, other[1][name]) for name, inner in form[1].items()]
    return all(one is None or two is None or one <= two or two <= one for one, two in pairs)
