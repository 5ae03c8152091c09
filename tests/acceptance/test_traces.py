"""One trace over real processes: service and worker, sent by OTLP to a receiver of the test."""

import json

import httpx
import pytest

pytest.importorskip("opentelemetry.sdk")

from tests.support.servers.otlp_receiver import OtlpReceiver

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
QUESTION = "What is the capital of Zygmuntland?"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_one_trace_over_all_processes(make_system, monkeypatch):
    """Request, decision, arm, retrieval and model are one trace; the logs have its ids, and no text."""
    receiver = OtlpReceiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    system = make_system(telemetry={"enabled": True}, log={"format": "json"}, arms={"single_step": {}})
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01", "x-request-id": "mine-1"}
    with httpx.Client(base_url=f"http://127.0.0.1:{system.ports['api-1']}", timeout=60) as http:
        decision = http.post("/v1/answer?wait_s=30", json={"question": QUESTION}, headers=headers).json()
        assert (decision["status"], decision["trace_id"]) == ("answered", TRACE)
        told = {"decision_id": decision["decision_id"], "rating": 1.0}
        assert http.post("/v1/feedback", json=told).status_code == 202
        receiver.wait_for(spans=6)
    system.wait_until(lambda found: found.counters.learned == 1)
    system.stop()
    ours = [span for span in receiver.spans if span.trace == TRACE]
    by_name = {span.name.split(" ")[0]: span for span in ours}
    assert {
        name: by_name[name].process for name in ("POST", "ragbandit.decide", "invoke_workflow", "retrieval", "chat")
    } == {
        "POST": "service",
        "ragbandit.decide": "service",
        "invoke_workflow": "worker",
        "retrieval": "worker",
        "chat": "worker",
    }
    assert by_name["POST"].parent == SPAN
    assert by_name["ragbandit.decide"].parent == by_name["POST"].span
    assert by_name["invoke_workflow"].parent == by_name["ragbandit.decide"].span
    assert by_name["retrieval"].parent == by_name["chat"].parent == by_name["invoke_workflow"].span
    assert not any(b"Zygmuntland" in body or b"Paris" in body for body in receiver.raw)
    lines = [json.loads(line) for log in system.folder.glob("*.log") for line in log.read_text().splitlines()]
    (answered,) = (line for line in lines if line["message"] == "answered")
    assert (answered["decision"], answered["trace"], answered["request"]) == (decision["decision_id"], TRACE, "mine-1")
    assert not any("Zygmuntland" in json.dumps(line) for line in lines)
    receiver.close()
