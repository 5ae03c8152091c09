"""GET /v1/decisions/{decision_id}/explanation: the draw, its reasons, and the record beside them."""

from tests.support.servers.http_service import refused, routed


def test_explanation(http):
    """It holds the record, the draw and the reasons; the drawn arm's edges hold u."""
    made = routed(http)
    path = f"/v1/decisions/{made['decision_id']}"
    reply = http.get(f"{path}/explanation")
    assert reply.status_code == 200, reply.text
    body = reply.json()
    assert body["record"] == http.get(path).json()
    assert reply.headers["x-ragbandit-decision-id"] == body["decision_id"] == made["decision_id"]
    (drawn,) = (arm for arm in body["arms"] if arm["drawn"])
    assert drawn["arm"] == made["arm"]
    assert drawn["low"] <= body["draw"]["u"] < drawn["high"]
    assert body["reasons"]
    refused(http.get("/v1/decisions/unknown/explanation"), 404, "NOT_FOUND")
