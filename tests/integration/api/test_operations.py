"""HTTP: overload, readiness, status and metrics."""

import base64
import hashlib
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from prometheus_client.parser import text_string_to_metric_families

from ragbandit.router.queue.jobs import RedisJobs, connect
from ragbandit.router.serving.deciding.live import Serving
from tests.support.servers.http_service import QUESTION, refused, routed


def test_overload_is_refused_early(serve):
    """While max_waiting requests wait for their batch, more are 503 with Retry-After; those that wait are served."""
    service = serve(server={"max_waiting": 2})
    key = routed(service.http)["decision_id"]
    opened, encode = threading.Event(), service.router.encoder.encode
    service.router.encoder.encode = lambda texts: opened.wait(20) and encode(texts)
    with ThreadPoolExecutor(3) as callers:
        waiting = [callers.submit(routed, service.http)]
        give_up = time.monotonic() + 10
        while len(waiting) < 3 or service.router.waiting() < 2:  # one in the encoder, two behind it
            assert time.monotonic() < give_up
            if len(waiting) < 3 and service.router.waiting() == len(waiting) - 1:
                time.sleep(0.05)  # until the first has left the queue
                waiting.append(callers.submit(routed, service.http))
            time.sleep(0.01)
        for path, body in (
            ("/v1/route", {"question": QUESTION}),
            ("/v1/answer", {"question": QUESTION}),
        ):
            response = service.http.post(path, json=body)
            assert "waiting already" in refused(response, 503, "OVERLOADED")["message"]
            assert response.headers["retry-after"] == "1"
        # Another queue: what was decided before can be judged.
        assert service.http.post("/v1/feedback", json={"decision_id": key, "rating": True}).status_code == 202
        assert service.http.get("/ready").status_code == 200
        assert measured(service.http)["ragbandit_requests_refused_total", "questions", "count"] == 2
        opened.set()
        assert all(call.result(20)["decision_id"] for call in waiting)
    routed(service.http)


def test_ready(http):
    """/ready names every part and says ok."""
    response = http.get("/ready")
    assert response.status_code == 200
    assert response.json() == {"status": "ok", "parts": {"router": "ok", "database": "ok", "redis": "ok"}}


def test_the_root_leads_to_the_pages(serve):
    """A browser is sent to /ui, a program is told where to read on; without pages both go to /docs."""
    for dashboard, pages in ((True, "/ui"), (False, "/docs")):
        http = serve(server={"dashboard": dashboard}).http
        shown = http.get("/", headers={"accept": "text/html,*/*"})
        assert (shown.status_code, shown.headers["location"]) == (307, pages)
        assert http.get("/").json()["pages"] == pages


def test_no_frame_shows_the_documentation(http):
    """/docs lets itself not be framed, and runs the scripts of the service and the one in the page, by its hash."""
    reply = http.get("/docs")
    policy = reply.headers["content-security-policy"]
    (script,) = re.findall(r"<script>(.*?)</script>", reply.text, flags=re.DOTALL)
    assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy
    assert "frame-ancestors 'none'" in policy
    assert reply.headers["x-frame-options"] == "DENY"


def test_a_rebuild_shows(serve):
    """/ready stays 200 and names it, /v1/status and /metrics say it too."""
    service = serve()
    now = service.router.service.serving
    service.router.service.swap(Serving(policy=now.policy, version=now.version, last_seq=0, rebuilding=True))
    ready = service.http.get("/ready")
    assert (ready.status_code, ready.json()["status"]) == (200, "ok")
    assert ready.json()["parts"]["policy"] == f"rebuilding: {now.version} decides until the policy is learned again"
    assert service.http.get("/v1/status").json()["rebuilding"] is True
    assert "ragbandit_policy_rebuilding 1.0" in service.http.get("/metrics").text


def test_ready_without_redis(serve, tmp_path):
    """Without Redis the service is ready, since it decides and keeps feedback, and says what is missing."""
    client = connect(f"unix://{tmp_path / 'nobody.sock'}")
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
    key = routed(http, arms=["single_step"])["decision_id"]
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


def test_metrics_of_faults(http, service):
    """A decision of the fallback is counted as a fault and shows why."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    service.router.service.serving.policy.pmf = broken
    assert routed(http)["fault"] == "RuntimeError: broken"
    assert http.get("/v1/status").json()["faults"] == 1
    assert measured(http)["ragbandit_policy_faults_total",] == 1


def test_the_judge_shows(serve):
    """/v1/status and /metrics say how many answers wait for the judge, and what was skipped today."""
    judge = {"generator": {"name": "scripted"}, "share": 1.0, "max_waiting": 2}
    service = serve(judge=judge)
    before = service.http.get("/v1/status").json()["judge"]
    for _ in range(3):
        key = routed(service.http)["decision_id"]
        sent = {"decision_id": key, "answer": "Bram Stoker", "steps": 1.0}
        assert service.http.post("/v1/outcomes", json=sent).status_code == 202
    found = service.http.get("/v1/status").json()["judge"]
    assert (before["waiting"], found["waiting"]) == (0, 2)
    assert {name: count for name, count in found["today"].items() if count} == {"skipped": 1}
    numbers = measured(service.http)
    assert numbers["ragbandit_judge_waiting",] == 2
    assert numbers["ragbandit_judge_today", "skipped"] == 1
    assert numbers["ragbandit_judge_today", "dollars"] == 0
