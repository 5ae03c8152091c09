"""Every screen of a store has the same words: the verdict, the quality's, what decides, how far the policy has learned,
how many decisions there are, and what became of each of them.
"""

import html
import json
import re
from collections import defaultdict

import pytest
from starlette.testclient import TestClient

from ragbandit.router.api.app import create_app
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.shared.additions import additions
from ragbandit.shared.texts.formats import money, number as rounded
from tests.support import command, made_stores
from tests.support.screen_numbers import Counted, check

#: whether the tree has the addition with the pages
HAS_PAGES = "dashboard" in additions()
CONFIG = """
data_dir: {folder}/data
encoder: {{model: hashing, dimension: 16}}
arms: {{cheap: {{run_by: caller}}, dear: {{run_by: caller}}}}
reward: {{weight: 5.0, cost: {{dollars: 1.0}}}}
{more}
"""
#: name -> (more of the configuration, questions, how many of them are rated)
STORES = {
    "fresh": ("", 0, 0),
    "one rating": ("policy: {name: uniform}", 12, 1),
    "safe start": ("policy: {incumbent: dear, holdback: {arm: dear, share: 0.1}}", 40, 30),
    "known": ("policy: {name: uniform}", 160, 140),
    "few rated": ("policy: {holdback: {arm: dear, share: 0.5}}", 40, 8),
    # less than the first questions cost, so that it is spent at any hour of the day
    "budget": ("tenants: {default: {dollars_per_day: 0.02}}", 60, 40),
    "tasks": ("conversation: {unit: task}", 24, 24),
    "limit": ("conversation: {session_limit: {turns: 1}, at_limit: cheapest}\npolicy: {name: uniform}", 48, 48),
    "rule": ("rules: [{name: own, when: {tenant: default}, arms: [cheap]}]", 12, 6),
    "named": ("policy: {name: uniform}", 36, 36),
    "failed": ("policy: {name: uniform}", 60, 60),
    "kill switch": ("policy: {name: uniform}", 36, 36),
    "two keys": ("tenants: {acme: {dollars_per_day: 0.02}}\npolicy: {name: mba}", 200, 200),
}
#: name of a store -> what decides some of its questions in place of a draw
UNDRAWN = {
    "limit": "a limit of the session or task",
    "rule": "a rule that left one arm",
    "named": "the caller",
    "kill switch": "the kill switch",
    "two keys": "the budget of the tenant acme, which raised the price",
}
VERDICT = re.compile(r"(whether )?routing is (better|worse|as good)(?: than| as) (always \w+)")
QUALITY = re.compile(r"quality (better|worse|as good)")
STATE = re.compile(r"((?:safe start|budget|warm-up|rebuilt ledger): \d+ %)")
LEARNING = re.compile(r"\b(steady|learning|held back|stuck|drifting|starved):? (?=\w)(?!steps)")
DECISION = ("state", "chosen", "progress")


def live(client, numbers, *, rated, is_last, name=""):
    """Decisions with outcomes, of which some are rated; `cheap` is seldom right. A task has two questions; the last one
    is open.
    """
    router = client.app.state.router
    for number in numbers:
        body = {"question": f"Who wrote book {number}?", "session_id": f"s-{number // 2}"}
        headers = {"x-ragbandit-arm": "dear"} if name == "named" and number % 3 == 0 else {}
        if name == "two keys" and number % 3:
            body["tenant"] = "acme"
        if name == "kill switch" and number == 24:
            client.post("/v1/policies/kill", json={"arm": "cheap", "reason": "it fails"}).raise_for_status()
        reply = client.post("/v1/route", json=body, headers=headers).raise_for_status().json()
        decision = router.decision(reply["decision_id"]).decision
        cost = {"dollars": {"cheap": 0.002, "dear": 0.02}[decision.arm]}
        if name == "failed" and number % 6 == 0:
            router.outcome(decision.id, status="failed", error="the server is down", steps=1, cost=cost)
        else:
            router.outcome(decision.id, answer="Bram Stoker", steps=1, cost=cost)
        if number < rated and decision.turn_of is None:
            router.feedback(decision.id, rating=decision.arm == "dear" or number % 4 == 0)
        if number % 2 and not (is_last and number == numbers[-1]) and router.settings.conversation.unit == "task":
            router.end_session(f"s-{number // 2}")
        if number % 20 == 19:
            router.learn()
        yield decision.id
    router.learn()


def words_of(text):
    """The text of a page or a screen on one line."""
    text = re.sub(r"<(script|style|svg).*?</\1>", " ", text, flags=re.DOTALL)
    text = re.sub(r'<div class="scroll".*?</div>', " ", text, flags=re.DOTALL)  # numbers of pictures and tables
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


class Screens:
    """A made store, the texts of the screens that show all of it, and what each screen of a decision says."""

    def __init__(self, folder, *, name):
        self.name, self.folder = name, folder
        self.database = folder / "data" / "ragbandit.db"
        if name in made_stores.STORES:
            made_stores.STORES[name].make(folder, look=self.read)
            return
        more, questions, rated = STORES[name]
        config = folder / "config.yaml"
        config.write_text(CONFIG.format(folder=folder, more=more))
        parts = [range(questions)]
        if "dollars_per_day" in more:  # a service knows what was spent before it began
            parts = [range(questions // 4), range(questions // 4, questions)]
        ids = []
        for part in parts:
            service = create_app(lambda: Router.open(config, jobs=MemoryJobs()))
            with TestClient(service, base_url="http://127.0.0.1") as client:
                ids += live(client, part, rated=rated, is_last=part is parts[-1], name=name)
                if part is parts[-1]:
                    self.read(client, config, ids)

    def read(self, client, config, ids):
        """What the screens show while the last service of the store runs."""
        self.config, page = config, self.folder / "report.html"
        self.get = lambda path: client.get(path).raise_for_status()
        self.report, self.status = (self.get(path).json() for path in ("/v1/report", "/v1/status"))
        self.texts = {
            "report": self.run("report", "--all", "--html", str(page)),
            "status": self.run("status"),
            **({"/ui": words_of(self.get("/ui?time=week").text)} if HAS_PAGES else {}),
            "page": words_of(page.read_text()),
        }
        self.texts |= {"/v1/report": self.report["sentence"]}
        self.numbers = self.texts | {"line": self.run("status", "--line")}
        self.numbers |= {"/ui/policies": words_of(self.get("/ui/policies").text)} if HAS_PAGES else {}
        self.totals = self.get("/v1/overview").json()["totals"]
        self.decided = self.totals["decided"], self.status["counters"]["decided"]
        self.decisions = {key: dict(self.of_decision(key)) for key in ids[-3:] + ids[:1]}

    def run(self, *words):
        caches = {"XDG_CACHE_HOME": str(self.folder / "caches")}  # the line for a prompt is a file there
        return words_of(command.run(*words, "--config", str(self.config), env=caches).stdout)

    def of_decision(self, key):
        """(screen, its words) of a decision."""
        explained = self.get(f"/v1/decisions/{key}/explanation").json()
        said = [explained["record"]["state"], explained["chosen"], explained["progress"], *explained["reasons"]]
        yield "explanation", said
        yield "explain", json.loads(command.run("explain", key, "--json", "--config", str(self.config)).stdout)
        if HAS_PAGES:
            yield "/ui/decisions/ID", words_of(self.get(f"/ui/decisions/{key}").text)
        yield "text", self.run("explain", key)


@pytest.fixture(scope="module", params=[*STORES, *made_stores.STORES])
def screens(request, tmp_path_factory):
    return Screens(tmp_path_factory.mktemp("screens"), name=request.param)


def test_one_verdict_and_one_word_for_quality(screens):
    """Report, page, status, overview and reply have the same verdict and the same word for the quality; a verdict that
    is not known has no number, and what decides instead of the policy stands before it.
    """
    said = defaultdict(set)
    for screen, text in screens.texts.items():
        assert STATE.findall(text)[:1] == STATE.findall(screens.report["state"] or "")[:1], screen
        found = VERDICT.search(text)
        said["verdict"].add(found and ("not known yet" if found[1] else found[2], found[3]))
        said["quality"].add(tuple(QUALITY.findall(screens.report["sentence"] if found is None else text))[:1])
        state = STATE.search(text)
        assert state is None or found is None or state.start() < found.start(), screen
        if found is not None and found[1]:
            assert "not known yet" in text
            assert not re.search(r"[+-]\d\.\d{3} reward a question of routing", text), screen
    assert {name: len(values) for name, values in said.items()} == {"verdict": 1, "quality": 1}
    total = screens.report["total"]
    if total is not None:
        verdict, against = said["verdict"].pop()
        assert (verdict, against) == (total["verdict"], total["second"])
        assert said["quality"] == {() if total["quality_verdict"] == "not known yet" else (total["quality_verdict"],)}


def test_one_assumption(screens):
    """Every screen with a verdict that fewer than nine tenths of the judged questions support has its assumption."""
    total = screens.report["total"]
    assumption = None if total is None else total["assumption"]
    assert (assumption is not None) == (screens.name == "known")
    for screen, text in screens.texts.items():
        plain = text.replace("`", "")
        assert ("nobody chose what to rate" in plain) == (assumption is not None), screen
        assert assumption is None or assumption.replace("`", "") in plain, screen


def test_what_decides_is_said_of_learning_too(screens):
    """Status, overview, report, replies and explanations have one word for learning, not "steady" while something else
    than the policy decides, and then they name it.
    """
    state = STATE.search(screens.report["state"] or "")
    learning = screens.status["learning"]
    lines = {screen: text.partition("learning ")[2] for screen, text in screens.texts.items() if screen == "status"}
    lines["report"] = screens.texts["report"].partition("state of learning: ")[2]
    lines["/v1/report"] = screens.report["learning"] or ""
    for said in screens.decisions.values():
        lines["explanation"] = " ".join(said["explanation"]).partition("Its policy is now ")[2]
        lines["text"] = said["text"].partition("Its policy is now ")[2]
    if learning is None:
        assert not any(LEARNING.match(line) for line in lines.values())
        return
    for screen, line in lines.items():
        assert line.startswith(f"{learning['state']}: {learning['sentence'][:60]}"), (screen, line)
    if HAS_PAGES:
        assert f"{learning['state']} {learning['sentence'][:60]}" in screens.texts["/ui"]
    if state is not None:
        assert learning["state"] not in ("steady", "learning")
        assert state[1] in learning["sentence"]


def test_as_many_decisions_everywhere(screens):
    """The overview's totals are the ledger's counters, also if no learner has counted them, and no page denies them."""
    count = screens.decided[0]
    assert screens.decided == (count, count)
    if HAS_PAGES:
        assert f"Decisions {count} " in screens.texts["/ui"]
        assert ("no decisions in this period" in screens.texts["/ui"]) == (count == 0)


def test_one_state_of_a_decision(screens):
    """Page, explanation and command have the same state, chooser and progress of a decision."""
    for said in screens.decisions.values():
        state, chosen, progress, *reasons = said["explanation"]
        assert (said["explain"]["record"]["state"], said["explain"]["chosen"]) == (state, chosen)
        assert said["explain"]["progress"] == progress
        printed = said["explain"]["reasons"]  # a service can also say what the policy would choose now
        assert printed == reasons[: len(printed)]
        for screen in said.keys() & {"/ui/decisions/ID", "text"}:
            assert chosen in said[screen]
            assert progress in said[screen]
        if HAS_PAGES:
            assert f"State {state}" in said["/ui/decisions/ID"]
    if screens.name == "tasks":
        states = {said["explanation"][0] for said in screens.decisions.values()}
        assert states == {"learned", "waiting"}
        assert any("turn 2 of a task" in said["text"] for said in screens.decisions.values())


def test_one_sum_of_questions_and_of_dollars(screens):
    """Report, page, status, overview and replies have the same number of questions and the same dollars: all of the
    period, with those that no comparison includes.
    """
    said, totals = screens.report, screens.totals
    assert said["questions"] == totals["decided"]
    assert said["spent"] == pytest.approx(totals["dollars"])
    compared = 0 if said["total"] is None else said["total"]["questions"]
    assert compared + sum(said["left_out"].values()) == said["questions"]
    assert sum(one["questions"] for one in said["undrawn"]) <= sum(said["left_out"].values())
    if not said["questions"]:
        return
    spent = money(said["spent"], "dollars")
    for screen, text in screens.texts.items():
        sums = f"questions: {said['questions']}" in text and f"spent: {spent}" in text
        cards = re.search(rf"Questions {said['questions']} .*Spent {re.escape(spent)}", text, re.IGNORECASE)
        assert sums or cards or f": {said['questions']} questions for {spent}" in text, (screen, text[:2000])


def test_what_was_not_drawn_comes_first(screens):
    """What else than a draw decided questions is named on every first screen, with its reason, quality and dollars."""
    by = UNDRAWN.get(screens.name)
    shown = {one["by"]: one for one in screens.report["undrawn"]}
    assert by is None or by in shown
    for one in shown.values():
        quality = "" if one["quality"] is None else f"quality {rounded(one['quality'])}, "
        line = f"{one['questions']} of {screens.report['questions']} questions were decided by {one['by']} ("
        line += f"{quality}{money(one['spent'], 'dollars')}): they are in no comparison"
        for screen, text in screens.texts.items():
            assert line in text, (screen, line)
        if screens.report["state"] is None and screens.report["total"] is not None:
            assert all(text.index(line) < text.index("routing is") for text in screens.texts.values())


def test_every_number_is_that_of_the_store(screens):
    """Each number of report, status, its line, overview, policies, page and `explain` is counted in the tables of the
    store, or is the estimate of the report.
    """
    store = Counted(screens.database, report=screens.report)
    for screen, text in screens.numbers.items():
        check(text, store, screen=screen)
    for key, said in screens.decisions.items():
        check(said["text"], Counted(screens.database, report=screens.report, decision=key), screen=f"explain {key}")


def test_the_stores_differ(screens):
    """The stores have what they were made for."""
    assert all(text in screens.texts["report"] for text in made_stores.SAID.get(screens.name, ()))
    total = screens.report["total"]
    expected = {"safe start": "safe start", "budget": "budget", "outage": "outage"}.get(screens.name)
    assert (screens.report["state"] or "").partition(":")[0] == (expected or "")
    if screens.name == "known":
        assert total["verdict"] == "worse"
        assert total["quality_verdict"] == "worse"
