"""HTTP: overload, readiness, status and metrics."""

from prometheus_client.parser import text_string_to_metric_families

from ragbandit.router.queue.jobs import RedisJobs, connect_redis
from tests.support.servers.http_service import QUESTION, refused, routed


def test_ready_without_redis(serve, tmp_path):
    """Without Redis the service is ready, since it decides and keeps feedback, and says what is missing."""
    client = connect_redis(f"unix://{tmp_path / 'nobody.sock'}")
    service = serve(jobs=RedisJobs(client))
    response = service.http.get("/ready")
    assert response.status_code == 200
    assert "Redis" in response.json()["parts"]["redis"]
    assert service.http.get("/metrics").status_code == 200
    client.close()


def test_database_gone(serve, postgres, postgres_url):
    """With the database gone /ready is 503, so is every request, as a StoreError with Retry-After; /health stays ok."""
    service = serve(database_url=postgres_url)
    key = routed(service.http)["decision_id"]
    postgres.drop(service.router.database.url.database)
    response = service.http.get("/ready")
    assert response.status_code == 503
    assert (response.json()["status"], response.json()["parts"]["router"]) == ("not ready", "ok")
    assert response.json()["parts"]["database"] != "ok"
    for call in (
        lambda: service.http.post("/v1/route", json={"question": QUESTION}),
        lambda: service.http.post("/v1/feedback", json={"decision_id": key, "rating": True}),
        lambda: service.http.post("/v1/outcomes", json={"decision_id": key}),
        lambda: service.http.get(f"/v1/decisions/{key}"),
        lambda: service.http.get("/v1/status"),
    ):
        response = call()
        refused(response, 503, "STORE_UNAVAILABLE")
        assert response.headers["retry-after"] == "1"
    assert service.http.get("/health").status_code == 200


def test_status(http, service):
    """/v1/status has counters that balance, the lag and the serving version."""
    for number in range(3):
        key = routed(http, question=f"question {number}")["decision_id"]
        http.post("/v1/feedback", json={"decision_id": key, "reward": 0.5})
    service.router.learn()
    routed(http)
    status = http.get("/v1/status").json()
    counters = status["counters"]
    assert (counters["decided"], counters["learned"], counters["waiting"]) == (4, 3, 1)
    assert status["balanced"] is True
    assert status["serving"] == status["snapshot"] == service.router.service.serving.version
    assert (status["last_seq"], status["behind"]) == (3, 0)
    assert (status["algorithm"], status["policy"], status["faults"]) == ("mba", "main", 0)
    assert status["feedback_to_policy_ms"]["n"] == 3


def measured(http) -> dict[tuple[str, ...], float]:
    text = http.get("/metrics").text
    return {
        (sample.name, *(v for _, v in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics(http, service):
    """/metrics parses as Prometheus text, and its counters move with what happens."""
    before = measured(http)
    key = routed(http, arms=["single_step", "multi_step"])["decision_id"]
    http.post("/v1/feedback", json={"decision_id": key, "feedback_id": "f1", "reward": 0.5})
    http.post("/v1/feedback", json={"decision_id": key, "feedback_id": "f1", "reward": 0.5})
    http.get("/v1/nowhere")
    service.router.learn()
    after = measured(http)

    def moved(*key: str) -> float:
        return after[key] - before.get(key, 0.0)

    assert sum(v for k, v in after.items() if k[0] == "ragbandit_decisions_total") == 1
    assert moved("ragbandit_feedback_total", "reward", "kept") == 1
    assert moved("ragbandit_feedback_total", "reward", "duplicate") == 1
    assert moved("ragbandit_route_seconds_count") == 1
    assert moved("ragbandit_ledger", "learned") == 1
    assert moved("ragbandit_policy_last_seq") == 1
    assert moved("ragbandit_requests_total", "/v1/route", "200") == 1
    assert moved("ragbandit_requests_total", "/v1/feedback", "202") == 1
    assert sum(v for k, v in after.items() if k[0] == "ragbandit_requests_total" and k[-1] == "404") == 1
