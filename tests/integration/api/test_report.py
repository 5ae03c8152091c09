"""The report over CLI, HTTP and page: one sentence everywhere; and the overview over HTTP."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from ragbandit.router.reporting import report as reporting
from ragbandit.router.storage.totals import TotalsExtender
from ragbandit.shared.additions import additions
from tests.support import command

DOLLARS = {"no_retrieval": 0.001, "single_step": 0.01, "multi_step": 0.1}


def test_the_same_everywhere(serve, tmp_path, monkeypatch):
    """The terminal, its JSON, HTTP, the overview and the file that can be sent have one verdict and learning curve."""
    service = serve(policy={"holdback": {"arm": "multi_step", "share": 0.5}})
    for number in range(100):  # by chance at least 10 of them are answered by other arms than multi_step
        decision = service.http.post("/v1/route", json={"question": f"<b>question</b> {number}"}).json()
        cost = {"dollars": DOLLARS[decision["arm"]]}
        body = {
            "decision_id": decision["decision_id"],
            "answer": "Paris",
            "steps": 1,
            "status": "answered",
            "cost": cost,
        }
        service.http.post("/v1/outcomes", json=body).raise_for_status()
        body = {"decision_id": decision["decision_id"], "rating": True}
        service.http.post("/v1/feedback", json=body).raise_for_status()
    service.router.learn()
    found = service.http.get("/v1/report").json()
    assert found["sentence"].startswith("Last 7 days: 100 questions for $")
    assert found["curve"]["against"] == found["total"]["second"] == "always multi_step"
    assert found["curve"]["questions"][-1] == found["curve"]["rated"][-1] == 100
    assert service.http.get("/v1/report", params={"against": "nobody"}).status_code == 404
    said = found["sentence"].split("; ")[1]
    curve = "Reward per question so far, learning included. Last: routing, live 0."
    if "dashboard" in additions():
        page = service.http.get("/ui").text
        assert said in page
        assert curve in page
    monkeypatch.setenv("RAGBANDIT_DATA_DIR", str(service.router.settings.data_dir))
    monkeypatch.setenv("RAGBANDIT_POLICY__HOLDBACK__ARM", "multi_step")
    monkeypatch.chdir(tmp_path)
    done = command.run("report", "--html", "report.html", terminal_width=400, code=0)
    assert said in " ".join(done.stdout.split())
    screen, whole = (command.run("report", *given, terminal_width=80).stdout.splitlines() for given in ([], ["--all"]))
    assert len(screen) <= 24
    assert any("policy.holdback" in line for line in whole)
    printed = json.loads(command.run("report", "--json").stdout)
    assert printed["total"] == found["total"]
    sent = (tmp_path / "report.html").read_text()
    assert said in sent
    assert curve in sent
    assert "<script" not in sent
    assert "http" not in sent.replace("http://www.w3.org", "")
    assert time.time() - printed["until"] < 600.0
    nothing = command.run("report", "--until", "2020-01-01", "--since", "2019-01-01")
    assert "no questions that compare two arms" in " ".join(nothing.stdout.split())


def test_reports_run_one_by_one(serve, monkeypatch):
    """However many reports are asked for at once, one thread makes all of them: their memory does not add up."""
    service = serve()
    read, threads = reporting.read_log, set()

    def noted(*given):
        threads.add(threading.get_ident())
        time.sleep(0.05)  # so that a second thread, if one existed, would be used
        return read(*given)

    monkeypatch.setattr(reporting, "read_log", noted)
    paths = [*(f"/v1/report?since={number}" for number in range(7)), *(["/ui"] if "dashboard" in additions() else [])]
    with ThreadPoolExecutor(len(paths)) as pool:
        assert {reply.status_code for reply in pool.map(service.http.get, paths)} == {200}
    assert len(threads) == 1


def test_the_overview_over_http(service):
    """The last day by default; a client gets the same as the route; a wrong step is refused."""
    for number in range(3):
        decision = service.http.post("/v1/route", json={"question": f"question {number}"}).json()
        service.http.post("/v1/outcomes", json={"decision_id": decision["decision_id"], "answer": "Paris"})
    TotalsExtender(service.router.database, holder="one", weight=0.05, clock=lambda: time.time() + 60.0).extend()
    earned = service.http.get("/v1/overview").json()
    assert earned["totals"]["decided"] == earned["totals"]["answered"] == 3
    assert 24 <= len(earned["points"]) <= 26
    assert service.http.get("/v1/overview", params={"step": 100}).status_code == 422
