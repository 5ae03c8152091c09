"""HTTP: /openapi.json says what is accepted: what fits it is not refused as invalid, and what does not fit is.

A refusal names the field and the remedy, and leaves nothing.
"""

import functools
import itertools
import json
from urllib.parse import quote

import pytest

from ragbandit.router.config.settings import Settings
from tests.support.json_schema import fits
from tests.support.servers.http_service import QUESTION, Service, refused, routed

IDS = ["a", "A-z_09", "x" * 64, "x" * 65, "", "no spaces", "a\n", "é", "a/b", 7, None]
TEXTS = [
    "x",
    " x ",
    "\x1f",
    "\x1fx",
    "",
    " ",
    "\t\n",
    "\u2003",
    "\u200b",
    "\ufeff",
    "a\x00b",
    "é" * 50_000,
    "x" * 100_000,
]
TEXTS += ["x" * 100_001, "日本", "\x7f", "\x85", 7, None, ["x"]]
COUNTS = [1, 2, 10**9, 10**9 + 1, 0, -1, 1.0, 1.5, True, "1", None, 10**400]
AMOUNTS = [1, 0.5, 1e-9, 1e9, 1.1e9, 0, 0.0, -1, True, "1", None, 10**400]
NUMBERS = [0, 0.5, 1, 1.5, 4, 5, 5.5, -0.5, -1, -1.5, True, False, "1", None]

ROUTE = {
    "question": TEXTS,
    "decision_id": IDS,
    "tenant": IDS,
    "arms": [
        ["single_step"],
        ["single_step", "multi_step"],
        ["single_step"] * 2,
        [],
        ["nobody"],
        [7],
        "single_step",
        None,
    ],
    "context": [
        {},
        {"a": 1},
        {"": 1},
        {" ": 1},
        {"a": ""},
        {"a": " "},
        {"a": "\x00"},
        {"a\x00": 1},
        {"a": [1]},
        {"a": ["x"]},
        {"a": [" "]},
        {"a": ["x"] * 100},
        {"a": ["x"] * 101},
        None,
        7,
    ],
    **{f"budget.{cap}": COUNTS for cap in ("rounds", "passages", "tokens")},
    **{f"budget.{cap}": AMOUNTS for cap in ("seconds", "dollars")},
    "budget": [{}, {"euros": 1}, 7, None],
    "messages": [[], [{"role": "user", "content": "x"}], [{"role": "robot", "content": "x"}], [7], None],
    "session_id": [*TEXTS[:12], "x" * 128, "x" * 129],
    "sticky_turns": [0, 1, 50, 1001, -1, 1.5, True, None],
    "cost_weight": [0, 0.2, 1e6, "economy", 1.1e6, -0.1, 10**400, True, "", "cheapest", [], None],
    "aim": [None, 7, {}, {"euros": 1}, {"quality": 0}],
    "colour": ["red"],
}
FEEDBACK = {
    "feedback_id": IDS,
    "label": [*TEXTS, [], ["x"], ["x"] * 100, ["x"] * 101, [" "], [7]],
    "rating": NUMBERS,
    "reward": [*NUMBERS, 10**400],
    "scale": ["0-1", "1-5", "1-10", "", None],
    "source": ["human", "judge", "code", "event", "robot", None],
    "event": ["copied", "followed_up", "liked", "two words", "", 7, None],
    "rater": [*TEXTS, "x" * 64, "x" * 65],
    "stars": [5],
}
OUTCOME = {
    "status": ["answered", "exhausted", "failed", "cancelled", "", None],
    "answer": TEXTS,
    "error": TEXTS,
    "stop_reason": ["", "x" * 64, "x" * 65, " ", "a\x00", None, 7],
    "steps": [0, 1, 0.5, 1e9, 2e9, -1, True, "1", None],
    "cost": [
        {},
        {"llm_calls": 1},
        {"llm_calls": 1.5},
        {"llm_calls": -1},
        {"dollars": 0.5},
        {"passages": 10**400},
        {"euros": 1},
        {"dollars": "1"},
    ],
}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("schema"))
    given = {"encoder": {"model": "hashing", "dimension": 8}, "server": {"max_body_bytes": 1_000_000}}
    given["feedback_events"] = {"copied": 0.8, "followed_up": None}
    given["prices"] = {"economy": 0.2}
    service = Service(Settings.model_validate({"data_dir": folder} | given))
    yield service
    service.close()


def changed(body: dict, field: str, value: object) -> dict:
    head, _, rest = field.partition(".")
    return body | {head: {rest: value} if rest else value}


@functools.cache
def document(service) -> dict:
    """The document of a service, asked for once."""
    return service.http.get("/openapi.json").json()


def agrees(service, path: str, body: dict, *, field: str | None = None) -> bool:
    """Whether the body fits the document: then the reply is no 422, else a 422 that names field and remedy."""
    api = document(service)
    schema = api["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    sent = json.dumps(body).encode()
    response = service.http.post(path, content=sent, headers={"content-type": "application/json"})
    right = fits(body, schema, api=api)
    assert (response.status_code != 422) is right, f"{sent[:200]!r} fits: {right}; {response.text[:300]}"
    if not right:
        error = refused(response, 422, "INVALID_INPUT")
        assert error["remedy"]
        assert field is None or error["field"].startswith((field, "feedback")), error
    return right


@pytest.mark.parametrize("field", ROUTE)
def test_questions(served, field):
    """A question is accepted if and only if it fits the document."""
    for value in ROUTE[field]:
        agrees(served, "/v1/route", changed({"question": QUESTION}, field, value), field=field)


@pytest.mark.parametrize("field", FEEDBACK)
def test_feedback(served, field):
    """Feedback is accepted if and only if it fits the document: field by field, and exactly one judgement."""
    key = routed(served.http)["decision_id"]
    judged = {} if field in ("label", "rating", "reward", "event") else {"rating": 1}
    taken = [
        agrees(served, "/v1/feedback", changed({"decision_id": key} | judged, field, value), field=field)
        for value in FEEDBACK[field]
    ]
    assert len(served.router.decision(key).feedback) == sum(taken)


def test_feedback_of_several_fields(served):
    """What holds between the fields of feedback is in the document: one judgement, a rating within its scale."""
    key = routed(served.http)["decision_id"]
    for rating, scale in itertools.product(NUMBERS, ["0-1", "1-5"]):
        agrees(served, "/v1/feedback", {"decision_id": key, "rating": rating, "scale": scale})
    for source in ("human", "event", None):
        agrees(served, "/v1/feedback", {"decision_id": key, "event": "copied", "source": source})
    both = {"event": "copied", "rating": 1}
    for body in ({}, {"label": "x", "rating": 1}, {"label": None, "rating": 1}, {"label": None}, both):
        agrees(served, "/v1/feedback", {"decision_id": key} | body)


@pytest.mark.parametrize("field", OUTCOME)
def test_outcomes(served, field):
    """An outcome is accepted if and only if it fits the document; a cost without steps may be, by the settings."""
    for value in OUTCOME[field]:
        key = routed(served.http)["decision_id"]
        agrees(served, "/v1/outcomes", changed({"decision_id": key, "steps": 1}, field, value), field=field)


@pytest.mark.parametrize("path", ["/v1/route", "/v1/feedback", "/v1/outcomes"])
def test_ids_in_every_place(served, path):
    """Ids have one pattern, in bodies, paths and headers."""
    api = document(served)
    schema = api["paths"]["/v1/decisions/{decision_id}"]["get"]["parameters"][0]["schema"]
    for value in IDS[:-2]:
        agrees(
            served,
            path,
            {"decision_id": value, "question": QUESTION} if path == "/v1/route" else {"decision_id": value},
        )
        if value and "/" not in value:
            refusal = served.http.get(f"/v1/decisions/{quote(value)}").status_code == 422
            assert refusal is not fits(value, schema, api=api)
    (header,) = [one for one in api["paths"][path]["post"].get("parameters", ()) if one["in"] == "header"] or [None]
    assert header is None or header["schema"]["pattern"] == schema["pattern"]


def test_declared_contexts(serve):
    """What is declared of the context is in the document of the service, and holds."""
    service = serve(
        context={
            "age": {"type": "number"},
            "asked_by": {"type": "tenant"},
            "premium": {"type": "boolean"},
            "tags": {"type": "words", "most": 2},
            "tier": {"type": "category", "values": ["free", "pro"]},
        }
    )
    values = [None, True, 0, -2.5, 1e100, 1e101, 10**400, "", " ", "free", "other", "a\x00", ["a"], ["a"] * 3, [1], {}]
    for key in ("age", "asked_by", "premium", "tags", "tier", "undeclared"):
        for value in values:
            agrees(service, "/v1/route", {"question": QUESTION, "context": {key: value}})


def test_limits_of_this_service(serve):
    """Names of arms, bounds of rewards and sizes of batches are those of this service's settings."""
    service = serve(
        arms={"mine": {"run_by": "caller"}, "single_step": {}},
        reward={"minimum": -2.0, "maximum": 3.0},
        server={"max_batch_items": 7},
    )
    schemas = service.http.get("/openapi.json").json()["components"]["schemas"]
    (arms,) = [part for part in schemas["RouteBody"]["properties"]["arms"]["anyOf"] if part["type"] == "array"]
    assert arms["items"]["enum"] == ["mine", "single_step"]
    reward = schemas["FeedbackBody"]["properties"]["reward"]
    assert (reward["minimum"], reward["maximum"]) == (-2.0, 3.0)
    assert schemas["RouteBatchBody"]["properties"]["items"]["maxItems"] == 7
    assert schemas["FeedbackBatchBody"]["properties"]["items"]["maxItems"] == 1000


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/route", {"POST"}),
        ("PUT", "/v1/decisions/x", {"GET"}),
        ("DELETE", "/v1/decisions/x/cancel", {"POST"}),
        ("POST", "/health", {"GET"}),
    ],
)
def test_method_not_allowed(served, method, path, allowed):
    """405 says in Allow which methods there are."""
    response = served.http.request(method, path)
    refused(response, 405, "METHOD_NOT_ALLOWED")
    assert allowed <= set(response.headers["allow"].split(", "))
