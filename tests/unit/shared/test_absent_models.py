"""Status 404 and 410: which replies show that the model is gone, and which requests name something else."""

import pytest

from ragbandit.shared.model_servers.absent_models import gone_sign, names_stored_object
from ragbandit.shared.model_servers.error_replies import failure_of_status


def error(message, **more):
    return {"error": {"message": message, **more}}


@pytest.mark.parametrize(
    ("body", "sign"),
    [
        (error("no", code="model_not_found"), "named"),
        (error("none here", code="DeploymentNotFound"), "named"),
        ({"type": "error", "error": {"type": "not_found_error", "message": "model: old-name"}}, "named"),
        ({"error": 'model "acme/large-2" not found, try pulling it first'}, "named"),
        (error("No endpoints found for ACME/large-2."), "named"),
        ([error("models/acme/large-2 is not found for API version v1")], "named"),
        (error("acme/large-2 was not found"), None),
        (error("the model acme/large-2.1 does not exist"), "words"),
        (error("the model acme/large-20 does not exist"), "words"),
        (error("no such deployment"), "words"),
        ({"type": "error", "error": {"type": "not_found_error", "message": "File not found: model0"}}, "words"),
        ({"type": "error", "error": {"type": "not_found_error", "message": "File not found: model: x"}}, "words"),
        (error("No endpoints found that support image input"), None),
        ({"detail": "Not Found"}, None),
        (None, None),
    ],
)
def test_the_sign_of_a_reply(body, sign):
    """The server's own code, or words with the whole name of the model, is a certain sign; other words are not."""
    failure = failure_of_status(404, body=body)
    assert gone_sign(failure, body=body, model="acme/large-2") == sign
    gone = failure_of_status(410, body=body)
    assert gone_sign(gone, body=body, model="acme/large-2") == "named"


def test_a_model_called_model():
    """If the model's name is itself such a word, the words need another one."""
    for message, sign in [("model not found", "words"), ("The model `model` does not exist", "named")]:
        failure = failure_of_status(404, body=error(message))
        assert gone_sign(failure, body=error(message), model="model") == sign


def turn(*parts):
    return {"messages": [{"role": "user", "content": list(parts)}]}


PIXEL = "data:image/png;base64,AAAA"
CALL = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"file_id": "f"}'}}
SCHEMA = {"type": "object", "properties": {"model": {"type": "string"}, "file_id": {"enum": ["a"]}, "url": "x"}}


@pytest.mark.parametrize(
    "request_",
    [
        turn({"type": "document", "source": {"type": "file", "file_id": "model0"}}),
        turn({"type": "file", "file": {"file_id": "model0"}}),
        turn({"type": "container_upload", "file_id": "model0"}),
        turn({"type": "image_url", "image_url": {"url": "http://127.0.0.1/model.png"}}),
        turn({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "file", "fileUri": "gs://model"}]}),
        {"messages": [{"role": "assistant", "audio": {"id": "model"}}]},
        {"container": "model"},
        {"container": {"id": None, "skills": [{"type": "custom", "skill_id": "model", "version": "1"}]}},
        {"mcp_servers": [{"type": "url", "name": "x", "url": "https://127.0.0.1/model"}]},
        {"tools": [{"type": "file_search", "vector_store_ids": ["model"]}]},
        {"tools": [{"type": "image_generation", "model": "none-such"}]},
        {"models": ["none-such"]},
        {"provider": {"only": ["none-such"]}},
        {"provider": {"max_price": {"prompt": 0}, "require_parameters": True}},
        {"providerOptions": {"gateway": {"zeroDataRetention": True}}},
        {"extra_body": {"cachedContent": "cachedContents/model"}},
    ],
)
def test_requests_that_name_something(request_):
    """Files, addresses, containers, skills, stores, caches, further models and providers are found at any depth."""
    assert names_stored_object({"model": "m", **request_})
    deep = request_
    for _ in range(5000):
        deep = {"more": [deep]}
    assert names_stored_object(deep)


@pytest.mark.parametrize(
    "request_",
    [
        {},
        turn({"type": "text", "text": "Which model has the file_id? http://127.0.0.1/model"}),
        turn({"type": "image_url", "image_url": {"url": PIXEL}}),
        {"messages": [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "call_1"}]},
        turn({"type": "tool_use", "id": "t", "name": "find", "input": {"file_id": "f", "url": "http://x"}}),
        {"tools": [{"type": "function", "function": {"name": "find", "parameters": SCHEMA}}]},
        {"tools": [{"name": "find", "input_schema": SCHEMA}]},
        {
            "metadata": {"user_id": "u", "trace_id": "t"},
            "user_id": "u",
            "container": None,
            "models": [],
            "provider": {},
        },
    ],
)
def test_requests_that_name_nothing(request_):
    """Texts, images in the request, calls of tools, their schemas and notes of the caller name nothing."""
    assert not names_stored_object({"model": "m", **request_})
