"""Every screen has the same dollars: tasks, loops of tools, failovers, turns that come late, and the judge."""

import contextlib
import json
import re
import time

import pytest

from ragbandit.router.config.loading import load
from ragbandit.router.offline.replay import open_log, replay
from ragbandit.router.operation.budgets import budget_states
from ragbandit.router.storage.totals import TotalsExtender
from ragbandit.shared.texts.formats import money
from ragbandit.testing.openai_server import Reply, ScriptedServer
from ragbandit.workers.running.context import Context
from ragbandit.workers.scoring.jobs import next_score
from ragbandit.workers.scoring.judge_loading import load_judge
from tests.support.command import run
from tests.support.servers.faulty_models import generator
from tests.support.servers.http_service import Service

CALL = {"id": "call_1", "type": "function", "function": {"name": "tide", "arguments": "{}"}}
TOOLS = [{"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {}}}}]
ASKS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "noon"}
SCORE = '{"answers": {"score": 1.0, "reason": "it does"}}'
#: text in a question -> dollars of the answer; every other answer costs a cent
DEAR = {"DEAR": 1.0}


class Models:
    """Two models and a judge. The first request of each question with FAIL fails; `paid` has all dollars."""

    def __init__(self):
        self.paid, self.failed = {"arms": 0.0, "judge": 0.0}, set()

    def __call__(self, sent):
        content = json.dumps(sent["messages"])
        if sent["model"] == "judge":
            return self.reply("judge", dollars=0.001, text=SCORE)
        if "FAIL" in content and content not in self.failed:
            self.failed.add(content)
            return Reply(status=503, text="no")
        asked = sent["messages"][-1]
        is_call = asked["role"] == "user" and "TIDE" in str(asked["content"])
        more = {"message": {"tool_calls": [CALL]}, "finish": "tool_calls"} if is_call else {"text": f"{len(content)}."}
        dollars = max([0.01, *(price for text, price in DEAR.items() if text in str(asked["content"]))])
        return self.reply("arms", dollars=dollars, **more)

    def reply(self, who, *, dollars, **more):
        self.paid[who] += dollars
        usage = {"prompt_tokens": round(1e6 * dollars), "completion_tokens": 0, "total_tokens": round(1e6 * dollars)}
        return Reply(changes={"usage": usage}, **more)


class Traffic:
    """A service with two models and its callers."""

    def __init__(self, folder, *, url, models):
        one = generator(url, "one") | {"supports": ["tools"]}
        tree = {
            "data_dir": str(folder),
            "encoder": {"model": "hashing", "dimension": 8},
            "generator": one,
            "generators": {"two": one | {"model": "two"}},
            "arms": {"one": {"class": "model"}, "two": {"class": "model", "generator": "two"}},
            "policy": {"name": "uniform"},
            "reward": {"cost": {"dollars": 1.0}},
            "health": {"failures": 0},
            "conversation": {"unit": "task", "rewrite": {"by": "off"}},
            "learning": {"snapshot_interval_s": 0.0},
            "judge": {"generator": one | {"model": "judge"}, "share": 1.0, "first": 1, "search": False},
            "tenants": {"default": {"dollars_per_day": 1000.0}},
        }
        self.config = folder / "config.yaml"
        self.config.write_text(json.dumps(tree))
        self.settings = load(self.config).settings
        self.service, self.models = Service(self.settings, inline=True), models
        self.router, self.http = self.service.router, self.service.http

    def post(self, path, body, **headers):
        reply = self.http.post(path, json=body, headers=headers)
        assert reply.status_code < 300, reply.text
        return reply.json()

    def chat(self, session, *messages, **more):
        said = [{"role": "user", "content": one} if isinstance(one, str) else one for one in messages]
        body = {"model": "auto", "messages": said, **more}
        return self.post("/v1/chat/completions", body, **{"x-ragbandit-session-id": session})

    def end(self, session):
        assert self.post(f"/v1/sessions/{session}/end", {"feedback": {"rating": True}})["ended"] == 1

    def own_turns(self, session, count):
        made = [self.post("/v1/route", {"question": "q?", "session_id": session}) for _ in range(count)]
        return [one["decision_id"] for one in made]

    def report_outcome(self, key, dollars):
        self.models.paid["arms"] += dollars
        self.post("/v1/outcomes", {"decision_id": key, "answer": "x", "steps": 1, "cost": {"dollars": dollars}})

    def judge(self):
        router = self.router
        context = Context(settings=self.settings, store=router.store, ledger=router.ledger, jobs=self.service.jobs)
        judging, _ = load_judge(context)
        while (work := next_score(context, judging)) is not None:
            work()
        context.close()

    def send(self):
        """Traffic of each kind. All tasks have ended, and are learned; $16.01 came after that."""
        chats, fails, loops = ([f"{kind}{number}" for number in range(3)] for kind in ("chat", "fail", "loop"))
        for session in chats:
            self.chat(session, "hi")
            self.chat(session, "hi", {"role": "assistant", "content": "x"}, "DEAR")
        for session in fails:
            self.chat(session, "FAIL")
        for session in loops:
            self.chat(session, f"TIDE of {session}?", tools=TOOLS)
        for session in loops[1:]:
            self.chat(session, f"TIDE of {session}?", ASKS, RESULT, tools=TOOLS)
        own = {session: self.own_turns(session, 3) for session in ("own0", "own1")}
        for first, second, _ in own.values():
            self.report_outcome(first, 0.02)
            self.report_outcome(second, 2.0)
        for session in (*chats, *fails, *loops, *own):
            self.end(session)
        self.judge()
        self.router.learn()
        for _, _, third in own.values():
            self.report_outcome(third, 8.0)
        self.chat(loops[0], f"TIDE of {loops[0]}?", ASKS, RESULT, tools=TOOLS)
        self.judge()
        self.router.learn()
        TotalsExtender(self.router.database, holder="one", weight=0.05, clock=lambda: time.time() + 60.0).extend()
        self.router.refresh()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    models = Models()
    with ScriptedServer(models) as server:
        made = Traffic(tmp_path_factory.mktemp("dollars"), url=server.url, models=models)
        with contextlib.closing(made.service):
            made.send()
            yield made


def spent_by_budgets(world):
    ((_, sums),) = budget_states(world.router.database, tenants=world.settings.tenants, now=time.time())
    assert sums.reserved == 0.0
    return sums.day


def test_the_traffic_is_of_each_kind(world):
    """Tasks of several turns, loops, failovers, late turns and judgements are all there, and all is learned."""
    counters = world.router.status().counters
    assert (counters.decided, counters.learned, counters.waiting) == (11, 11, 0)
    assert world.models.failed
    assert world.models.paid["judge"] > 0.0
    assert world.router.verify(deep=True).ok


def test_budgets_have_what_was_paid(world):
    """The budget of the day has the dollars of all answers and of the judge."""
    assert spent_by_budgets(world) == pytest.approx(sum(world.models.paid.values()))


def test_the_report_has_them(world):
    """What the report calls spent is what all arms were paid; its note has the part that came after learning."""
    shown = world.http.get("/v1/report").json()
    total = shown["total"]
    assert shown["left_out"] == {}
    assert total["cost"]["first"] * total["questions"] == pytest.approx(world.models.paid["arms"])
    (note,) = [note for note in shown["notes"] if "after the decision was closed" in note]
    assert "$16.01 came after" in note
    by_arm = [float(amount) for amount in re.findall(r" \$([\d.]+) of \$", note.partition("reward has it: ")[2])]
    assert sum(by_arm) == pytest.approx(16.01)


def test_status_has_them(world):
    """`ragbandit status` begins with the sentence of the report."""
    printed = " ".join(run("status", "--config", world.config).output.split())
    assert f"11 questions for {money(world.models.paid['arms'], 'dollars')}" in printed


def test_overview_and_metrics_have_them(world):
    """The totals of the overview, and the metrics of the arms, are those of all turns."""
    totals = world.http.get("/v1/overview").json()["totals"]
    assert totals["dollars"] == pytest.approx(world.models.paid["arms"])
    lines = world.http.get("/metrics").text.splitlines()
    dollars = [float(line.split()[-1]) for line in lines if line.startswith("ragbandit_arm_dollars_total")]
    assert sum(dollars) == pytest.approx(world.models.paid["arms"])


def test_a_replay_has_them(world):
    """A replay reads what was learned, and its note has the rest."""
    replayed = replay(open_log(config=world.settings))
    (note,) = [note for note in replayed.notes if "after the decision was learned" in note]
    late = sum(float(amount) for amount in re.findall(r"\$([\d.]+)", note))
    assert late == pytest.approx(16.01)
    assert replayed.rows == 11
    assert replayed.baseline_cost.estimate * 11 + late == pytest.approx(world.models.paid["arms"])
