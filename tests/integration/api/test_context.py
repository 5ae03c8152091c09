"""Context over HTTP: what moves the choice, and what is refused."""

import pytest

from tests.support.servers.http_service import QUESTION, refused

CONTEXT = {
    "age_days": {"type": "number"},
    "premium": {"type": "boolean"},
    "tags": {"type": "words", "hashed": 8, "most": 2},
    "tier": {"type": "category", "values": ["free", "pro"]},
}


@pytest.fixture
def declared(serve):
    return serve(context=CONTEXT, server={"max_body_bytes": 1_048_576})


def test_bad_context(declared):
    """A declared key of another type, 10,000 keys, values without end: 422, the field named, nothing kept."""
    for context, field in (
        ({"tier": 1}, "context.tier"),
        ({"premium": "yes"}, "context.premium"),
        ({"age_days": "old"}, "context.age_days"),
        ({"age_days": 10**400}, "context.age_days"),
        ({"tags": "billing"}, "context.tags"),
        ({"tags": ["a", "b", "c"]}, "context.tags"),
        ({"tags": ["\x00"]}, "context.tags"),
        ({"more": ["x"] * 101}, "context.more"),
        ({f"key_{number}": number for number in range(10_000)}, "context"),
        ({"tier": "x" * 9000}, "context"),
    ):
        reply = declared.http.post("/v1/route", json={"question": QUESTION, "context": context})
        refused(reply, 422, "INVALID_INPUT", field=field)
    assert declared.router.status().counters.decided == 0
