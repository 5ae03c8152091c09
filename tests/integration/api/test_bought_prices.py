"""What a question of a bought verdict costs: in its plan, and when a learner has asked it."""

import json
import re

import pytest

from ragbandit.testing.openai_server import Reply, ScriptedServer
from ragbandit.workers.chores.bought_verdicts import carry_out_request
from ragbandit.workers.judge.rubric import CRITERIA
from ragbandit.workers.running.context import Context
from ragbandit.workers.scoring.jobs import next_score
from ragbandit.workers.scoring.judge_loading import load_judge
from tests.support.servers.faulty_models import generator

SCORES = json.dumps({name: {"reason": "so", "score": 0.75} for name in CRITERIA})
#: model -> dollars per letter of what it reads
PRICES = {"small": 1e-6, "large": 1e-4, "judge": 2e-6}


def reply_of(sent):
    letters = sum(len(str(message["content"])) for message in sent["messages"])
    tokens = round(1e6 * PRICES[sent["model"]] * letters)
    usage = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}
    return Reply(text=SCORES if sent["model"] == "judge" else "Paris", changes={"usage": usage})


class Gateway:
    """A gateway to two models with a judge; each chat is a question, and an agent brings one long task."""

    def __init__(self, serve, *, url):
        models = {name: generator(url, name) | {"model": name} for name in PRICES}
        self.service = serve(
            inline=True,
            generators={name: models[name] for name in ("small", "large")},
            arms={name: {"class": "model", "generator": name} for name in ("small", "large")},
            policy={"name": "uniform"},
            reward={"cost": {"dollars": 1.0}},
            judge={"generator": models["judge"], "share": 0.5, "first": 10, "search": False},
            conversation={"rewrite": {"by": "off"}},
        )
        self.router, self.http = self.service.router, self.service.http
        self.settings = self.router.settings

    def chat(self, *said, **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body = {"model": "auto", "messages": list(said)}
        self.http.post("/v1/chat/completions", json=body, headers=named).raise_for_status()

    def send(self):
        for number in range(60):
            self.chat({"role": "user", "content": f"question {number:02}"})
        for task in range(4):
            said = [{"role": "user", "content": f"task {task}"}]
            for turn in range(9):
                self.chat(*said, x_ragbandit_session_id=f"task-{task}", x_ragbandit_unit="task")
                said += [{"role": "assistant", "content": "Paris"}, {"role": "user", "content": f"{turn} " * 99}]
            self.http.post(f"/v1/sessions/task-{task}/end", json={}).raise_for_status()
        context = self.context()
        judging, _ = load_judge(context)
        while (work := next_score(context, judging)) is not None:
            work()
        context.close()

    def context(self):
        router = self.router
        return Context(settings=self.settings, store=router.store, ledger=router.ledger, jobs=self.service.jobs)

    def decide(self, **terms):
        """Ask for a plan or a verdict, and let a learner look once; the request after it."""
        self.http.post("/v1/report/decide", json={"against": "large", **terms}).raise_for_status()
        carry_out_request(self.context())
        return self.http.get("/v1/report/decide").json()


@pytest.fixture
def gateway(serve):
    with ScriptedServer(reply_of) as server:
        made = Gateway(serve, url=server.url)
        made.send()
        yield made
        made.service.close()


@pytest.mark.parametrize("judge", [None, "labels"])
def test_the_price_of_a_plan_is_paid(gateway, judge):
    """The plan's price of a question differs by less than a fifth from its dollars, with a judge and with people.

    Tasks, which cannot be asked, do not count; stored answers cost nothing again; a score costs as much as a live
    one. After the end the request counts the asked questions.
    """
    planned = gateway.decide(judge=judge)
    price = float(re.search(r"about \$([\d.]+) each", " ".join(planned["plan"]))[1])
    period = {"since": planned["since"], "until": planned["until"], "judge": judge}
    done = gateway.decide(budget=5.0, **period)
    assert done["asked"] > 15
    assert done["dollars"] / done["asked"] == pytest.approx(price, rel=0.2)
    asked = f"{done['asked']} of {done['asked']} that can be asked have been asked"
    assert [line for line in done["plan"] if "asked" in line and "cannot" not in line] == [asked]
