"""A port of its own for operators, in one process."""

import threading
import time

import httpx

from tests.support.servers.http_service import QUESTION, refused, routed

OURS = ("/health", "/ready", "/metrics", "/v1/status")


def admin_url(service) -> str:
    return f"http://127.0.0.1:{service.app.state.admin_port}"


def test_each_port_has_its_own_endpoints(serve):
    """With server.admin_port probes, metrics and status are there alone, and questions on the public port alone."""
    service = serve(server={"admin_port": 0})
    for path in OURS:
        refused(service.http.get(path), 404, "NOT_FOUND")
        assert httpx.get(admin_url(service) + path).status_code == 200
    routed(service.http)
    reply = httpx.post(f"{admin_url(service)}/v1/route", json={"question": QUESTION})
    refused(reply, 404, "NOT_FOUND")
    assert httpx.get(f"{admin_url(service)}/v1/models").json()["error"]["type"] == "invalid_request_error"
    for base in (service.url, admin_url(service)):
        assert httpx.get(f"{base}/docs").status_code == 200


def test_operators_are_answered_while_the_public_port_stands_still(serve):
    """While the event loop of the public port is blocked, probes and metrics come from the operators'."""
    service = serve(server={"admin_port": 0})
    routed(service.http)
    blocked, opened = threading.Event(), threading.Event()
    loop = service._server.servers[0].get_loop()
    loop.call_soon_threadsafe(lambda: (blocked.set(), opened.wait(20)))
    assert blocked.wait(10)
    try:
        for path in ("/health", "/ready", "/metrics"):
            began = time.monotonic()
            assert httpx.get(admin_url(service) + path).status_code == 200
            assert time.monotonic() - began < 10, path
    finally:
        opened.set()
    assert (
        'ragbandit_requests_total{path="/v1/route",status="200"} 1.0' in httpx.get(f"{admin_url(service)}/metrics").text
    )
