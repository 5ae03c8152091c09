"""Prometheus metrics: every name is documented, and what the arms did is told alike by every process."""

import time

from prometheus_client.parser import text_string_to_metric_families

from ragbandit.router.storage.arm_hours.extending import Extender


def families(service):
    text = service.http.get("/metrics").text
    return {family.name: family for family in text_string_to_metric_families(text)}


def sums(family):
    return {(s.name, *sorted(s.labels.items())): s.value for s in family.samples if not s.name.endswith("_created")}


def test_arms_are_told_from_the_totals(service):
    """Decisions, outcomes, tokens, dollars and latencies by arm; a histogram whose buckets add up."""
    for number in range(4):
        made = service.http.post("/v1/route", json={"question": f"question {number}", "arms": ["multi_step"]}).json()
        cost = {"prompt_tokens": 7, "dollars": 0.25, "seconds_total": 0.3 * number}
        outcome = {"decision_id": made["decision_id"], "answer": "Paris", "cost": cost, "steps": 1}
        assert service.http.post("/v1/outcomes", json=outcome).status_code == 202
    Extender(service.router.database, holder="one", clock=lambda: time.time() + 60.0).extend()
    found = families(service)
    arm = ("arm", "multi_step")
    assert sums(found["ragbandit_arm_decisions"])["ragbandit_arm_decisions_total", arm] == 4
    outcomes = sums(found["ragbandit_arm_outcomes"])
    assert outcomes["ragbandit_arm_outcomes_total", arm, ("status", "answered")] == 4
    assert sums(found["ragbandit_arm_dollars"])["ragbandit_arm_dollars_total", arm] == 1.0
    tokens = sums(found["ragbandit_arm_tokens"])
    assert tokens["ragbandit_arm_tokens_total", arm, ("kind", "prompt")] == 28
    seconds = sums(found["ragbandit_arm_answer_seconds"])
    assert seconds["ragbandit_arm_answer_seconds_count", arm] == 3
    assert seconds["ragbandit_arm_answer_seconds_bucket", arm, ("le", "0.5")] == 1
    assert seconds["ragbandit_arm_answer_seconds_bucket", arm, ("le", "+Inf")] == 3
    assert found["ragbandit_totals_behind_seconds"].samples[0].value == 0.0
    assert found["ragbandit_kill_switch"].samples[0].value == 0.0
    workers = sums(found["ragbandit_workers"])
    assert workers["ragbandit_workers", ("queue", "learn"), ("state", "idle")] == 0
