"""Prometheus metrics: every name is documented, and board and alerts ask for nothing that is not exported."""

import json
import re
import time
from pathlib import Path

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event

from ragbandit.router.storage.policy_versions import add_version
from ragbandit.router.storage.totals import TotalsExtender
from ragbandit.shared.errors import StoreError
from tests.integration.storage.test_policy_versions import draft

ROOT = Path(__file__).parents[3]


def families(service):
    text = service.http.get("/metrics").text
    return {family.name: family for family in text_string_to_metric_families(text)}


def sums(family):
    return {(s.name, *sorted(s.labels.items())): s.value for s in family.samples if not s.name.endswith("_created")}


def test_arms_are_told_from_the_totals(service):
    """Decisions, outcomes, tokens, dollars and latencies by arm; a histogram whose buckets add up."""
    for number in range(4):
        decision = service.http.post(
            "/v1/route", json={"question": f"question {number}", "arms": ["multi_step"]}
        ).json()
        cost = {"prompt_tokens": 7, "dollars": 0.25, "seconds_total": 0.3 * number}
        outcome = {"decision_id": decision["decision_id"], "answer": "Paris", "cost": cost, "steps": 1}
        assert service.http.post("/v1/outcomes", json=outcome).status_code == 202
    TotalsExtender(service.router.database, holder="one", weight=0.05, clock=lambda: time.time() + 60.0).extend()
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


@pytest.mark.parametrize("late", ["read_state", "read_budgets"])
def test_reads_do_not_depend_on_each_other(service, late):
    """If only the budgets, or only the ledger, cannot be read, the metrics of the other one are exported."""

    def fail():
        raise StoreError("the database failed: too slow")

    getattr(service.app.state, late)._read = fail
    exported = families(service)
    assert exported["ragbandit_ledger_readable"].samples[0].value == float(late == "read_budgets")
    assert ("ragbandit_budget_spent_ratio" in exported) == (late == "read_state")
    assert ("ragbandit_ledger" in exported) == (late == "read_budgets")


@pytest.fixture
def service(serve):
    return serve(tenants={"acme": {"dollars_per_day": 5.0}})


@pytest.fixture
def used(service):
    """A service in which everything happened once that has labels."""
    for number in range(22):  # one of two arms is drawn eleven times, so the comparison has a number
        question = {"question": f"Who wrote Dracula {number}?", "arms": ["no_retrieval", "single_step"]}
        decision = service.http.post("/v1/route", json=question).json()
        outcome = {
            "decision_id": decision["decision_id"],
            "answer": "Stoker",
            "steps": 1,
            "cost": {"seconds_total": 0.3},
        }
        service.http.post("/v1/outcomes", json=outcome)
        service.http.post("/v1/feedback", json={"decision_id": decision["decision_id"], "rating": 1.0})
    service.router.learn()
    TotalsExtender(service.router.database, holder="one", weight=0.05, clock=lambda: time.time() + 60.0).extend()
    with service.router.database.write() as connection:
        add_version(connection, draft())
    return families(service)


def test_a_scrape_reads_no_whole_table(service, used):
    """Every statement of a scrape searches an index: it costs the same however many decisions there are."""
    statements, engine = [], service.router.database.engine

    def seen(_connection, _cursor, statement, parameters, _context, _many):
        statements.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", seen)
    assert "ragbandit_arm_decisions" in families(service)
    event.remove(engine, "before_cursor_execute", seen)
    grow = re.compile(r"SCAN (decisions|queries|outcomes|updates|feedback|waiting|closures|arm_hours|snapshots)")
    plans = []
    with service.router.database.read() as connection:
        for statement, parameters in statements:
            if statement.startswith("SELECT"):
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
                plans.append((statement, [row[3] for row in plan]))
    assert len(plans) > 8
    assert [plan for plan in plans if any(map(grow.match, plan[1]))] == []


def asked(expression):
    """(metric, labels that are matched) of every selector, and all labels that results are grouped by."""
    selectors, labels = [], set()
    waiting = [promql_parser.parse(expression)]
    while waiting:
        part = waiting.pop()
        if isinstance(part, promql_parser.VectorSelector):
            selectors.append((part.name, {matcher.name for matcher in part.matchers.matchers}))
        modifier = getattr(part, "modifier", None)
        if isinstance(part, promql_parser.AggregateExpr) and modifier is not None:
            labels |= set(modifier.labels)
        for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
            inner = getattr(part, name, None)
            if inner is not None and not isinstance(inner, str):
                waiting.append(inner)
        waiting += list(getattr(part, "args", None) or [])
    return selectors, labels


def series(used):
    """Name of a series -> the labels that it has."""
    found = {}
    for family in used.values():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def board():
    """Title -> query, of every panel, with Grafana's variables filled in."""
    panels = json.loads((ROOT / "deploy" / "grafana" / "ragbandit.json").read_text())["panels"]
    for panel in panels:
        for target in panel.get("targets", ()):
            filled = target["expr"].replace("$__rate_interval", "5m").replace("$window", "1h")
            yield panel["title"], filled, set(re.findall(r"{{(\w+)}}", target["legendFormat"]))


def alerts():
    document = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def test_board_and_alerts_ask_for_what_is_exported(used):
    """Every query parses; each metric, each label matched, grouped by or shown is one that a service exports."""
    exported = series(used)
    queries = [*board()]
    for rule in alerts():
        shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        queries += [(rule["alert"], rule["expr"], shown)]
    assert len(queries) > 40
    for title, query, shown in queries:
        selectors, grouped = asked(query)
        assert selectors, title
        for name, matched in selectors:
            assert name in exported, f"{title}: {name}"
            assert matched <= exported[name], f"{title}: {name} {matched}"
            own = grouped if name.endswith("_bucket") else grouped - {"le"}
            assert own <= exported[name], f"{title}: {name} {own}"
        assert shown <= grouped, f"{title}: {shown}"


def test_alerts_say_what_to_do():
    """Each rule has a summary, what it means, what to do, and its place in docs/alerts.md."""
    text = (ROOT / "docs" / "alerts.md").read_text()
    anchors = {heading.lower() for heading in re.findall(r"^### (\w+)$", text, flags=re.M)}
    assert anchors == {rule["alert"].lower() for rule in alerts()}
    for rule in alerts():
        notes = rule["annotations"]
        assert {"summary", "meaning", "action", "runbook"} <= notes.keys()
        assert notes["runbook"] == f"docs/alerts.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("warning", "critical")
