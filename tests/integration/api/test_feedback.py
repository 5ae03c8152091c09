"""HTTP: feedback, one item and a batch."""

from tests.support.servers.http_service import refused, routed


def test_feedback(http, service):
    """Feedback is 202 when it is new, 200 when it is a repetition, 409 with another body, 404 for nobody."""
    key = routed(http)["decision_id"]
    body = {"decision_id": key, "feedback_id": "f1", "rating": 4, "scale": "1-5"}
    first, again = (http.post("/v1/feedback", json=body) for _ in range(2))
    kept = {"feedback_id": "f1", "duplicate": False, "late": False, "waiting_for": "outcome"}
    assert (first.status_code, first.json()) == (202, kept)
    assert (again.status_code, again.json()) == (200, kept | {"duplicate": True})
    refused(http.post("/v1/feedback", json=body | {"rating": 5}), 409, "CONFLICT", field="feedback_id")
    unknown = body | {"decision_id": "nobody", "feedback_id": "f2"}
    refused(http.post("/v1/feedback", json=unknown), 404, "NOT_FOUND", field="decision_id")
    assert service.router.decision(key).feedback[0].value == 0.75


def test_feedback_with_two_ids(shared):
    """A header that names another id than the body's feedback_id is refused, and nothing is kept."""
    key = routed(shared.http)["decision_id"]
    body, headers = {"decision_id": key, "feedback_id": "f1", "rating": True}, {"Idempotency-Key": "f2"}
    response = shared.http.post("/v1/feedback", json=body, headers=headers)
    assert "feedback_id" in refused(response, 422, "INVALID_INPUT", field="Idempotency-Key")["message"]
    assert shared.router.decision(key).feedback == ()


def test_a_batch_with_a_key_is_stored_once(shared):
    """A batch of judgements that is sent again with the same Idempotency-Key is stored once."""
    key = routed(shared.http)["decision_id"]
    items, headers = [{"decision_id": key, "rating": True}] * 2, {"Idempotency-Key": "evening-run"}
    replies = [
        shared.http.post("/v1/feedback/batch", json={"items": items}, headers=headers).json()["items"] for _ in range(2)
    ]
    assert [[item["duplicate"] for item in reply] for reply in replies] == [[False, False], [True, True]]
    assert [item["feedback_id"] for item in replies[0]] == ["evening-run-0", "evening-run-1"]


def test_names_of_imported_raters_are_refused(shared):
    """A caller cannot take the name of a rater of an imported file, which has a weight of its own and no cap."""
    body = {"decision_id": routed(shared.http)["decision_id"], "rating": True}
    for rater in ("import:eval", " import:eval", "im\u200bport:eval"):
        refused(shared.http.post("/v1/feedback", json=body | {"rater": rater}), 422, "INVALID_INPUT", field="rater")


def test_feedback_events(serve):
    """An event is kept under its name and counted in /metrics; an unknown one is 422 with those that are known."""
    service = serve(feedback_events={"copied": 0.8, "followed_up": None})
    http = service.http
    key = routed(http)["decision_id"]
    for event in ("copied", "followed_up"):
        sent = {"decision_id": key, "feedback_id": event, "event": event, "rater": "user-17"}
        assert [http.post("/v1/feedback", json=sent).status_code for _ in range(2)] == [202, 200]
    unknown = http.post("/v1/feedback", json={"decision_id": key, "event": "liked"})
    assert "copied, followed_up" in refused(unknown, 422, "INVALID_INPUT", field="event")["remedy"]
    notes = http.get(f"/v1/decisions/{key}").json()["feedback"]
    assert [(note["event"], note["value"], note["rater"], note["late"]) for note in notes] == [
        ("copied", 0.8, "user-17", False),
        ("followed_up", None, "user-17", False),
    ]
    counted = 'ragbandit_feedback_events_total{event="followed_up",result="duplicate"} 1.0'
    assert counted in http.get("/metrics").text


def test_batch(http):
    """A batch gives each item its own word, in order, whatever happens to its neighbours."""
    key = routed(http)["decision_id"]
    items = [
        {"decision_id": key, "feedback_id": "f1", "rating": True},
        {"decision_id": key, "feedback_id": "f1", "rating": True},
        {"decision_id": key, "feedback_id": "f1", "rating": False},
        {"decision_id": "nobody", "rating": True},
        {"decision_id": key, "rating": 7},
        {"decision_id": key, "feedback_id": "f2", "label": "Bram Stoker"},
        {"decision_id": key, "rating": True, "stars": 5},
        {"rating": True},
    ]
    response = http.post("/v1/feedback/batch", json={"items": items})
    assert response.status_code == 202
    got = response.json()["items"]
    codes = [item.get("error", {}).get("code") for item in got]
    assert codes == [None, None, "CONFLICT", "NOT_FOUND", "INVALID_INPUT", None, "INVALID_INPUT", "INVALID_INPUT"]
    assert [got[index]["error"]["field"] for index in (6, 7)] == ["stars", "decision_id"]
    assert [got[index]["duplicate"] for index in (0, 1, 5)] == [False, True, False]
