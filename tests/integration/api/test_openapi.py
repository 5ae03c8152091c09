"""HTTP: /docs and /openapi.json describe every call, and real replies are as described."""

from ragbandit.shared.additions import load_offered


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
    tags |= {door.endpoints[0].tag for door in load_offered("doors").values() if door.description}
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
