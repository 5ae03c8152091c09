"""Requests that are sent again without what their server refused."""

import pytest

from ragbandit.shared.model_servers.event_reader import BrokenReply
from ragbandit.shared.model_servers.fewer_fields import fewer_fields

BODY = {"model": "m", "messages": [], "stream": True, "max_tokens": 32000, "temperature": 0.2, "user": "u", "seed": 1}


def refused(message, *, status=400, **more):
    return BrokenReply(message, status_code=status, body={"error": {"message": message, **more}})


def again(message, body=BODY, **more):
    """Returns (fields that differ from the body, field, whether it is unsupported); None without a second request."""
    fewer = fewer_fields(body, error=refused(message, **more))
    if fewer is None:
        return None
    changed = {name: fewer.body.get(name) for name in {**body, **fewer.body} if fewer.body.get(name) != body.get(name)}
    return changed, fewer.field, fewer.is_unsupported


def test_a_limit_above_the_models_is_reduced_to_it():
    """Every limit of the answer is reduced; Anthropic's budget of thoughts stays below it."""
    said = "max_tokens is too large: 32000. This model supports at most 16384 completion tokens"
    assert again(said) == ({"max_tokens": 16384}, "max_tokens", False)
    body = {**BODY, "thinking": {"type": "enabled", "budget_tokens": 20000}}
    expected = {"max_tokens": 8192, "thinking": {"type": "enabled", "budget_tokens": 4096}}
    assert again("max_tokens: 32000 > 8192, which is the maximum allowed", body) == (expected, "max_tokens", False)
    assert again("max_tokens must be at most 64000") is None


@pytest.mark.parametrize(
    ("message", "more", "field"),
    [
        (
            "Unsupported parameter: 'temperature' is not supported with this model.",
            {"param": "temperature"},
            "temperature",
        ),
        ("property 'seed' is unsupported", {}, "seed"),
        ("seed: Extra inputs are not permitted", {}, "seed"),
        ("no", {"code": "unsupported_parameter", "param": "user"}, "user"),
    ],
)
def test_a_parameter_that_is_not_supported_is_left_out(message, more, field):
    """The server's `param`, or the name in its words, is left out, and the server is known not to support it."""
    assert again(message, **more) == ({field: None}, field, True)


def test_what_is_not_about_the_parameter_itself_is_not_remembered():
    """A value, or a parameter in combination with another one, is left out once; other requests may have it."""
    value = "Unsupported value: 'temperature' does not support 0.2 with this model."
    assert again(value, code="unsupported_value", param="temperature") == ({"temperature": None}, "temperature", False)
    assert again("temperature is not supported with seed") == ({"temperature": None}, "temperature", False)
    assert again("temperature is not supported when thinking is on") == ({"temperature": None}, "temperature", False)


def test_places_of_fastapi_name_the_parameter():
    """Mistral's and vLLM's lists of errors name the field in `loc`."""
    detail = [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]
    for body in ({"detail": detail}, {"message": {"detail": detail}, "type": "invalid_request_error"}):
        error = BrokenReply("no", status_code=422, body=body)
        assert fewer_fields(BODY, error=error).field == "seed"


def test_a_limit_gets_the_name_that_the_server_wants():
    """OpenAI's reasoning models take max_completion_tokens only."""
    said = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    changed = {"max_tokens": None, "max_completion_tokens": 32000}
    assert again(said, param="max_tokens", code="unsupported_parameter") == (changed, "max_tokens", False)


@pytest.mark.parametrize(
    ("message", "more"),
    [
        (
            "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 9",
            {"param": "temperature"},
        ),
        ("This model does not support tools", {}),
        ("messages with the role user are not supported", {}),
        ("temperature is not supported", {"status": 500}),
        ("This model's maximum context length is 8192 tokens.", {}),
    ],
)
def test_other_refusals_stay(message, more):
    """Wrong values, what the answer depends on, words that only look like a parameter, and other failures are final."""
    assert again(message, {**BODY, "tools": []}, **more) is None
