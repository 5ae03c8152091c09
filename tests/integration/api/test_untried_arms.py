"""Arms that were hardly tried, from the store to every surface: counts and no interval; the incumbent has one."""

import re
import time
from collections import Counter

from ragbandit.router.serving.checks.reports import made_feedback, made_outcome
from ragbandit.router.storage.totals import Extender
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
    extender = Extender(router.database, holder="test", weight=0.05, clock=lambda: time.time() + 60.0)
    while extender.extend():
        pass
    extender.release()
    return draws, judged


def test_no_surface_has_a_number_of_an_arm_that_was_hardly_tried(serve):
    """With arms at 97, 1.5 and 1.5 %, report and page compare only with the first one and count draws of the others."""
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
