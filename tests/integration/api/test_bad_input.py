"""HTTP: whatever cannot be used is refused in one shape, with the field and the remedy."""

import json

import pytest

from tests.support.servers.http_service import QUESTION, refused, routed


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"question": "\xff\xfe"}', 400, "INVALID_JSON"),
        (b'{"question": ', 400, "INVALID_JSON"),
        (b"", 422, "INVALID_INPUT"),
        (b"\xff" * 10, 400, "INVALID_JSON"),
        (b"[" * 100_000, 400, "INVALID_JSON"),
        (b'{"question": 1' + b"0" * 5000 + b"}", 400, "INVALID_JSON"),
        (rb'{"question": "\ud800"}', 422, "INVALID_INPUT"),
        (rb'{"question": "x", "context": {"\ud800": "y"}}', 422, "INVALID_INPUT"),
    ],
    ids=["latin", "cut", "empty", "bytes", "deep", "digits", "half a pair", "half a pair in a key"],
)
def test_not_json(unmoved, body, status, code):
    """A body that is not JSON in UTF-8 gets a 4xx of the usual form; invalid JSON gets 400. Lone surrogates in other
    places: see test_api_properties.
    """
    refused(unmoved.post("/v1/route", content=body, headers={"content-type": "application/json"}), status, code)


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
@pytest.mark.parametrize("path", ["/v1/route", "/v1/feedback", "/v1/feedback/batch", "/v1/outcomes"])
def test_json_that_is_not_said_to_be(unmoved, path, kind):
    """JSON without its content type, as `curl -d` sends it, is refused by the header's name and what it must be."""
    headers = {} if kind is None else {"content-type": kind}
    response = unmoved.post(path, content=json.dumps({"question": QUESTION}), headers=headers)
    error = refused(response, 422, "INVALID_INPUT", field="content-type")
    assert (kind or "without a content type") in error["message"]
    assert "content-type: application/json" in error["remedy"]


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
        ("/v1/route", '{"arms": ["single_step", 7]}', "arms.1", "text, not 7"),
        ("/v1/route", '{"arms": "single_step"}', "arms", 'a list, not "single_step"'),
        ("/v1/route", '{"decision_id": 7}', "decision_id", "text or null, not 7"),
        ("/v1/feedback", '{"rating": "good"}', "rating", 'true, false, a finite number or null, not "good"'),
        ("/v1/feedback", '{"label": 7}', "label", "text, a list of texts or null, not 7"),
        ("/v1/feedback", '{"reward": {"is": 1}}', "reward", "a finite number or null, not this object"),
        ("/v1/outcomes", '{"steps": null}', "steps", "a finite number, not null"),
        ("/v1/outcomes", '{"cost": {"llm_calls": "1"}}', "cost.llm_calls", 'a finite number, not "1"'),
        ("/v1/outcomes", '{"status": "done"}', "status", "'answered', 'exhausted' or 'failed', not \"done\""),
    ],
)
def test_a_wrong_type_is_told_all_right_ones(unmoved, path, body, field, wanted):
    """A value of a wrong type is refused once, with every type that would have been right and with what was sent."""
    needed = {"question": QUESTION} if path == "/v1/route" else {"decision_id": "any"}
    sent = json.dumps(needed)[:-1] + ", " + body[1:]
    response = unmoved.post(path, content=sent, headers={"content-type": "application/json"})
    error = refused(response, 422, "INVALID_INPUT", field=field)
    assert error["message"] == f'"{field}" must be {wanted}'
    assert error["remedy"]


def test_a_missing_field_is_a_sentence(unmoved):
    """The error names a missing or unknown field; for wait_s it names the right place."""
    missing = refused(unmoved.post("/v1/route", json={}), 422, "INVALID_INPUT", field="question")
    assert missing["message"] == '"question" is required (string)'
    batch = refused(unmoved.post("/v1/feedback/batch", json={}), 422, "INVALID_INPUT", field="items")
    assert batch["message"] == '"items" is required (list)'
    nothing = refused(unmoved.post("/v1/route"), 422, "INVALID_INPUT", field="body")
    assert nothing["message"] == '"body" is required (object)'
    sent = {"question": QUESTION, "wait_s": 3}
    misplaced = refused(unmoved.post("/v1/answer", json=sent), 422, "INVALID_INPUT", field="wait_s")
    assert misplaced["message"] == '"wait_s" is not a field of this request'
    assert "/v1/answer?wait_s=" in misplaced["remedy"]


@pytest.mark.parametrize("announced", [True, False])
def test_too_large(http, announced):
    """A body of 1 MB is 413, also when its length is not announced, and the service goes on."""
    body = json.dumps({"question": "x" * 1_000_000}).encode()
    pieces = (body[start : start + 10_000] for start in range(0, len(body), 10_000))
    response = http.post("/v1/route", content=body if announced else pieces)
    refused(response, 413, "BODY_TOO_LARGE")
    routed(http)


@pytest.mark.parametrize(
    ("method", "path", "known"),
    [
        ("post", "/v1/answer?wait_s=1&wait=2", "use stream, wait_s"),
        ("post", "/v1/route?wait=2", "in the path or the body"),
        ("get", "/v1/status?wait=2", "in the path or the body"),
    ],
)
def test_an_unknown_query_parameter(unmoved, method, path, known):
    """A query parameter that the endpoint does not have is 422, with its name and those that are known."""
    response = unmoved.request(method, path, **({"json": {"question": QUESTION}} if method == "post" else {}))
    error = response.json()["error"]
    assert (response.status_code, error["field"]) == (422, "wait")
    assert '"wait" is not a query parameter of /v1/' in error["message"]
    assert known in error["remedy"]
