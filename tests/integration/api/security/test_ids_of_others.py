"""Ids from outside: wherever a request has the id of a row, another tenant's row is as if it did not exist."""

import re
from typing import NamedTuple

import pytest
from pydantic import BaseModel

from tests.support.additions import needs
from tests.support.servers.http_service import Keyed, worker_answers
from tests.support.servers.visitors import Visitor

#: texts of the owner's question and answer, and the ids of its rows
QUESTION, ANSWER = "Who wrote xyzzy?", "plugh"
ROW, SESSION, JUDGEMENT, RESPONSE = "acme-row", "acme-session", "acme-judgement", "resp_acme"
OTHER = {"resp_acme": "resp_none", SESSION: "no-session", JUDGEMENT: "no-judgement", ROW: "no-row"}
#: parameters of paths that name no row of a caller: parts of the configuration and files
NO_ROWS = {"model", "name", "verb", "arm", "path"}
#: fields of bodies that have the id of a row
_ID = re.compile(r"(?:^|_)id$|^item$|^session|^conversation$")
PLACES = {"{decision_id}": ROW, "{session_id:path}": SESSION, "{response_id}": RESPONSE}
ROLES = ("app", "rater", "operator", "reader", "worker")
ASKED = {"question": "Which?"}
JUDGED = {"rating": True}


class Case(NamedTuple):
    """A request. is_new: the id names what the request makes, so that it need not be unknown."""

    body: dict | None = None
    is_new: bool = False


#: (endpoint, its parameter or field) -> the request
CASES = {
    ("GET /v1/decisions/{decision_id}", "decision_id"): Case(),
    ("GET /v1/decisions/{decision_id}/explanation", "decision_id"): Case(),
    ("POST /v1/decisions/{decision_id}/cancel", "decision_id"): Case(),
    ("POST /v1/outcomes", "decision_id"): Case({"decision_id": ROW, "status": "answered", "answer": "x", "steps": 1}),
    ("POST /v1/feedback", "decision_id"): Case({"decision_id": ROW, **JUDGED}),
    ("POST /v1/feedback", "feedback_id"): Case({"decision_id": ROW, "feedback_id": JUDGEMENT, **JUDGED}),
    ("POST /v1/feedback/batch", "items.decision_id"): Case({"items": [{"decision_id": ROW, **JUDGED}]}),
    ("POST /v1/label-queue", "item"): Case({"item": ROW, "right": False}),
    ("POST /v1/sessions/{session_id:path}/end", "session_id"): Case({"feedback": JUDGED}),
    ("POST /v1/sessions/{session_id:path}/end", "feedback.feedback_id"): Case(
        {"feedback": {"feedback_id": JUDGEMENT, **JUDGED}}
    ),
    ("POST /v1/route", "decision_id"): Case({**ASKED, "decision_id": ROW}, is_new=True),
    ("POST /v1/route", "session_id"): Case({**ASKED, "session_id": SESSION}, is_new=True),
    ("POST /v1/route/batch", "items.decision_id"): Case({"items": [{**ASKED, "decision_id": ROW}]}, is_new=True),
    ("POST /v1/answer", "decision_id"): Case({**ASKED, "decision_id": ROW}, is_new=True),
    ("POST /v1/answer", "session_id"): Case({**ASKED, "session_id": SESSION}, is_new=True),
}
#: endpoints of additions that may be missing
RESPONSES = {
    ("GET /v1/responses/{response_id}", "response_id"): Case(),
    ("POST /v1/responses/{response_id}/cancel", "response_id"): Case(),
    ("POST /v1/responses", "previous_response_id"): Case(
        {"model": "auto", "input": "And?", "previous_response_id": RESPONSE}
    ),
    ("POST /v1/responses", "conversation"): Case({"model": "auto", "input": "And?", "conversation": RESPONSE}),
    ("POST /v1/responses", "input.id"): Case(
        {"model": "auto", "input": [{"type": "item_reference", "id": f"msg_{RESPONSE.removeprefix('resp_')}"}]}
    ),
}
PAGES = {
    ("GET /ui/decisions/{decision_id}", "decision_id"),
    ("POST /ui/decisions/{decision_id}/cancel", "decision_id"),
    ("POST /ui/decisions/{decision_id}/rating", "decision_id"),
}


@pytest.fixture(scope="module")
def world(serve_module):
    """A service with an answered and judged decision of acme, and a stored response."""
    keyed = Keyed(serve_module(learning={"labels_per_day": 1000}))
    make_rows(keyed.service, keyed.client("app", tenant="acme"))
    return keyed


def make_rows(service, acme):
    body = {"question": QUESTION, "decision_id": ROW, "session_id": SESSION}
    acme.post("/v1/answer?wait_s=0", json=body).raise_for_status()
    body = {"model": "auto", "input": QUESTION, "background": True}
    has_responses = acme.post("/v1/responses", json=body, headers={"idempotency-key": RESPONSE}).is_success
    for row in (ROW, RESPONSE)[: 1 + has_responses]:
        worker_answers(service, row, ANSWER)
    assert acme.get(f"/v1/responses/{RESPONSE}").is_success == has_responses
    judged = {"decision_id": ROW, "feedback_id": JUDGEMENT, "rating": True}
    acme.post("/v1/feedback", json=judged).raise_for_status()


def endpoints(service):
    return {f"{one.method} {one.path}": one for one in service.app.routes if not one.path.startswith("/ui")}


def id_fields(model, before=""):
    """The fields of a body that have the id of a row."""
    for name in model.model_fields:
        if _ID.search(name) and name != "safety_identifier":
            yield before + name


def test_every_id_is_tried(world):
    """Each parameter of a path, and each field of a body that has an id, stands in the cases or names no row."""
    tried, found = CASES.keys() | RESPONSES.keys() | PAGES, set()
    for endpoint in world.service.app.routes:
        name = f"{endpoint.method} {endpoint.path}"
        found |= {(name, field.alias) for field in endpoint.dependant.path_params if field.alias not in NO_ROWS}
        body = endpoint.body_field and endpoint.body_field.field_info.annotation
        if isinstance(body, type) and issubclass(body, BaseModel):
            found |= {(name, field) for field in id_fields(body)}
    assert found - tried == set()
    assert {pair for pair in tried if "." not in pair[1]} - found <= RESPONSES.keys() | PAGES


def stored(keyed):
    """What acme reads about its rows."""
    acme = keyed.client("app", tenant="acme")
    return [acme.get(f"/v1/decisions/{key}").json() for key in (ROW, RESPONSE)]


def swapped(value, ids):
    """A value with other ids."""
    if isinstance(value, dict):
        return {name: swapped(one, ids) for name, one in value.items()}
    if isinstance(value, list):
        return [swapped(one, ids) for one in value]
    for old, new in ids.items():
        value = value.replace(old, new) if isinstance(value, str) else value
    return value


def cases():
    responses = {key: needs("responses") for key in RESPONSES}
    return [
        pytest.param(*key, case, id=" ".join(key), marks=responses.get(key, ()))
        for key, case in {**CASES, **RESPONSES}.items()
    ]


@pytest.mark.parametrize(("endpoint", "field", "case"), cases())
def test_a_row_of_another_tenant_is_unknown(world, endpoint, field, case):
    """A key of another tenant gets the reply for an unknown id, no word of the row, and changes nothing."""
    known = endpoints(world.service).get(endpoint)
    if known is None:
        pytest.skip("its addition is missing")
    for role in ROLES:
        if role in known.rule.roles:
            check_unknown(world, world.client(role, tenant="globex"), endpoint=endpoint, case=case)


def check_unknown(world, http, *, endpoint, case):
    method, _, path = endpoint.partition(" ")
    for parameter, value in PLACES.items():
        path = path.replace(parameter, value)

    def asked(ids):
        params = {"wait_s": 0} if path == "/v1/answer" else {}
        body = None if case.body is None else swapped(case.body, ids)
        sent = http.request(method, swapped(path, ids), params=params, json=body)
        return sent.status_code, swapped(sent.text, {new: old for old, new in ids.items()})

    before = stored(world)
    status, reply = asked({})
    assert (QUESTION in reply, ANSWER in reply) == (False, False)
    if not case.is_new:
        assert (status, reply) == asked(OTHER)
        assert status in (202, 400, 404), reply
    assert stored(world) == before


@needs("dashboard")
def test_a_page_of_another_tenants_row_is_unknown(world):
    """The page of a decision, and its forms, are those of an unknown id."""
    browser, before = Visitor(world.service.url), stored(world)
    browser.log_in(world.key("operator", tenant="globex").text)
    form = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin", "origin": "null"}
    for path, sent in (("", None), ("/cancel", {}), ("/rating", {"rating": "true"})):
        method = "GET" if sent is None else "POST"
        one, other = (
            browser.http.request(method, f"/ui/decisions/{key}{path}", data=sent, headers=form)
            for key in (ROW, "no-row")
        )
        assert (one.status_code, one.text) == (other.status_code, other.text.replace("no-row", ROW))
        assert one.status_code == 404
    assert stored(world) == before
    browser.http.close()
