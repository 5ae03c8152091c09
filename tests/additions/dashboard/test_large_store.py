"""Pages in a large store: what they read does not grow with it."""

import time
from types import SimpleNamespace

import pytest
from sqlalchemy import insert

from ragbandit.additions.dashboard import operation, search as decision_search
from ragbandit.router.serving import overview
from ragbandit.router.serving.explanations import policy_map
from ragbandit.router.storage.sql.tables import closures, counters
from tests.support.large_store import grow, rows_counted, steps_counted
from tests.support.servers.visitors import answered

#: threads that read for pages; the loops of a service read at the same time
READERS = ("ragbandit-reads", "ragbandit-state")
#: steps of SQLite's machine by which a page may cost more in a larger store: a deeper tree of an index, and no scan
MORE = 3_000


@pytest.fixture
def world(serve):
    """A service with a decision that was learned, and one that was quarantined."""

    def start(**given):
        service = serve(**given)
        ids = [answered(service, f"Question {n}?", rating=1.0, rater="ann") for n in range(3)]
        service.router.learn()
        label = service.router.ledger.label
        with service.router.database.write() as connection:
            gone = {"policy": label, "decision_id": ids[1], "field": "features", "reason": "broken", "made_at": 9e9}
            connection.execute(insert(closures).values(state="quarantined", **gone))
            row = {"label": label, "name": "quarantined", "shard": 9_999, "value": 1}
            connection.execute(insert(counters).values(row))
        like = dict.fromkeys(("decisions", "outcomes", "feedback", "updates"), ids[0])
        service.like = like | {"closures": ids[1]}
        service.ids = ids
        return service

    return start


def pages_of(service) -> dict[str, str]:
    return {
        "overview": "/ui?time=month",
        "arms": "/ui/arms?time=year",
        "decisions": "/ui/decisions",
        "by session": "/ui/decisions?session=s-7",
        "by an unknown session": "/ui/decisions?session=nobody",
        "by time": "/ui/decisions?until=2020-01-01T00:00",
        "by arm": "/ui/decisions?arm=nobody",
        "by state": "/ui/decisions?state=quarantined",
        "decision": f"/ui/decisions/{service.ids[0]}",
        "policies": "/ui/policies",
        "feedback": "/ui/feedback",
        "queues": "/ui/queues",
    }


def costs(service) -> dict[str, int]:
    """What each page reads; twice, since the first time fills caches."""
    found, database = {}, service.router.database
    with (steps_counted if database.is_sqlite else rows_counted)(database) as counted:
        for name, path in list(pages_of(service).items()) * 2:
            counted.clear()
            service.http.get(path).raise_for_status()
            found[name] = sum(count for thread, count in counted.items() if thread.startswith(READERS))
    return found


def test_pages_read_no_more_in_a_larger_store(world, monkeypatch):
    """Six times the rows in every table cost no page more than a deeper index; no scan hides behind a bound."""
    monkeypatch.setattr(operation, "LOOKED_AT", 100)
    monkeypatch.setattr(decision_search, "LOOKED_AT", 100)
    monkeypatch.setattr(policy_map, "LOOKED_AT", 100)
    monkeypatch.setattr(overview, "MOST_UNCOUNTED", 100)
    # The overview's report is cached for the minute, which must not end between two loads of the page.
    begin = time.time()
    monkeypatch.setattr(operation, "time", SimpleNamespace(time=lambda: begin))
    service = world()
    grow(service.router.database, first=1, last=2_000, like=service.like)
    small = costs(service)
    grow(service.router.database, first=2_001, last=12_000, like=service.like)
    large = costs(service)
    told = service.http.get("/ui/feedback").text
    assert f"/ui/decisions/{service.ids[1]}" in told  # quarantined
    assert min(small.values()) > 0
    assert {name: (small[name], large[name]) for name in small if large[name] > small[name] + MORE} == {}
