"""Requests that are sent again without what their server refused."""

import pytest

from ragbandit.shared.model_servers.event_reader import BrokenReply
from ragbandit.shared.model_servers.request_repairs import GO_ON, repair_request

BODY = {"model": "m", "messages": [], "stream": True, "max_tokens": 32000, "temperature": 0.2, "user": "u", "seed": 1}


def refused(message, *, status=400, **more):
    return BrokenReply(message, status_code=status, body={"error": {"message": message, **more}})


def again(message, body=BODY, **more):
    """Returns (fields that differ from the body, field, whether it is remembered); None without a second request."""
    fewer = repair_request(body, error=refused(message, **more))
    if fewer is None:
        return None
    changed = {name: fewer.body.get(name) for name in {**body, **fewer.body} if fewer.body.get(name) != body.get(name)}
    return changed, fewer.field, bool(fewer.lasting)


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
    """The server's `param`, or the name in its words, is left out, also of later requests."""
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
        assert repair_request(BODY, error=error).field == "seed"


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


EXTRA = "Extra inputs are not permitted"
SCHEMA = {"type": "object", "properties": {"strict": {"type": "string"}}}
TOOLS = [{"name": "a", "strict": True, "eager": 1, "input_schema": SCHEMA}, {"name": "b", "eager": 2}]
MARK = {"type": "ephemeral", "scope": "global", "ttl": "1h"}
NESTED = {
    "model": "m",
    "system": [{"type": "text", "text": "scope", "cache_control": MARK}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": MARK}]}],
    "tools": TOOLS,
}
WITHOUT_EAGER = {"tools": [{"name": "a", "strict": True, "input_schema": SCHEMA}, {"name": "b"}]}
PLAIN = {"type": "ephemeral", "ttl": "1h"}
WITHOUT_SCOPE = {
    "system": [{"type": "text", "text": "scope", "cache_control": PLAIN}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": PLAIN}]}],
}
PLACE = {"type": "extra_forbidden", "loc": ["body", "tools", 0, "custom", "eager"], "msg": EXTRA}


@pytest.mark.parametrize(
    ("message", "more", "changed"),
    [
        (f"tools.0.custom.eager: {EXTRA}", {}, WITHOUT_EAGER),
        ("Unknown parameter: 'tools[1].eager'.", {"param": "tools[1].eager"}, WITHOUT_EAGER),
        ("/tools/1/eager is not supported", {}, WITHOUT_EAGER),
        (
            """Invalid JSON payload received. Unknown name "eager" at 'tools[0]': Cannot find field.""",
            {},
            WITHOUT_EAGER,
        ),
        ([PLACE], {}, WITHOUT_EAGER),
        (f"system.0.cache_control.ephemeral.scope: {EXTRA}", {}, WITHOUT_SCOPE),
        (f"messages.0.content.0.text.cache_control.ephemeral.scope: {EXTRA}", {}, WITHOUT_SCOPE),
        (
            f"tools.0.custom.eager: {EXTRA}; system.0.cache_control.ephemeral.scope: {EXTRA}",
            {},
            WITHOUT_EAGER | WITHOUT_SCOPE,
        ),
    ],
    ids=str,
)
def test_a_field_inside_is_left_out_everywhere(message, more, changed):
    """A field that is named by its path leaves all objects of its kind, and the objects stay."""
    assert again(message, NESTED, **more)[0] == changed


@pytest.mark.parametrize(
    "message",
    [
        f"tools.0.custom.name: {EXTRA}",
        f"messages.0.content.0.text.text: {EXTRA}",
        f"tools.7.custom.eager: {EXTRA}",
        f"tools.0.custom.input_schema: {EXTRA}",
        "tools.0.eager.x" * 60 + EXTRA,
        "a.b" * 330,
    ],
)
def test_what_an_answer_depends_on_stays_inside_too(message):
    """Names, texts and schemas are not left out, nor is a field that the request does not have."""
    assert again(message, NESTED) is None


def headers_after(message, sent):
    fewer = repair_request(BODY, error=refused(message), headers={"anthropic-version": "v", "anthropic-beta": sent})
    return fewer and fewer.headers.get("anthropic-beta")


def test_refused_values_of_a_header_are_left_out():
    """The values that the server names leave the header, and all values if it names none."""
    sent = "claude-code-20250219, prompt-caching-scope-2026-01-05,context-1m-2025-08-07"
    two = (
        "Unexpected value(s) `claude-code-20250219`, `prompt-caching-scope-2026-01-05` for the `anthropic-beta` header."
    )
    assert headers_after(two, sent) == "context-1m-2025-08-07"
    assert headers_after("invalid beta flag", sent) is None
    assert (
        headers_after("anthropic_beta: context-1m-2025-08-07 is not available", sent)
        == ",".join(sent.split(", ")).rpartition(",")[0]
    )
    assert repair_request(BODY, error=refused("invalid beta flag")) is None
    needed = refused("This feature requires the beta header anthropic-beta: context-1m-2025-08-07")
    assert repair_request(BODY, error=needed, headers={"anthropic-beta": "a"}) is None
    assert (
        repair_request(BODY, error=refused("temperature: must be between 0 and 1"), headers={"anthropic-beta": "a"})
        is None
    )


def test_a_beginning_of_an_answer_that_is_refused_gets_a_turn_behind_it():
    """A model that takes no beginning of an answer is asked to go on; a chat that ends with a user is not changed."""
    message = "This model does not support assistant message prefill. The conversation must end with a user message."
    begun = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because"}]
    body = {**BODY, "messages": begun}
    assert again(message, body) == ({"messages": [*begun, {"role": "user", "content": GO_ON}]}, "prefill", False)
    assert again(message, {**BODY, "messages": begun[:1]}) is None


REASONING = {"effort": "high", "a": 1}


@pytest.mark.parametrize(
    ("message", "more", "lasting"),
    [
        (f"tools.0.custom.eager: {EXTRA}", NESTED, ("tools", "eager")),
        (f"tools.0.eager: {EXTRA}", NESTED, ("tools", "eager")),
        ([PLACE], NESTED, ("tools", "eager")),
        (f"system.0.cache_control.ephemeral.scope: {EXTRA}", NESTED, ("system", "cache_control", "scope")),
        (f"system.0.cache_control.other.scope: {EXTRA}", NESTED, None),
        (f"tools.0.server.eager: {EXTRA}", NESTED, None),
        (f"reasoning.a: {EXTRA}", {"reasoning": REASONING}, ("reasoning", "a")),
        (f"reasoning.a.b: {EXTRA}", {"reasoning": {"effort": "high", "a.b": 1}}, None),
        (f"reasoning.x.a: {EXTRA}", {"reasoning": {**REASONING, "x.a": 1}}, None),
        (f"reasoning.a!x: {EXTRA}", {"reasoning": {**REASONING, "a!x": 1}}, None),
        (f"reasoning. x: {EXTRA}", {"reasoning": {" x": 1}}, None),
        (f"reasoning[0]: {EXTRA}", {"reasoning": REASONING}, None),
        (f"reasoning: {EXTRA}", {"reasoning": REASONING}, ("reasoning",)),
        (f"reasoning: {EXTRA}", {"reasoning": REASONING, "reasoning/a": 1}, None),
        (f"seed-x: {EXTRA}", {"seed-x": 1}, None),
        ("Unsupported parameter: 'seed'.", {}, ("seed",)),
    ],
    ids=str,
)
def test_only_a_path_that_the_request_has_is_remembered(message, more, lasting):
    """A field is remembered if the refusal names it whole, and no key on the way could be read as a path."""
    fewer = repair_request({**BODY, **more}, error=refused(message))
    assert fewer.lasting == (() if lasting is None else (lasting,))
