"""Pages of the dashboard: what they show of an empty store, one arm, many arms, and of hostile texts."""

import json
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

from ragbandit.additions.dashboard.endpoints import DOOR
from ragbandit.additions.dashboard.rendering import STATIC
from ragbandit.router.learning.monitoring.diagnosis import ArmDiagnosis, Diagnosis
from ragbandit.router.queue.presence import WorkerState
from ragbandit.router.rollouts import verbs
from ragbandit.router.storage import policy_versions as store
from ragbandit.router.storage.sql.leases import Lease
from ragbandit.router.storage.sql.tables import policies
from ragbandit.router.storage.totals import TotalsExtender
from ragbandit.testing.doors import check_door
from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.support.rollouts import add, do
from tests.support.servers.faulty_models import generator
from tests.support.servers.http_service import routed
from tests.support.servers.visitors import answered

TEMPLATES = STATIC.parent / "templates"
PAGES = ("/ui", "/ui/arms", "/ui/decisions", "/ui/policies", "/ui/feedback", "/ui/labels", "/ui/queues")
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"{{7*7}}\x1b[2J\x07\u202etxt.exe\u2028&amp;"


class Tags(HTMLParser):
    """Every tag of a page with its attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        #: (title, its numbers) of each picture
        self.cells: list[tuple[str, list[str]]] = []
        self._is_number = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append((tag, given))
        if (given.get("aria-label") or "").endswith(": numbers"):
            self.cells.append((given["aria-label"].removesuffix(": numbers"), []))
        self._is_number = tag == "td" and given == {"class": "number"}

    def handle_data(self, data):
        self.words.append(data)
        if self._is_number and self.cells:
            self.cells[-1][1].append(data)

    def handle_endtag(self, tag):
        self._is_number = False


class FixedState:
    """A state that pages read again and again."""

    def __init__(self, state) -> None:
        self._state = state

    async def value(self):
        return self._state

    def close(self) -> None:
        pass


def arms(count: int) -> dict[str, object]:
    return {f"arm_{number:02}": {"class": "caller"} for number in range(count)}


def counted(service) -> None:
    """The hourly totals hold everything."""
    extender = TotalsExtender(service.router.database, holder="test", weight=0.05, clock=lambda: time.time() + 60.0)
    while extender.extend():
        pass
    extender.release()


def test_an_empty_store_says_so(service, visit):
    """Every page of a service that has seen nothing is there, and says what is missing."""
    browser = visit(service)
    texts = {path: browser.page(path) for path in PAGES}
    assert "There is no decision yet" in texts["/ui/decisions"]
    assert "Only the configured policy decides" in texts["/ui/policies"]
    assert "No source is left out" in texts["/ui/feedback"]
    assert "no learner runs" in texts["/ui/queues"]
    assert "No worker is registered" in texts["/ui/queues"]
    assert "All is well" not in texts["/ui/queues"]
    assert "There are no decisions in this period" in texts["/ui"]
    assert "No arm was used" in texts["/ui/arms"]
    assert 'href="/ui/static/dashboard.css"' in browser.page("/ui/static/nothing.css", status=404)


def test_what_was_earned_is_told(service, visit):
    """Overview and Arms tell reward, quality, traffic and failures of a time, with words where lines are too early,
    and the same before a learner has counted the rows.
    """
    browser = visit(service)
    for rating in (1.0, 0.5):
        answered(service, rating=rating)
    routed(service.http, question="Nobody answers?")
    service.router.learn()
    for _ in range(2):
        text = "".join(Tags(browser.page("/ui")).words)
        assert re.search(r"Quality\s*0\.75\s*of 2 rated questions", text)
        assert re.search(r"Decisions\s*3\s*\d explored", text)
        assert re.search(r"Failed answers\s*0 %\s*0 of 2", text)
        assert "is not known yet; missing: " in text
        assert "no decisions in this period" not in text
        counted(service)
    assert re.search("The latest (minute|hour) is incomplete", text)  # an hour, if one began since the first question
    arm = browser.page("/ui/arms?time=week")
    assert 'aria-current="true">last 7 days' in arm
    browser.page("/ui?time=century", status=422)


def test_rows_of_arms_have_their_ratings_and_are_not_compared(serve, visit):
    """The table of arms has the number of ratings, bars in the arms' colours, and a link to what compares arms, but no
    reward and no quality, since the arms answered different questions; latencies have columns only if one is known.
    """
    service = serve(arms=arms(2), policy={"name": "uniform"})
    for number in range(12):
        answered(service, f"question {number}", rating=1.0 if number < 5 else None)
    service.router.learn()
    counted(service)
    browser = visit(service)
    page = browser.page("/ui/arms")
    assert sum(map(int, re.findall(r'data-label="Rated">(\d+)<', page))) == 5
    assert {*re.findall(r'<svg class="bar".*?<rect class="(arm-.)"', page)} == {"arm-0", "arm-1"}
    assert 'Which arm is better: see the <a href="/ui?time=day">Overview</a>' in page
    assert "Quality" not in page
    assert ">Reward<" not in page
    assert "Median" not in page
    named = routed(service.http, question="Timed?")["decision_id"]
    body = {"decision_id": named, "answer": "x", "steps": 1, "cost": {"seconds_total": 2.0}}
    service.http.post("/v1/outcomes", json=body).raise_for_status()
    counted(service)
    assert "Median" in browser.page("/ui/arms")


def test_charts_of_the_first_hour_have_a_point_a_minute(service, visit, monkeypatch):
    """Before the second hour the charts count minutes; reward, quality and shares are those of the rows."""
    browser = visit(service)
    now = time.time() // 3600 * 3600 - 1800.0  # half past an hour, so that all decisions are in the same hour
    monkeypatch.setattr("ragbandit.additions.dashboard.operation.time", SimpleNamespace(time=lambda: now))
    for minute in (9, 4, 4, 1):
        service.router.service.clock = lambda at=now - 60.0 * minute: at
        answered(service, rating=1.0 if minute == 9 else 0.5)
    service.router.service.clock = time.time
    service.router.learn()
    counted(service)
    page = Tags(browser.page("/ui"))
    cells = dict(page.cells)
    assert sorted(cells["Decisions"])[-2:] == ["1", "2"]  # decisions of one minute
    assert "1.000 of 1" in cells["Reward and quality per question"]
    assert "Dashed: the latest minute, not over yet. Hollow: fewer than 5 ratings." in "".join(page.words)
    assert "The latest minute is incomplete" in "".join(page.words)
    assert "Share of the decisions" in browser.page("/ui/arms")


def test_an_answer_is_rated_on_its_page(service, visit, with_keys):
    """The page of a decision takes right or wrong from a form of its own; readers and other sites rate nothing."""
    named = answered(service)
    browser = visit(service)
    path = f"/ui/decisions/{named}"
    done = browser.send(f"{path}/rating", on=path, rating="false")
    assert (done.status_code, done.headers["location"]) == (303, path)
    [kept] = service.http.get(f"/v1/decisions/{named}").json()["feedback"]
    assert (kept["source"], kept["kind"], kept["value"]) == ("human", "rating", 0.0)
    assert browser.send(f"{path}/rating", on=path, rating="maybe").status_code == 422
    foreign = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "cross-site"}
    assert browser.http.post(f"{path}/rating", data={"rating": "true"}, headers=foreign).status_code == 403
    open_one = routed(service.http, question="Nobody answers?")["decision_id"]
    assert "Is the answer right?" not in browser.page(f"/ui/decisions/{open_one}")
    reader = visit(service)
    reader.log_in(with_keys(service, "reader"))
    assert "Is the answer right?" not in reader.page(path)
    assert (
        reader.http.post(
            f"{path}/rating", data={"rating": "true"}, headers=foreign | {"sec-fetch-site": "same-origin"}
        ).status_code
        == 403
    )


def test_a_turn_of_a_task_says_what_became_of_its_task(serve, visit):
    """The page of a later turn links its decision, has the task's state, offers no rating of a learned task, and calls
    nothing the caller's choice; the list of decisions has the same state.
    """
    service = serve(conversation={"unit": "task"})
    ids = [answered(service, f"question {number}", session_id="s") for number in range(3)]
    service.http.post("/v1/sessions/s/end", json={}).raise_for_status()
    service.http.post("/v1/feedback", json={"decision_id": ids[2], "rating": True}).raise_for_status()
    service.router.learn()
    browser = visit(service)
    page = browser.page(f"/ui/decisions/{ids[2]}")
    text = " ".join("".join(Tags(page).words).split())
    assert f'href="/ui/decisions/{ids[0]}"' in page
    assert "Turn 3 of a task, which belongs to decision" in text
    assert f"As part of decision {ids[0]}: learned from feedback, as update 1 of its ledger." in text
    wrong = ("the caller chose", "Waits", "Is the answer right?", "loop of tools", "Probability", "The user wrote")
    assert not [word for word in wrong if word in text]
    listed = "".join(Tags(browser.page("/ui/decisions")).words)
    assert (listed.count("learned"), listed.count("waiting")) == (4, 1)  # each turn, and both in the search form
    record = service.http.get(f"/v1/decisions/{ids[2]}").json()
    assert (record["turn_of"], record["state"], record["learned_seq"]) == (ids[0], "learned", 1)
    assert service.http.get(f"/v1/decisions/{ids[0]}").json()["turn_of"] is None


def test_a_task_lists_its_turns_with_links_and_folds_the_earlier_ones(serve, visit):
    """The page of a task with many turns has a link, an arm and the dollars of each later turn; the newest five are
    open, the others folded, and no id stands in the trace.
    """
    service = serve(conversation={"unit": "task"}, reward={"cost": {"dollars": 1.0}})
    ids = []
    for number in range(12):
        ids.append(routed(service.http, question=f"question {number}", session_id="s")["decision_id"])
        cost = {"dollars": round(0.01 * (number + 1), 2)}
        body = {"decision_id": ids[-1], "answer": "x", "steps": 1, "status": "answered", "cost": cost}
        service.http.post("/v1/outcomes", json=body).raise_for_status()
    page = visit(service).page(f"/ui/decisions/{ids[0]}")
    arm = service.http.get(f"/v1/decisions/{ids[0]}").json()["arm"]
    listed, _, folded = page.partition("<summary>6 earlier turns</summary>")
    links = [[part.partition('"')[0] for part in half.split('href="/ui/decisions/')[1:]] for half in (listed, folded)]
    assert links == [ids[:6:-1], ids[6:0:-1]]
    rows = [
        " ".join(" ".join(Tags(f"<td>{row}").words).split()) for row in page.split('<tr><th scope="row" class="long">')
    ]
    assert all(
        f"question {number} {arm} answered ${0.01 * (number + 1):g}" in rows[12 - number] for number in range(1, 12)
    )
    assert "task_turn" not in page
    assert "task turn" not in page


def test_the_page_of_a_task_is_in_words(serve, visit):
    """A task of six turns has five later ones, a rating by code, and what the arm noted; a count of 0 is left out."""
    call = {"id": "call_1", "type": "function", "function": {"name": "tide", "arguments": "{}"}}
    tools = [{"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {}}}}]
    script = {"TIDE": Reply(message={"tool_calls": [call]}, finish="tool_calls"), "": "noon"}
    with ScriptedServer(script) as server:
        service = serve(
            inline=True,
            arms={"one": {"class": "model"}},
            generator=generator(server.url, "one") | {"supports": ["tools"]},
            conversation={"unit": "task", "rewrite": {"by": "off"}},
        )
        ids = []
        for text in ("TIDE?", *("And?",) * 5):
            body = {"model": "auto", "messages": [{"role": "user", "content": text}], "tools": tools}
            reply = service.http.post("/v1/chat/completions", json=body, headers={"x-ragbandit-session-id": "s"})
            ids.append(reply.raise_for_status().json()["id"].removeprefix("chatcmpl-"))
        service.http.post("/v1/sessions/s/end", json={}).raise_for_status()
        service.router.feedback(ids[0], rating=1.0, source="code")
        service.router.learn()
        page = visit(service).page(f"/ui/decisions/{ids[0]}")
    text = " ".join(" ".join(Tags(page).words).split())
    assert "Quality is a rating by code." in text
    assert "later turns 5" in text
    assert "Noted tool calls 1" in text
    assert "steps 0" not in text
    assert "by label" not in text


def test_commands_on_pages_are_code(serve, visit):
    """A page shows a command as code, without backticks, and has no button for what cannot run here."""
    service = serve(arms={name: {"run_by": "caller"} for name in ("small", "large")}, policy={"name": "uniform"})
    for number in range(20):
        answered(service, f"question {number}")
    browser = visit(service)
    pages = {path: browser.page(path) for path in PAGES}
    assert "<code>ragbandit report --since 1d --decide --module MODULE:NAME --judge labels</code>" in pages["/ui"]
    assert [path for path, page in pages.items() if "`" in page] == []
    assert "/ui/decide" not in pages["/ui"]  # no learner has the functions of these arms


def test_budgets_are_on_the_overview(serve, visit):
    """The overview has every budget with what it does to the choices, and none without a budget."""
    service = serve(tenants={"default": {"dollars_per_month": 1.0}}, reward={"cost": {"dollars": 1.0}})
    browser = visit(service)
    named = routed(service.http)["decision_id"]
    page = browser.page("/ui")
    assert "tenant default has spent 0 % of its 1 dollars of the month" in page
    assert "raises the price" not in page
    body = {"decision_id": named, "answer": "x", "status": "answered", "cost": {"dollars": 3.0}}
    service.http.post("/v1/outcomes", json=body).raise_for_status()
    page = browser.page("/ui")
    assert re.search(
        r"the budget of the tenant default raises the price 1,000-fold now; \w+ answers 100 % of its questions", page
    )
    assert page.index("dollar budgets: the tenant default has spent") < page.index('class="hero')  # it needs a hand


#: the name, value and note of a tile
TILE = re.compile(r'<dl class="card"><dt>(.*?)</dt><dd class="main">(.*?)</dd>(?:<dd class="soft">(.*?)</dd>)?</dl>')


def test_what_needs_a_hand_stands_first(serve, visit):
    """The overview begins with problems, then spent budgets and other warnings, of which three are open; the report and
    the charts follow.
    """
    service = serve(
        arms={name: {"class": "model"} for name in ("small", "large")},
        server={"model_aliases": {"claude-*": "arm/nobody"}},
        tenants={"default": {"dollars_per_day": 1.0}},
        reward={"cost": {"dollars": 1.0}},
        rules=[{"name": "own", "when": {"tenant": "defolt"}, "arms": ["small"]}],
        policy={"incumbent": "large"},
        learning={"expire_s": 1e6},
    )
    body = {"decision_id": routed(service.http)["decision_id"], "answer": "x", "status": "answered"}
    service.http.post("/v1/outcomes", json=body | {"cost": {"dollars": 3.0}}).raise_for_status()
    page = visit(service).page("/ui")
    folded = re.search(r"<summary>\d more</summary>", page)
    first = ("every request for it gets 404", "the tenant default has spent 300 %", 'class="hero', "<h2>Over time</h2>")
    places = [page.index(text) for text in first]
    assert places == sorted(places)
    assert places[1] < folded.start() < places[2]


def test_a_drift_stands_at_the_top_of_the_overview(serve, visit):
    """What an arm's drift asks for stands once, before the report; the report's step names the newer period, and the
    state of learning refers to the top.
    """
    service = serve(arms={name: {"run_by": "caller"} for name in ("small", "large")}, policy={"name": "uniform"})
    for number in range(14):
        answered(service, f"question {number}", rating=1.0)
    service.router.learn()
    service.router.status()  # stores a diagnosis; the one below then stays
    drifting = {"state": "drifting", "worth": 0.1, "labels": 30, "questions": 90}
    diagnosis = {"state": "drifting", "arms": {"small": drifting}, "judged": {"small": 2}}
    with service.router.database.write() as connection:
        connection.execute(policies.update().values(diagnosis=json.dumps(diagnosis)))
    top, _, rest = visit(service).page("/ui").partition('class="hero')
    changed = r"small has changed about \d+ questions? ago; since then \d+ % of the questions go to it"
    assert len(re.findall(f"drift: {changed}; do: look at what changed behind small", top)) == 1
    assert len(re.findall(changed, rest)) == len(re.findall(f"<li>{changed}. .*--since ", rest)) == 1
    assert "See the top of this page." in rest


def test_no_tile_of_the_overview_is_empty(serve, visit):
    """A tile without a value says what fills it, or is not there: of an empty store, of answers, of a rated answer."""
    service = serve()
    browser = visit(service)
    empty = []
    for step in (None, {}, {"rating": 1.0}):
        if step is not None:
            answered(service, **step)
            service.router.learn()
        tiles = TILE.findall(browser.page("/ui"))
        assert len(tiles) > 5
        empty.append({name: note for name, value, note in tiles if value == "\N{EN DASH}"})
    unrated = {"Reward and quality": "appear with the first rating or label"}
    assert empty == [unrated, unrated, {}]


def test_each_total_of_the_overview_says_of_what_it_is(serve, visit):
    """Questions, decisions, answers and dollars are counted apart: later turns have answers, and are no decisions."""
    service = serve(
        arms={name: {"run_by": "caller"} for name in ("small", "large")},
        conversation={"unit": "task"},
        reward={"cost": {"dollars": 1.0}},
        policy={"name": "uniform"},
    )
    for number in range(4):
        for _ in range(2):
            named = routed(service.http, question=f"question {number}", session_id=f"s{number}")["decision_id"]
            body = {"decision_id": named, "answer": "x", "status": "answered", "cost": {"dollars": 0.5}}
            service.http.post("/v1/outcomes", json=body).raise_for_status()
        service.router.feedback(named, rating=1.0)
        if number < 3:
            service.http.post(f"/v1/sessions/s{number}/end", json={}).raise_for_status()
    service.router.learn()
    tiles = {name: (value, note) for name, value, note in TILE.findall(visit(service).page("/ui"))}
    (against,) = (name for name in tiles if name.startswith("compared with always "))
    assert [tiles[name][0] for name in ("questions", against, "rated of the compared")] == ["4", "3", "3"]
    assert tiles["spent"][0].startswith("$4.00")
    assert tiles["Dollars per answer"] == ("$0.5", "$4 for 8 answers, later turns of tasks included")
    assert tiles["Decisions"][0] == "4"
    assert tiles["Decisions"][1].endswith("explored; also those that no comparison includes")
    assert tiles["Decisions since the beginning"] == ("4", "1 waits for feedback or an outcome")
    assert tiles["Quality"][1] == tiles["Reward per question"][1].rpartition("; ")[2] == "of 3 rated questions"


def test_dollars_have_their_sign(serve, visit):
    """Every amount of dollars on the pages Overview and Arms, and on that of a decision, has a dollar sign, also in the
    charts, which need decisions of two minutes.
    """
    service = serve(arms={"one": {"run_by": "caller"}}, reward={"cost": {"dollars": 1.0}})
    now = time.time()
    for at in (now - 120.0, now):
        service.router.service.clock = lambda at=at: at
        named = routed(service.http)["decision_id"]
        body = {"decision_id": named, "answer": "x", "status": "answered", "cost": {"dollars": 0.1234}}
        service.http.post("/v1/outcomes", json=body).raise_for_status()
        service.router.feedback(named, rating=1.0)
    service.router.service.clock = time.time
    service.router.learn()
    counted(service)
    browser = visit(service)
    for path in ("/ui", "/ui/arms"):
        amounts = re.findall(r".0\.123", browser.page(path))
        assert amounts == ["$0.123"] * len(amounts), path
        assert len(amounts) > 2
    assert '<th scope="row">dollars</th><td>$0.1234</td>' in browser.page(f"/ui/decisions/{named}")


def test_only_what_can_be_done_is_amber(service, visit):
    """In the list of decisions an answer that nobody rated, and a question without an answer, are grey."""
    answered(service, "Rated?", rating=1.0)
    service.router.learn()
    answered(service, "Unrated?")
    routed(service.http, question="Nobody answers?")
    page = visit(service).page("/ui/decisions")
    table = page[page.index("<tbody>") :]
    states = re.findall(r'<span class="state (\w+)">(.*?)</span>', table)
    assert states == [
        *(("quiet", "waiting"), ("quiet", "waiting")),
        *(("good", "answered"), ("quiet", "nobody rated it")),
        *(("good", "answered"), ("quiet", "learned")),
    ]


def test_an_arm_that_is_never_learned_stands_first(service, visit):
    """The overview shows a stuck policy with the remedy before any verdict, and only once."""
    arm, state = service.router.service.arms[0], service.router.state()
    learning = Diagnosis(
        state="stuck", arms={arm: ArmDiagnosis(state="stuck", worth=0.1, labels=80, questions=None)}, judged={arm: 2}
    )
    service.app.state.read_state = FixedState(replace(state, ledger=replace(state.ledger, learning=learning)))
    page = visit(service).page("/ui")
    assert page.count("label its answers, raise policy.floor") == 1
    assert page.index("label its answers, raise policy.floor") < page.index('class="hero')
    assert "See the top of this page" in page


def test_no_sentence_calls_all_arms_alone(service, visit):
    """A question that allows every arm is not restricted; one that allows fewer is."""
    arms = sorted(service.router.service.arms)
    every, fewer = (routed(service.http, question="Which?", arms=names)["decision_id"] for names in (arms, arms[:2]))
    browser = visit(service)
    assert "allowed only" not in browser.page(f"/ui/decisions/{every}")
    assert f"allowed only these arms: {', '.join(arms[:2])}" in browser.page(f"/ui/decisions/{fewer}")


def test_every_picture_has_its_table(serve, visit, monkeypatch):
    """Each chart of forty arms has a table with its numbers, a sentence, and lines of the eight arms used most."""
    service = serve(arms=arms(40))
    browser, now = visit(service), time.time()
    monkeypatch.setattr("ragbandit.additions.dashboard.operation.time", SimpleNamespace(time=lambda: now))
    for number in range(30):
        service.router.service.clock = lambda at=now - 3600.0 * (number % 3): at
        routed(service.http, question=f"Question {number}?")
    counted(service)
    parsed = Tags(browser.page("/ui/arms"))
    told = [given["aria-label"] for tag, given in parsed.tags if tag == "div" and given.get("role") == "img"]
    assert [one.partition(" ")[0] for one in told] == ["Share"]
    assert told[0].startswith("Share of the decisions. Last: arm_")
    assert [len(cells) for title, cells in parsed.cells] == [8 * 3]
    assert "the eight arms" in "".join(parsed.words)


def test_one_decision_is_told_whole(service, visit):
    """Its page has probabilities, answer, feedback, how the reward was made, and its place in the ledger."""
    browser = visit(service)
    named = answered(service, rating=0.75, rater="ann")
    service.router.learn()
    text = browser.page(f"/ui/decisions/{named}")
    record = service.router.decision(named)
    assert "Who wrote Dracula?" in text
    assert "Bram Stoker" in text
    assert "ann" in text
    assert f"update {record.learned_seq} of the ledger" in text
    assert all(arm in text for arm in record.decision.arms)
    assert "drawn</small>" in text
    assert browser.http.get(f"/ui/decisions?id={named}").headers["location"] == f"/ui/decisions/{named}"


def test_a_cost_in_dollars_has_its_sign(serve, visit):
    """The page of a decision has $ before each cost if the reward charges dollars, and one name for the place in the
    ledger.
    """
    service = serve(arms=arms(2), reward={"cost": {"dollars": 1.0}, "weight": 5.0})
    named = routed(service.http)["decision_id"]
    body = {"decision_id": named, "answer": "x", "cost": {"dollars": 0.02}}
    service.http.post("/v1/outcomes", json=body).raise_for_status()
    service.http.post("/v1/feedback", json={"decision_id": named, "rating": 1.0}).raise_for_status()
    service.router.learn()
    page = "".join(Tags(visit(service).page(f"/ui/decisions/{named}")).words)
    assert "quality 1, cost $0.02" in page
    assert re.search(r"1 . 5 . \$0\.02 = 0\.9", page)
    assert "update 1 of the ledger" in page
    assert not re.search(r"\bseq\b|row 1", page)


def test_the_page_queues_begins_with_what_is_wrong(service, visit, monkeypatch):
    """The first line says that all is well, or which part is not; a lease that ran out is free, not a fault."""
    browser, router = visit(service), service.router
    parts = {"database": "ok"}
    monkeypatch.setattr(type(router.process.readiness), "states", lambda _self: parts)
    learner = WorkerState(name="one", queue="learn", state="idle", host="here", heard_at=None)
    service.app.state.read_state = FixedState(replace(router.state(), workers=[learner]))
    Lease(database=router.database, name="ready:1").acquire(holder="ready", lease_s=-5.0)
    page = "".join(Tags(browser.page("/ui/queues")).words)
    assert page.index("All is well: every part replies") < page.index("Parts")
    assert re.search(r"free, last held .* ago", page)
    parts["redis"] = "it does not reply"
    page = "".join(Tags(browser.page("/ui/queues")).words)
    assert page.index("redis: it does not reply") < page.index("Parts")
    assert "All is well" not in page


def test_feedback_has_its_share_and_keys_only_if_some_were_sent(service, visit):
    """The page Feedback has the share of rated decisions, and no column of keys if no key was asked for."""
    for number in range(4):
        answered(service, f"question {number}", rating=1.0 if number == 0 else None)
    service.router.learn()
    page = "".join(Tags(visit(service).page("/ui/feedback")).words)
    assert "of 4 (25 %) from ratings and labels" in page
    assert "Who teaches" in page
    assert "API key" not in page


def test_the_kill_switch_says_what_answers_then(service, visit):
    """The page Policies spells the default policy out, and names what answers under the kill switch."""
    page = "".join(Tags(visit(service).page("/ui/policies")).words)
    assert "multi-armed bandit, of the configuration" in page
    assert f"one arm for every question ({' or '.join(service.router.service.arms)}), or only the champion" in page


def test_the_search_finds_by_each_field(service, visit):
    """Session, arm, state and time filter the list, also together; an invalid time or state is reported."""
    browser = visit(service)
    first = answered(service, "First?", session_id="chat/1", rating=1.0)
    service.router.learn()
    second = routed(service.http, question="Second?")
    learned = browser.page("/ui/decisions?state=learned")
    assert "First?" in learned
    assert "Second?" not in learned
    waiting = browser.page("/ui/decisions?state=waiting")
    assert "Second?" in waiting
    assert "First?" not in waiting
    assert "Second?" not in browser.page("/ui/decisions?session=chat/1")
    assert "Second?" in browser.page(f"/ui/decisions?arm={second['arm']}&state=waiting")
    assert "No decision matches" in browser.page("/ui/decisions?arm=nobody")
    assert "First?" in browser.page("/ui/decisions?since=2020-01-01T00:00&until=2100-01-01T00:00")
    assert "No decision matches" in browser.page("/ui/decisions?until=2020-01-01T00:00")
    for wrong in ("state=gone", "since=yesterday", "after=x", "id=a/b"):
        browser.page(f"/ui/decisions?{wrong}", status=422)
    browser.page(f"/ui/decisions/{first}")


def test_texts_of_others_are_texts(serve, visit):
    """Markup, template syntax, terminal escapes and turned text in every field that others write are shown as signs."""
    service = serve(arms={"one": {"class": "caller"}})
    browser = visit(service)
    named = answered(service, HOSTILE, answer=HOSTILE, rating=1.0, rater=HOSTILE[:40], session_id="s1")
    service.router.learn()
    label = service.router.ledger.label
    told = {"changes": {"policy": {"name": HOSTILE}}, "actor": HOSTILE, "reason": HOSTILE, "now": time.time()}
    made = verbs.add(service.router.database, base=label, **told)
    with service.router.database.write() as connection:
        store.set_switch(
            connection, base=made.base, killed="arm", arm=HOSTILE[:60], actor=HOSTILE[:60], reason=HOSTILE, now=1.0
        )
    counted(service)
    worker = WorkerState(name=HOSTILE, queue="learn", state=HOSTILE, host=HOSTILE, heard_at=None)
    service.app.state.read_state = FixedState(replace(service.router.state(), workers=[worker]))
    for path in (*PAGES, f"/ui/decisions/{named}", f"/ui/policies/{made.name}", "/ui/decisions?session=s1"):
        text = browser.page(path)
        parsed = Tags(text)
        assert [tag for tag, given in parsed.tags if tag == "script" and "src" not in given] == []
        assert [tag for tag, given in parsed.tags if tag == "img" or any(name.startswith("on") for name in given)] == []
        assert not set("\x1b\x07\u202e\u2028") & set(text)
    told = "".join(Tags(browser.page(f"/ui/decisions/{named}")).words)
    assert "<script>alert(1)</script>" in told
    assert "{{7*7}}" in told
    assert "\\u001b[2J\\u0007\\u202etxt.exe\\u2028&amp;" in told
    for query in ("id", "session", "arm", "since", "after"):
        reply = browser.http.get("/ui/decisions", params={query: HOSTILE[:60]})
        assert reply.status_code in (200, 404, 422)
        assert "<script>alert" not in reply.text


def test_a_version_can_be_moved_from_its_page(service, visit):
    """A verb asks for a reason and does it, once: who saw an older state is refused."""
    browser = visit(service)
    add(service.router.database, policy={})
    page = browser.page("/ui/policies/v1")
    revision = re.search(r'name="revision" value="(\d+)"', page)[1]
    sent = {"revision": revision, "reason": "enough"}
    for seen in ({}, {"revision": "²"}, {"revision": "9" * 5000}):
        assert browser.send("/ui/policies/v1/retire", on="/ui/policies/v1", reason="x", **seen).status_code == 422
    assert browser.send("/ui/policies/v1/retire", on="/ui/policies", **sent).status_code == 303
    again = browser.send("/ui/policies/v1/retire", on="/ui/policies", **sent)
    assert again.status_code == 409
    assert "changed meanwhile" in again.text
    assert "retired" in browser.page("/ui/policies/v1")
    assert browser.send("/ui/policies/v1/explode", on="/ui/policies", **sent).status_code == 404
    browser.page("/ui/policies/nobody", status=404)


def test_a_version_is_compared_and_a_champion_is_shown(serve, visit):
    """A version in shadow has its evidence; ledger and algorithm are those of the version that decides."""
    service = serve(policy={"name": "uniform"})
    browser, database = visit(service), service.router.database
    add(database, "better", policy={"name": "fixed", "params": {"arm": "single_step"}})
    do(database, "shadow", "better")
    page = browser.page("/ui/policies/better")
    assert all(text in page for text in ("Reward against the champion", "whether better is better than main"))
    do(database, "promote", "better", force=True)
    page = browser.page("/ui/policies")
    assert all(f'<dd class="main">{text}</dd>' in page for text in ("main.better", "fixed"))


def test_nothing_is_loaded_from_elsewhere():
    """No template, style or script names an address of another machine to load something from."""
    found = []
    for file in [*TEMPLATES.rglob("*.*"), *STATIC.rglob("*.*")]:
        text = Path(file).read_text(encoding="utf-8")
        loads = r"""(?:src|href|action|poster)\s*=\s*["']?(?:https?:)?//|@import|url\(\s*["']?(?:https?:)?//|import\("""
        found += [(file.name, one) for one in re.findall(loads, text)]
        found += [(file.name, one) for one in re.findall(r"(?:fetch|XMLHttpRequest|WebSocket|EventSource)\(?", text)]
    assert found == []


def test_the_door_follows_the_contract():
    """Any name in a path, a wrong key and another method get a page, as all errors of the dashboard do."""
    check_door(DOOR)
