"""Feedback as the world sends it: many times, in any order, contradicting itself."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from ragbandit.shared.errors import Conflict, NotFound


@pytest.mark.timeout(120)
def test_storm(make_system):
    """Of duplicated, reordered and conflicting feedback each decision learns the first body, once."""
    system = make_system()
    count = 60
    with system.client() as client:
        ids = [
            client.route(f"What is the capital of country {n}?", decision_id=f"storm-{n}")["decision_id"]
            for n in range(count)
        ]
        calls = []
        for key in ids:
            calls += [("outcome", key, {"answer": "Paris", "steps": 1})] * 3
            calls += [("feedback", key, {"feedback_id": f"fb-{key}", "label": ["Paris"]})] * 5
            calls += [("conflict", key, {"feedback_id": f"fb-{key}", "label": ["Madrid"]})] * 2
            calls += [("unknown", f"no-{key}", {"feedback_id": f"un-{key}", "rating": True})]
        random.Random(3).shuffle(calls)

        def send(call):
            kind, key, body = call
            try:
                reply = client.outcome(key, **body) if kind == "outcome" else client.feedback(key, **body)
            except (Conflict, NotFound) as error:
                return kind, key, body.get("label"), type(error)
            return kind, key, body.get("label"), "duplicate" if reply["duplicate"] else "new"

        with ThreadPoolExecutor(16) as pool:
            results = list(pool.map(send, calls))
    found = system.wait_until(lambda s: s.counters.learned == count and s.behind == 0)

    assert found.counters.balanced
    assert found.counters.feedback == count
    by_key: dict[str, list] = {}
    for kind, key, label, result in results:
        if kind == "unknown":
            assert result is NotFound
        elif kind == "outcome":
            by_key.setdefault(f"o:{key}", []).append((None, result))
        else:
            by_key.setdefault(key, []).append((tuple(label), result))
    for key in ids:
        assert sorted(str(r) for _, r in by_key[f"o:{key}"]) == ["duplicate", "duplicate", "new"]
        winner = next(label for label, result in by_key[key] if result == "new")
        for label, result in by_key[key]:
            assert result in ("new", "duplicate") if label == winner else result is Conflict
        assert sum(result == "new" for _, result in by_key[key]) == 1
    with system.client() as client:
        for key in ids[:10]:
            record = client.decision(key)
            right = record["feedback"][0]["value"] == ["Paris"]
            assert record["state"] == "learned"
            assert record["reward"]["quality"] == float(right)
    assert json.loads(system.ragbandit("verify", "--deep", "--json").stdout)["ok"]
