"""HTTP: /v1/route/batch decides each question for itself."""

import pytest

from tests.support.servers.http_service import QUESTION, refused


def test_batch(http, service):
    """A batch gives each question its own decision or error, in order, whatever its neighbours are."""
    items = [
        {"question": QUESTION, "decision_id": "d1", "arms": ["single_step"]},
        {"question": " "},
        {"question": QUESTION, "decision_id": "d1", "arms": ["single_step"]},
        {"question": "Who wrote Emma?", "decision_id": "d1"},
        {"question": QUESTION, "surplus": 1},
        {"question": QUESTION, "tenant": "acme", "context": {"a": 1}, "budget": {"rounds": 2}},
        {"question": QUESTION, "arms": ["nobody"]},
    ]
    response = http.post("/v1/route/batch", json={"items": items})
    assert response.status_code == 200
    replies = response.json()["items"]
    codes = [reply["error"]["code"] if "error" in reply else "decided" for reply in replies]
    wrong = "INVALID_INPUT"
    assert codes == ["decided", wrong, "decided", "CONFLICT", wrong, "decided", wrong]
    assert [replies[at]["error"]["field"] for at in (1, 3, 4, 6)] == ["question", "decision_id", "surplus", "arms"]
    assert replies[0]["decision_id"] == replies[2]["decision_id"] == "d1"
    assert set(replies[0]) == set(http.post("/v1/route", json=items[0]).json())
    kept = service.router.decision(replies[5]["decision_id"]).decision
    assert (kept.query.tenant, kept.query.context, kept.query.budget.rounds) == ("acme", {"a": 1}, 2)
    assert replies[5]["pmf"] == dict(zip(kept.arms, kept.pmf, strict=True))
    again = http.post("/v1/route/batch", json={"items": items[:1]}).json()["items"]
    assert again[0]["decision_id"] == "d1"


def test_a_batch_with_a_key_is_decided_once(shared):
    """A batch that is sent again with its Idempotency-Key gets the same decisions; another question is a conflict."""
    headers = {"Idempotency-Key": "morning-run"}
    items = [{"question": QUESTION}, {"question": "Who wrote Emma?", "decision_id": "emma-1"}, {"question": QUESTION}]

    def decided(items):
        return shared.http.post("/v1/route/batch", json={"items": items}, headers=headers).json()["items"]

    first, again = (decided(items) for _ in range(2))
    assert [reply["decision_id"] for reply in first] == ["morning-run-0", "emma-1", "morning-run-2"]
    assert [(reply["arm"], reply["pmf"]) for reply in first] == [(reply["arm"], reply["pmf"]) for reply in again]
    changed = decided([*items[:2], {"question": "Who wrote Dune?"}])
    assert [reply.get("error", {}).get("code") for reply in changed] == [None, None, "CONFLICT"]


def test_a_key_of_a_batch_has_room_for_numbers(shared):
    """A batch is refused as a whole if its Idempotency-Key with the number of an item is no valid id."""
    for key in ("a key", "k" * 63):
        response = shared.http.post(
            "/v1/route/batch", json={"items": [{"question": QUESTION}]}, headers={"Idempotency-Key": key}
        )
        assert f"'{key}-0'" in refused(response, 422, "INVALID_INPUT", field="Idempotency-Key")["message"]


@pytest.mark.parametrize(
    ("body", "field"),
    [({}, "items"), ({"items": []}, "items"), ({"items": [{}] * 513}, "items"), ({"items": [3]}, "items.0")],
)
def test_bad_batch(unmoved, body, field):
    """A batch that is not a list, empty or too long is refused as a whole."""
    refused(unmoved.post("/v1/route/batch", json=body), 422, "INVALID_INPUT", field=field)
