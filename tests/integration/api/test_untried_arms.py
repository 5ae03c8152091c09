"""Arms that were hardly tried, from the store to every surface: counts and no interval; the incumbent has one."""

import io
import re
import time
from collections import Counter

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from ragbandit.router.cli.inspection.top import screen
from ragbandit.router.serving.checks.reports import made_feedback, made_outcome
from ragbandit.router.storage.totals.extending import Extender
from ragbandit.shared.types import Query

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
    extender = Extender(router.database, holder="test", clock=lambda: time.time() + 60.0)
    while extender.extend():
        pass
    extender.release()
    return draws, judged


def told(service) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(screen(service.http.get("/v1/overview").json(), now=time.time(), width=200))
    return out.getvalue()


def test_no_surface_has_a_number_of_an_arm_that_was_hardly_tried(serve):
    """Of an incumbent at 97 % and two arms at 1.5 %, reply, page, `top` and metrics have an interval of it alone."""
    policy = {"name": "fixed", "params": {"arm": "multi_step"}, "floor": 0.015, "cold_start_floor": 0.0}
    service = serve(policy=policy)
    draws, judged = lived(service)
    arms = {one["arm"]: one for one in service.http.get("/v1/overview").json()["arms"]}
    assert arms.keys() == {"no_retrieval", "single_step", "multi_step"}
    page, text = service.http.get("/ui").text, told(service)
    gauges = {family.name: family for family in text_string_to_metric_families(service.http.get("/metrics").text)}
    saved_gauge = {sample.labels["arm"] for sample in gauges["ragbandit_arm_saved_reward"].samples}
    effective = {s.labels["arm"]: s.value for s in gauges["ragbandit_arm_effective_rows"].samples}
    for arm in ("no_retrieval", "single_step"):
        saved = arms[arm]["saved"]
        assert (saved["difference"], saved["low"], saved["high"]) == (None, None, None)
        assert (saved["draws"], saved["judged"], saved["needed_rows"]) == (draws[arm], judged[arm], 10)
        assert effective[arm] == saved["effective_rows"] < 10
        told_of = rf"not tried enough: {draws[arm]} draws?, {judged[arm]} judged; 10 effective rows needed, "
        assert re.match(told_of, saved["missing"])
        assert saved["missing"] in page
        assert f"always {arm}: {saved['missing']}" in text
        assert re.search(rf"^{arm} .* not tried enough$", text, flags=re.M)
    saved = arms["multi_step"]["saved"]
    assert saved["low"] < saved["difference"] < saved["high"]
    assert saved["missing"] is None
    assert f"{saved['difference']:+.3f} [{saved['low']:+.3f}, {saved['high']:+.3f}]" in text
    assert page.count('<rect class="range"') == 1
    assert saved_gauge == {"multi_step"}


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
