"""Errors of ours in OpenAI's shape."""

import pytest

from ragbandit.router.api.openai.errors import as_openai_error
from ragbandit.router.api.schemas.responses import error_body


def shaped(status, code, **more):
    status, body = as_openai_error(status, dict(error_body(code, "what happened", **more)["error"]))
    return status, body["error"]


@pytest.mark.parametrize(
    ("status", "code", "to", "kind", "name"),
    [
        (400, "INVALID_JSON", 400, "invalid_request_error", "invalid_json"),
        (401, "UNAUTHORIZED", 401, "authentication_error", "invalid_api_key"),
        (403, "FORBIDDEN", 403, "permission_error", "forbidden"),
        (404, "MODEL_NOT_FOUND", 404, "invalid_request_error", "model_not_found"),
        (409, "CONFLICT", 409, "invalid_request_error", "conflict"),
        (413, "BODY_TOO_LARGE", 413, "invalid_request_error", "body_too_large"),
        (422, "INVALID_INPUT", 400, "invalid_request_error", "invalid_input"),
        (429, "TOO_MANY_REQUESTS", 429, "rate_limit_error", "rate_limit_exceeded"),
        (500, "INTERNAL", 500, "server_error", "internal"),
        (503, "OVERLOADED", 503, "server_error", "overloaded"),
    ],
)
def test_statuses_types_and_codes(status, code, to, kind, name):
    """Status, type and code are those that OpenAI's clients know; validation is a 400."""
    found, error = shaped(status, code)
    assert (found, error["type"], error["code"]) == (to, kind, name)
