"""Refusals of model servers: their words are read as the kinds of inability that they name."""

import pytest

from ragbandit.shared.model_servers.refusals import Refusal, named_field, read_refusal

_SUM = (
    "This model's maximum context length is {window} tokens. However, you requested {asked} tokens "
    "({read} in the messages, 5000 in the completion)."
)
_DIFFERENCE = (
    "'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context length is 9096 tokens "
    "and your request has 3000 input tokens (5000 > 9096 - 3000)."
)
TOO_LONG = [
    ("This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.", 9000, 8192),
    ("This model's maximum context length is 8192 tokens.", None, 8192),
    ("prompt is too long: 208310 tokens > 200000 maximum", 208310, 200000),
    ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", 1200000, 1048576),
    ("Your input exceeds the context window of this model. Please adjust your input and try again.", None, None),
    ("Input is too long for requested model.", None, None),
    ("This model's maximum prompt length is 131072 but the request contains 537812 tokens.", 537812, 131072),
    ("Please reduce the length of the messages or completion.", None, None),
    (
        "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
        9000,
        8192,
    ),
    ("prompt token count of 71234 exceeds the limit of 64000", 71234, 64000),
    ("the request exceeds the available context size. try increasing the context size", None, None),
    ("request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it", 9000, 8192),
    ("Invalid request: Your request exceeded model token limit: 131072 (requested: 150000)", 150000, 131072),
    ("Prompt contains 40000 tokens, too large for model with 32768 maximum context length", 40000, 32768),
    ("invalid params, context window exceeds limit (2013)", None, 2013),
    ("The prompt is too long: 140000, model maximum context length: 131071", 140000, 131071),
    ("The input (9000 tokens) is longer than the model's context length (8192 tokens).", 9000, 8192),
    ("The decoder prompt (length 5000) is longer than the maximum model length of 4096.", 5000, 4096),
    ("`inputs` must have less than 1024 tokens. Given: 2000", 2000, 1024),
    ("Range of input length should be [1, 129024]", None, 129024),
    ("Prompt exceeds max length", None, None),
    ("too many tokens: total number of tokens in the prompt cannot exceed 4081", None, None),
    ("prompt too long; exceeded max context length by 12 tokens", None, None),
    ("Prompt length (9000) exceeds maximum input length (8192)", 9000, 8192),
    ("The number of tokens to keep from the initial prompt is greater than the context length", None, None),
    (_SUM.format(window=4097, asked=5000, read=4000), 5000, 4097),
]
LIMITS = [
    (
        "max_tokens is too large: 32000. This model supports at most 16384 completion tokens, whereas you sent 32000",
        16384,
    ),
    ("max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens for claude", 8192),
    ("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", 8192),
    ("`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less", 8192),
    (
        "it has a maxOutputTokens value of 100000 but the supported range is from 1 (inclusive) to 65537 (exclusive)",
        65536,
    ),
    ("Range of max_tokens should be [1, 8192]", 8192),
    ("The maximum tokens you requested exceeds the model limit of 8192. Try again with a lower value", 8192),
    ("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length", 10000),
    (_SUM.format(window=8097, asked=9000, read=4000), 4097),
    (_DIFFERENCE, 6096),
]
LACKS = [
    ("Unsupported parameter: 'temperature' is not supported with this model.", "unsupported_parameter"),
    ("Unsupported value: 'temperature' does not support 0.2 with this model.", "unsupported_value"),
    ("Unrecognized request argument supplied: prompt_cache_key", None),
    ("property 'prompt_cache_key' is unsupported", None),
    ("prompt_cache_key: Extra inputs are not permitted", None),
    ('Invalid JSON payload received. Unknown name "prompt_cache_key": Cannot find field.', None),
    ("This model does not support tools", None),
    ("Invalid content type. image_url is only supported by certain models.", None),
    ("unknown variant `image_url`, expected `text`", None),
    ("System role not supported", None),
    ('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', None),
    ("Conversation roles must alternate user/assistant/user/assistant/...", None),
    ("tools.0.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level", None),
]
WRONG = [
    ("Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 9 instead.", None),
    ("temperature must be in [0, 2], got 9", None),
    ("temperature: Input should be less than or equal to 1", None),
    (
        "Invalid schema for function 'x': schema must be a JSON Schema of 'type: \"object\"'",
        "invalid_function_parameters",
    ),
    ("Invalid value: 'foo'. Supported values are: 'low', 'medium', and 'high'.", "invalid_value"),
    ("Missing required parameter: 'messages[1].tool_call_id'.", "missing_required_parameter"),
    ("max_tokens must be at least 1", None),
    ("the request is malformed", None),
    ("Invalid 'max_tokens': integer below minimum value. Expected a value >= 1, but got 0 instead.", None),
    ("Your credit balance is too low", None),
]


@pytest.mark.parametrize(("message", "tokens", "most"), TOO_LONG)
def test_a_prompt_that_is_too_long_is_recognized_in_the_words_of_each_vendor(message, tokens, most):
    """The words of each vendor for a prompt that is too long are read, with the numbers that they have."""
    expected = Refusal(inability="context", tokens=tokens, most_tokens=most)
    assert read_refusal(400, code=None, message=message) == expected


@pytest.mark.parametrize(("message", "most"), LIMITS)
def test_the_largest_answer_stands_in_a_refusal(message, most):
    """The limit of an answer's tokens is read from a refusal, also if only this prompt leaves so little room."""
    assert read_refusal(400, code=None, message=message) == Refusal(inability="limit", most_tokens=most)


@pytest.mark.parametrize(("message", "code"), LACKS)
def test_what_a_server_does_not_support_is_its_inability(message, code):
    """Words that something is not supported are an inability of the arm."""
    assert read_refusal(400, code=code, message=message).inability == "parameter"


@pytest.mark.parametrize(("message", "code"), WRONG)
def test_a_value_that_is_wrong_everywhere_is_no_inability(message, code):
    """A value out of range, a wrong schema or a missing field is the caller's error."""
    assert read_refusal(400, code=code, message=message) == Refusal()


@pytest.mark.parametrize(
    "message",
    ["The model `small` does not exist", "small is not a valid model ID", "The model `small` has been decommissioned"],
)
def test_a_model_that_is_gone_is_an_inability(message):
    """Some servers report a model that they do not have with status 400."""
    assert read_refusal(400, code=None, message=message).inability == "model"


def test_other_statuses_are_not_read():
    """A server that fails or limits is handled by its status, whatever its words are."""
    assert read_refusal(500, code=None, message="context length") == Refusal()
    assert read_refusal(409, code="unsupported_parameter", message="") == Refusal()


def test_a_server_may_name_the_parameter_to_use_instead():
    """OpenAI's reasoning models want max_completion_tokens in place of max_tokens."""
    message = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    )
    refusal = read_refusal(400, code="unsupported_parameter", message=message)
    assert refusal == Refusal(inability="parameter", replacement="max_completion_tokens")


def test_the_refused_field_is_named_by_the_server_or_stands_in_its_words():
    """The server's own `param` counts first, then the first word that is a field of the request."""
    names = ("temperature", "top_p", "tools")
    assert named_field(names, param="tools[0].function", message="temperature") == "tools"
    assert named_field(names, param="messages", message="property 'top_p' is unsupported") == "top_p"
    assert named_field(names, param=None, message="it is too hot") is None
