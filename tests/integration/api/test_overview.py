"""GET /v1/overview: typed, and for those who may see all tenants."""

import time

from ragbandit.router.storage.totals import Extender


def test_the_overview_over_http(service):
    """The last day by default; a client gets the same as the route; a wrong step is refused."""
    for number in range(3):
        made = service.http.post("/v1/route", json={"question": f"question {number}"}).json()
        service.http.post("/v1/outcomes", json={"decision_id": made["decision_id"], "answer": "Paris"})
    Extender(service.router.database, holder="one", weight=0.05, clock=lambda: time.time() + 60.0).extend()
    found = service.http.get("/v1/overview").json()
    assert found["totals"]["decided"] == found["totals"]["answered"] == 3
    assert 24 <= len(found["points"]) <= 26
    assert service.http.get("/v1/overview", params={"step": 100}).status_code == 422
