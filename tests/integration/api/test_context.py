"""Context over HTTP: what moves the choice, what is refused, and what is counted."""

import pytest

from tests.support.servers.http_service import QUESTION, refused, routed

CONTEXT = {
    "age_days": {"type": "number"},
    "premium": {"type": "boolean"},
    "tags": {"type": "words", "hashed": 8, "most": 2},
    "tier": {"type": "category", "values": ["free", "pro"]},
}
#: what pays for customers of a tier
PAYS = {"free": "no_retrieval", "pro": "multi_step"}


@pytest.fixture
def declared(serve):
    return serve(context=CONTEXT, server={"max_body_bytes": 1_048_576})


def taught(service, questions=40):
    """Feedback on as many questions: 1 for the arm that pays for the tier, else 0."""
    for number in range(questions):
        tier = ("free", "pro")[number % 2]
        decision = routed(service.http, context={"tier": tier})
        reward = float(decision["arm"] == PAYS[tier])
        service.http.post("/v1/feedback", json={"decision_id": decision["decision_id"], "reward": reward})
        if number % 10 == 9:
            service.router.learn()


def test_another_tier_gets_another_pmf(declared):
    """After learning, the same question has its best arm by the tier of its caller, and verifies to the last pmf."""
    before = [routed(declared.http, context={"tier": tier})["pmf"] for tier in ("free", "pro")]
    assert before[0] == pytest.approx(before[1], abs=0.1)
    taught(declared)
    for tier, arm in PAYS.items():
        pmf = routed(declared.http, context={"tier": tier})["pmf"]
        assert max(pmf, key=pmf.get) == arm
    assert declared.router.verify(deep=True).ok


def test_without_a_schema_the_tier_is_kept_and_not_learned(serve):
    """A key that is not declared is logged and changes nothing."""
    service = serve()
    taught(service, questions=20)
    pmfs = [routed(service.http, context={"tier": tier})["pmf"] for tier in ("free", "pro")]
    assert pmfs[0] == pmfs[1]
    key = routed(service.http, context={"tier": "pro", "tags": ["a", "b"]})["decision_id"]
    assert service.http.get(f"/v1/decisions/{key}").json()["context"] == {"tags": ["a", "b"], "tier": "pro"}


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


def test_what_comes_is_counted(declared):
    """Declared keys are counted by what came, undeclared ones together: their names have no end."""
    for context in ({"tier": "pro"}, {"tier": "enterprise", "secret-name": 1}, {"premium": None}, {}):
        routed(declared.http, context=context)
    text = declared.http.get("/metrics").text
    assert 'ragbandit_context_values_total{key="tier",kind="given"} 1.0' in text
    assert 'ragbandit_context_values_total{key="tier",kind="other"} 1.0' in text
    assert 'ragbandit_context_values_total{key="tier",kind="missing"} 2.0' in text
    assert 'ragbandit_context_values_total{key="premium",kind="missing"} 4.0' in text
    assert "ragbandit_context_undeclared_total 1.0" in text
    assert "secret-name" not in text
