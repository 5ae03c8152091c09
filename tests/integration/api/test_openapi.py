"""HTTP: /docs and /openapi.json describe every call, and real replies are as described."""

import re

import pytest
from pydantic import TypeAdapter

from ragbandit.router.api.openai.requests import ChatBody
from ragbandit.router.api.schemas.requests import FeedbackBatchBody, FeedbackBody, OutcomeBody, RouteBody
from tests.support.servers.http_service import QUESTION, routed, worker_answers


def test_health_and_docs(unmoved):
    """/health says that the process lives, /docs and /openapi.json describe every path."""
    assert unmoved.get("/health").json() == {"status": "ok"}
    assert unmoved.get("/docs").status_code == 200
    paths = set(unmoved.get("/openapi.json").json()["paths"])
    assert {"/v1/route", "/v1/answer", "/v1/outcomes", "/v1/feedback", "/v1/feedback/batch"} <= paths
    assert {"/v1/decisions/{decision_id}", "/v1/status", "/health", "/ready", "/metrics"} <= paths


def test_docs_need_no_internet(unmoved):
    """The page at /docs loads its script and style from this service, and nothing from elsewhere."""
    assets = re.findall(r'(?:src|href)="([^"]+)"', unmoved.get("/docs").text)

    assert len(assets) == 3
    assert all(asset.startswith("/docs/assets/") for asset in assets)
    assert [unmoved.get(asset).status_code for asset in assets] == [200, 200, 200]
    assert unmoved.get("/openapi.json").json()["openapi"].startswith("3.0.")


def test_every_reply_is_described(unmoved):
    """/openapi.json has a schema for every reply, the 202 of /v1/answer among them, and a budget with all its caps."""
    described = unmoved.get("/openapi.json").json()
    schemas = described["components"]["schemas"]
    for path, calls in described["paths"].items():
        for call in calls.values():
            for status, reply in call["responses"].items():
                assert [body["schema"] for body in reply["content"].values()] != [{}], (path, status)
    answers = described["paths"]["/v1/answer"]["post"]["responses"]
    named = {status: answers[status]["content"]["application/json"]["schema"]["$ref"] for status in ("200", "202")}
    whole, pending = (schemas[named[status].rpartition("/")[2]] for status in ("200", "202"))
    assert {"decision_id", "arm", "propensity", "answer", "steps", "cost", "stop_reason"} <= set(whole["required"])
    assert "cost" not in pending["properties"]
    assert set(schemas["BudgetBody"]["properties"]) == {"rounds", "passages", "tokens", "seconds", "dollars"}


def test_every_endpoint_is_explained(unmoved):
    """Every endpoint has a tag, a summary of several words and a description; so has every parameter and field."""
    described = unmoved.get("/openapi.json").json()
    tags = {"Decisions", "OpenAI", "Feedback", "Policies", "Operations"}
    assert {tag["name"] for tag in described["tags"]} == tags
    for path, calls in described["paths"].items():
        for call in calls.values():
            assert call["tags"][0] in tags, path
            assert len(call["summary"].split()) >= 3, path
            assert call["description"].endswith("."), path
            assert all(parameter["description"] for parameter in call.get("parameters", ())), path
    (wait,) = [p for p in described["paths"]["/v1/answer"]["post"]["parameters"] if p["name"] == "wait_s"]
    assert "query parameter" in wait["description"]
    for name in ("RouteBody", "FeedbackBody", "FeedbackBatchBody", "OutcomeBody", "ChatBody"):
        body = described["components"]["schemas"][name]
        assert set(body["example"]) <= set(body["properties"])
        assert all(field.get("description") for field in body["properties"].values()), name


@pytest.mark.parametrize("body", [RouteBody, FeedbackBody, FeedbackBatchBody, OutcomeBody, ChatBody])
def test_examples_are_valid(body):
    """The example of a body is one that the service takes."""
    body.model_validate(body.model_config["json_schema_extra"]["example"])


def as_described(service, path: str, response) -> None:
    """The reply has the fields and the types of its schema, no others, and none is missing."""
    (route,) = [route for route in service.app.routes if getattr(route, "path", None) == path]
    model = TypeAdapter(route.responses[response.status_code]["model"])
    assert model.dump_python(model.validate_python(response.json()), mode="json") == response.json()


def test_replies_are_as_described(http, service):
    """What each call really replies is what its schema says, field by field."""
    key = routed(http, decision_id="mine-1", context={"a": 1}, budget={"rounds": 2})["decision_id"]
    as_described(service, "/v1/route", http.post("/v1/route", json={"question": QUESTION}))
    asked = {"question": QUESTION, "decision_id": "mine-2"}
    as_described(service, "/v1/answer", http.post("/v1/answer?wait_s=0", json=asked))
    as_described(service, "/v1/decisions/{decision_id}/cancel", http.post("/v1/decisions/mine-2/cancel"))
    worker_answers(service, "mine-2", "Bram Stoker")
    as_described(service, "/v1/answer", http.post("/v1/answer?wait_s=0", json=asked))
    as_described(service, "/v1/decisions/{decision_id}/cancel", http.post("/v1/decisions/mine-2/cancel"))
    as_described(service, "/v1/decisions/{decision_id}", http.get(f"/v1/decisions/{key}"))
    for _ in range(2):
        as_described(
            service, "/v1/outcomes", http.post("/v1/outcomes", json={"decision_id": key, "answer": "Bram Stoker"})
        )
        judged = {"decision_id": key, "feedback_id": "f1", "label": ["Bram Stoker"]}
        as_described(service, "/v1/feedback", http.post("/v1/feedback", json=judged))
    items = [{"decision_id": key, "rating": True}, {"decision_id": "nobody", "rating": True}]
    as_described(service, "/v1/feedback/batch", http.post("/v1/feedback/batch", json={"items": items}))
    assert service.router.learn() > 0
    for decision_id in (key, "mine-2"):
        as_described(service, "/v1/decisions/{decision_id}", http.get(f"/v1/decisions/{decision_id}"))
    for path in ("/health", "/ready", "/v1/status"):
        as_described(service, path, http.get(path))
