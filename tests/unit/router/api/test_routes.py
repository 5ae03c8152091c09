"""The door of HTTP: an endpoint reads the parameters and the JSON body of its requests, and refuses what is wrong."""

import asyncio
import json
import re
from typing import Annotated
from urllib.parse import urlencode

import pytest
from fastapi import Header, Query
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from ragbandit.router.api.app import ENDPOINTS
from ragbandit.router.api.routes import Endpoints, RouteTable, table_of_port
from ragbandit.router.api.schemas.requests import RouteBody
from ragbandit.router.api.security.rules import APP, PROBE, READ_ALL, is_page
from ragbandit.shared.additions import additions
from ragbandit.shared.errors import InvalidInput
from tests.support.additions import needs

QUESTION = "Who wrote Dracula?"
JSON = "application/json"
TABLE = RouteTable(ENDPOINTS)


def replied(path, body=b"", *, kind=JSON, method="POST", query="", headers=(), table=TABLE):
    """Send an endpoint a request without a service. Returns the value of its reply."""
    endpoint, values = table.find(method, path)
    sent = [(name.encode(), value.encode()) for name, value in [("content-type", kind), *headers] if value is not None]
    scope = {"type": "http", "method": method, "path": path, "path_params": values}
    scope |= {"query_string": query.encode(), "headers": sent, "route": endpoint}

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    return asyncio.run(endpoint.reply(Request(scope, receive)))


def refusal(path, body=b"", **more) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        replied(path, body, **more)
    return caught.value


endpoints = Endpoints("Test")


@endpoints.post("/v1/{name}/echo", rule=APP)
async def echo(
    name: str,
    body: RouteBody,
    _request: Request,
    wait_s: Annotated[float | None, Query()] = None,
    own_key: Annotated[str | None, Header()] = None,
) -> JSONResponse:
    return JSONResponse({"name": name, "question": body.question, "wait_s": wait_s, "own_key": own_key})


@endpoints.get("/v1/probe", rule=PROBE)
async def probe() -> JSONResponse:
    return JSONResponse("ok")


OWN = RouteTable(endpoints.routes)


def test_an_endpoint_gets_its_parameters_and_its_body():
    """Parameters come from the path, the query and a header, converted to their types; the body is a model."""
    body = json.dumps({"question": QUESTION}).encode()
    reply = replied("/v1/a/echo", body, query="wait_s=1.5", headers=[("own-key", "k")], table=OWN)
    assert json.loads(reply.body) == {"name": "a", "question": QUESTION, "wait_s": 1.5, "own_key": "k"}
    reply = replied("/v1/a/echo", body, table=OWN)
    assert json.loads(reply.body) == {"name": "a", "question": QUESTION, "wait_s": None, "own_key": None}


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"question": QUESTION}).encode("utf-16"),
        b"\xef\xbb\xbf" + json.dumps({"question": QUESTION}).encode(),
        b'{"question": "other", "question": "Who wrote Dracula?"}',
    ],
    ids=["UTF-16", "byte order mark", "a key twice"],
)
def test_unusual_json_is_read(body):
    """A body may have any encoding of JSON; the last of two equal keys counts."""
    assert json.loads(replied("/v1/a/echo", body, table=OWN).body)["question"] == QUESTION


@pytest.mark.parametrize("kind", [JSON, "Application/JSON; charset=utf-8", "application/vnd.acme+json"])
def test_json_types(kind):
    """A body is JSON if its content type is application/json or ends in +json."""
    assert replied("/v1/a/echo", b'{"question": "x"}', kind=kind, table=OWN).status_code == 200


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "application/xml", None])
def test_another_content_type_is_refused(kind):
    """JSON without its content type, as `curl -d` sends it, is refused by the name of the header."""
    error = refusal("/v1/route", json.dumps({"question": QUESTION}).encode(), kind=kind)
    assert error.field == "content-type"
    assert (kind or "without a content type") in error.message
    assert "content-type: application/json" in error.remedy


@pytest.mark.parametrize(
    "body",
    [b"{", b'{"question": "\xff\xfe"}', b"[" * 100_000, b'{"question": 1' + b"0" * 5000 + b"}"],
    ids=["cut", "no UTF-8", "too deep", "too many digits"],
)
def test_a_body_that_is_not_json(body):
    """A body that is not JSON is 400."""
    with pytest.raises(HTTPException) as caught:
        replied("/v1/route", body)
    assert caught.value.status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "field", "wanted"),
    [
        ("/v1/route", '{"budget": {"seconds": "3"}}', "budget.seconds", 'a finite number or null, not "3"'),
        ("/v1/route", '{"budget": {"seconds": 1e400}}', "budget.seconds", "a finite number or null, not Infinity"),
        ("/v1/route", '{"budget": {"dollars": true}}', "budget.dollars", "a finite number or null, not true"),
        ("/v1/route", '{"budget": {"rounds": 1.5}}', "budget.rounds", "a whole number or null, not 1.5"),
        ("/v1/route", '{"budget": [1]}', "budget", "an object, not this list"),
        (
            "/v1/route",
            '{"context": {"a": [1]}}',
            "context.a",
            "text, a finite number, true, false, a list of texts or null, not this list",
        ),
        (
            "/v1/route",
            '{"context": {"a": NaN}}',
            "context.a",
            "text, a finite number, true, false, a list of texts or null, not NaN",
        ),
        ("/v1/route", '{"context": 7}', "context", "an object, not 7"),
        ("/v1/route", '{"messages": [7]}', "messages.0", "an object, not 7"),
        ("/v1/route", '{"arms": ["single_step", 7]}', "arms.1", "text, not 7"),
        ("/v1/route", '{"arms": "single_step"}', "arms", 'a list, not "single_step"'),
        ("/v1/route", '{"decision_id": 7}', "decision_id", "text or null, not 7"),
        ("/v1/feedback", '{"rating": "good"}', "rating", 'true, false, a finite number or null, not "good"'),
        ("/v1/feedback", '{"label": 7}', "label", "text, a list of texts or null, not 7"),
        ("/v1/feedback", '{"reward": {"is": 1}}', "reward", "a finite number or null, not this object"),
        ("/v1/outcomes", '{"steps": null}', "steps", "a finite number, not null"),
        ("/v1/outcomes", '{"cost": {"llm_calls": "1"}}', "cost.llm_calls", 'a finite number, not "1"'),
        ("/v1/outcomes", '{"status": "done"}', "status", "'answered', 'exhausted' or 'failed', not \"done\""),
        ("/v1/route/batch", '{"items": [3]}', "items.0", "an object, not 3"),
    ],
)
def test_a_wrong_type_is_refused_with_all_right_ones(path, body, field, wanted):
    """A value of a wrong type is refused once, with every accepted type and with what was sent."""
    needed = {"question": QUESTION} if path.startswith("/v1/route") else {"decision_id": "any"}
    needed = {} if path.endswith("/batch") else needed
    sent = json.dumps(needed)[:-1] + (", " if needed else "") + body[1:]
    error = refusal(path, sent.encode())
    assert (error.field, error.message) == (field, f'"{field}" must be {wanted}')
    assert error.remedy


@pytest.mark.parametrize(
    ("path", "body", "field", "message"),
    [
        ("/v1/route", b"{}", "question", '"question" is required (string)'),
        ("/v1/feedback/batch", b"{}", "items", '"items" is required (list)'),
        ("/v1/embeddings", b'{"model": "x"}', "input", '"input" is required (text or a list)'),
        ("/v1/route", b"", "body", '"body" is required (object)'),
        ("/v1/route", b"null", "body", '"body" must be an object, not null'),
        ("/v1/route", b"[1, 2]", "body", '"body" must be an object, not this list'),
        ("/v1/answer", b'{"question": "x", "wait_s": 3}', "wait_s", '"wait_s" is not a field of this request'),
    ],
)
def test_a_missing_or_unknown_field_is_named(path, body, field, message):
    """The error names the missing or unknown field."""
    error = refusal(path, body)
    assert error.field == field
    assert error.message.startswith(message)


@pytest.mark.parametrize(
    ("method", "path", "known"),
    [
        ("POST", "/v1/answer", "use stream, wait_s"),
        ("POST", "/v1/route", "in the path or the body"),
        ("GET", "/v1/status", "in the path or the body"),
    ],
)
def test_an_unknown_query_parameter_is_refused(method, path, known):
    """The error about an unknown query parameter has its name, and those that are known."""
    error = refusal(path, method=method, query=urlencode({"wait": 2}))
    assert error.field == "wait"
    assert f'"wait" is not a query parameter of {path}' in error.message
    assert known in error.remedy


def test_probes_accept_any_query_parameter():
    """Load balancers add parameters to the paths that they poll."""
    assert replied("/v1/probe", method="GET", query="nonce=1", table=OWN).status_code == 200


def test_a_value_of_a_query_parameter_is_checked():
    """A query parameter of a wrong type is refused by its name."""
    assert refusal("/v1/answer", query="wait_s=soon").field == "wait_s"
    assert refusal("/v1/label-queue", method="GET", query="n=0").field == "n"


def test_the_table_finds_the_endpoint_and_the_parameters():
    """A path without parameters is found before a pattern; an unknown path has no methods."""
    endpoint, values = TABLE.find("POST", "/v1/policies/kill")
    assert (endpoint.path, values) == ("/v1/policies/kill", {})
    endpoint, values = TABLE.find("POST", "/v1/policies/v2/promote")
    assert (endpoint.path, values) == ("/v1/policies/{name}/{verb}", {"name": "v2", "verb": "promote"})
    assert TABLE.find("GET", "/v1/models/arm/x")[1] == {"model": "arm/x"}
    assert TABLE.find("GET", "/v1/route") == (None, {})
    assert (TABLE.methods("/v1/route"), TABLE.methods("/v1/nothing")) == (["POST"], [])
    assert (
        OWN.methods("/v1/a/echo", without_names=True),
        TABLE.methods("/v1/models/x:generate", without_names=True),
    ) == (
        ["POST"],
        [],
    )


def test_each_port_has_its_own_endpoints():
    """With two ports, what apps, raters or workers call is public; both ports have the documentation."""
    for endpoint in ENDPOINTS:
        path = re.sub(r"\{[^}]*\}", "x", endpoint.path)
        ports = {
            port
            for port in ("public", "operators")
            if table_of_port(ENDPOINTS, port=port, dashboard=True).find(endpoint.method, path)[0] is endpoint
        }
        if path.startswith(("/docs", "/openapi.json")) or path == "/":
            assert ports == {"public", "operators"}, path
        elif path.startswith("/ui") or endpoint.rule.is_probe or not (endpoint.rule.roles & {"app", "rater", "worker"}):
            assert ports == {"operators"}, path
        else:
            assert ports == {"public"}, path


@needs("dashboard")
def test_pages_can_be_turned_off():
    """Without server.dashboard no port serves a page."""
    table = table_of_port(ENDPOINTS, port="all", dashboard=False)
    assert table.find("GET", "/ui") == (None, {})
    assert not table.has_pages
    assert not any(is_page(endpoint.path) for endpoint in table._patterns)
    assert table_of_port(ENDPOINTS, port="all", dashboard=True).find("GET", "/ui")[0].rule == READ_ALL


def test_only_probes_and_files_of_pages_need_no_key():
    """Everybody may call the probes, the first page, and the files of pages."""
    free = {f"{endpoint.method} {endpoint.path}" for endpoint in ENDPOINTS if endpoint.rule.roles is None}
    pages = {"GET /"} | ({"GET /ui/static/{path:path}"} if "dashboard" in additions() else set())
    assert free == {"GET /health", "GET /ready"} | pages
