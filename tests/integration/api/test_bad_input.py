"""HTTP: a refused request gets the usual form of an error; tests/unit/router/api/test_routes.py has what is refused."""

import json

import pytest

from tests.support.servers.http_service import refused, routed


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [(b'{"question": ', 400, "INVALID_JSON"), (b"{}", 422, "INVALID_INPUT"), (b"", 422, "INVALID_INPUT")],
)
def test_a_refused_body_has_the_form_of_an_error(unmoved, body, status, code):
    """A body that cannot be used gets a 4xx with a code, a message, a field and a remedy."""
    refused(unmoved.post("/v1/route", content=body, headers={"content-type": "application/json"}), status, code)


def test_slashes_that_clients_add_are_ignored(unmoved):
    """A path with a doubled slash, or one at its end, is the path without it."""
    for path in ("//health", "/health/", "/docs//"):
        reply = unmoved.get(f"{str(unmoved.base_url).rstrip('/')}{path}")  # "//health" alone would name a host
        assert (reply.status_code, reply.request.url.path) == (200, path)


@pytest.mark.parametrize("announced", [True, False])
def test_too_large(http, announced):
    """A body of 1 MB is 413, also when its length is not announced, and the service goes on."""
    body = json.dumps({"question": "x" * 1_000_000}).encode()
    pieces = (body[start : start + 10_000] for start in range(0, len(body), 10_000))
    response = http.post("/v1/route", content=body if announced else pieces)
    assert refused(response, 413, "BODY_TOO_LARGE")["remedy"] == "send less, or raise server.max_body_bytes"
    routed(http)
