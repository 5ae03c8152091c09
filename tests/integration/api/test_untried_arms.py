"""Arms that were hardly tried, from the store to every surface: counts and no interval; the incumbent has one."""

import io
import re
import time
from collections import Counter

import yaml
from rich.console import Console
from typer.testing import CliRunner

from ragbandit.router.cli.inspection import screen
from ragbandit.router.learning.monitoring.frontier import costs_alike
from ragbandit.router.serving.checks.reports import made_feedback, made_outcome
from ragbandit.router.storage.totals.traffic import Extender
from ragbandit.shared.types import Query
from ragbandit.workers.cli import app

SECONDS = (0.2, 1.8, 6.53)


def lived(service, *, count=120) -> tuple[Counter, Counter]:
    """Draws and judged draws of each arm: questions of which every third is rated, all answered."""
    router, draws, judged = service.router, Counter(), Counter()
    for number in range(count):
        decision = router.submit(Query(text=f"question {number}"), run_by="caller").result(30)
        draws[decision.arm] += 1
        given = {"decision_id": decision.id, "now": time.time()}
        cost = {"seconds_total": SECONDS[number % 3]}
        made = made_outcome(**given, status="answered", answer="Paris", steps=1.0, cost=cost)
        router.submit_outcome(made).result(30)
        if number % 3 == 0:
            rating = number % 2 == 0
            router.submit_feedback(made_feedback(**given, settings=router.settings, rating=rating)).result(30)
            judged[decision.arm] += 1
    router.learn()
    extender = Extender(router.database, holder="test", weight=0.05, clock=lambda: time.time() + 60.0)
    while extender.extend():
        pass
    extender.release()
    return draws, judged


def told(service) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(
        screen(service.http.get("/v1/overview").json(), hours=24, now=time.time(), width=200)
    )
    return out.getvalue()


def test_no_surface_has_a_number_of_an_arm_that_was_hardly_tried(serve):
    """Of arms at 97, 1.5 and 1.5 %, report and page compare with the first alone, and count draws of the others."""
    policy = {"name": "fixed", "params": {"arm": "multi_step"}, "floor": 0.015, "cold_start_floor": 0.0}
    service = serve(policy=policy)
    draws, judged = lived(service)
    found = service.http.get("/v1/report").json()
    lines, page = {one["against"]: one["quality"] for one in found["arms"]}, service.http.get("/ui").text
    assert lines.keys() == {"no_retrieval", "single_step", "multi_step"}
    assert found["total"]["against"] == "multi_step"
    for arm in ("no_retrieval", "single_step"):
        line = lines[arm]
        assert (line["always"], line["difference"], line["low"], line["high"]) == (None, None, None, None)
        assert (line["draws"], line["seen"]) == (draws[arm], judged[arm])
        told_of = rf"not tried enough: {draws[arm]} draws?, {judged[arm]} judged; 10 effective rows needed, "
        assert re.match(told_of, line["missing"])
        assert line["missing"] in page
    assert lines["multi_step"]["low"] < lines["multi_step"]["difference"] < lines["multi_step"]["high"]


def test_arms_that_all_cost_the_same_are_named_everywhere(serve, tmp_path, monkeypatch):
    """After 100 answers of one step each page and `status` say so; one of two steps, and they do not."""
    service = serve(arms={arm: {"run_by": "caller"} for arm in ("fast", "deep")}, policy={"name": "uniform"})
    settings = service.router.settings
    written = settings.model_dump(mode="json", include={"data_dir", "encoder", "arms", "policy"})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(written))
    monkeypatch.chdir(tmp_path)
    lived(service, count=99)

    def said():
        page, status = service.http.get("/ui").text, CliRunner().invoke(app, ["status"]).stdout
        texts = (" ".join(text.split()) for text in (page, status))
        return ["ll arms cost the same, 1, in the newest 100 answers" in text for text in texts]

    assert said() == [False] * 2
    lived(service, count=1)
    assert said() == [True] * 2
    assert costs_alike(service.router.database, reward=settings.reward, arms=["fast", "deep"]) is not None
    assert costs_alike(service.router.database, reward=settings.reward, arms=["fast", "deep", "new"]) is None
    decision = service.router.submit(Query(text="a dear one"), run_by="caller").result(30)
    service.router.outcome(decision.id, answer="Paris", steps=2.0)
    assert said() == [False] * 2


def test_no_surface_has_a_percentile_above_the_largest_latency(serve):
    """Where the slowest answer took 6.53 s, in the bucket up to 10 s, reply, page and `top` have no p95 above it."""
    service = serve(arms={"only": {"run_by": "caller"}})
    lived(service, count=30)
    totals = service.http.get("/v1/overview").json()["totals"]
    assert min(SECONDS) <= totals["p50_s"] <= totals["p95_s"] <= totals["p99_s"] <= max(SECONDS)
    assert totals["p95_s"] > 5.0
    for path in ("/ui", "/ui/arms"):
        assert f"{totals['p95_s']:.1f} s" in service.http.get(path).text
    assert f"{totals['p95_s']:.3f}" in told(service)
    slowest = re.search(
        r'^ragbandit_arm_answer_slowest_seconds{arm="only"} (\S+)$', service.http.get("/metrics").text, re.M
    )
    assert float(slowest[1]) == max(SECONDS)
