"""Stores that traffic of a known kind has made through a service: an outage, late labels, missing prices, limits."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.testclient import TestClient

from ragbandit.router.api.app import create_app
from ragbandit.router.config.loading import load
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.testing.openai_server import Reply, ScriptedServer
from ragbandit.workers.processes.inline import InlineAnswers
from ragbandit.workers.setup.generators import inline_arms

CONFIG: Final = """
data_dir: {folder}/data
encoder: {{model: hashing, dimension: 16}}
arms: {{{arms}}}
reward: {{weight: 5.0, cost: {{dollars: 1.0}}}}
{more}
"""
CALLER: Final = "cheap: {run_by: caller}, dear: {run_by: caller}"
MODELS: Final = "cheap: {class: model}, dear: {class: model, generator: dear}"
#: a server of each model; {prices} of the second one
GENERATORS: Final = """
generator: &model {{name: openai, model: cheap, context_tokens: 4000, token_prices: {{input: 100.0, output: 100.0}},
                   openai: {{base_url: "{url}", retries: 0}}}}
generators: {{dear: {{name: openai, model: dear, context_tokens: 4000, {prices}
                     openai: {{base_url: "{url}", retries: 0}}}}}}
"""
#: dollars of an answer that a caller reports
DOLLARS: Final = {"cheap": 0.002, "dear": 0.02, "third": 0.01}
Part = Callable[[TestClient], Iterator[str]]


@dataclass(frozen=True, slots=True)
class MadeStore:
    #: what is sent to each service of the store, one after the other; yields ids of decisions
    parts: tuple[Part, ...]
    more: str = ""  #: more of the configuration
    arms: tuple[str, ...] = (CALLER,)  #: arms of each service; the last ones stay
    #: question -> whether the second model fails; None without models
    fails: Callable[[str], bool] | None = None
    prices: str = "token_prices: {input: 1000.0, output: 1000.0},"

    def make(self, folder: Path, *, look: Callable[[TestClient, Path, list[str]], None]) -> None:
        """Make the store in the folder. look: called with the last service, its configuration and the ids."""
        config, ids = folder / "config.yaml", list[str]()
        with contextlib.ExitStack() as running:
            more = self.more
            if self.fails is not None:
                server = running.enter_context(ScriptedServer(self._reply))
                more += GENERATORS.format(url=server.url, prices=self.prices)
            for number, part in enumerate(self.parts):
                arms = self.arms[min(number, len(self.arms) - 1)]
                config.write_text(CONFIG.format(folder=folder, arms=arms, more=more))
                with TestClient(_service(config), base_url="http://127.0.0.1") as client:
                    ids += part(client)
                    if number == len(self.parts) - 1:
                        look(client, config, ids)

    def _reply(self, sent: Mapping[str, object]) -> Reply:
        assert self.fails is not None
        if sent["model"] == "dear" and self.fails(str(sent["messages"])):
            return Reply(status=503, text="no")
        return Reply(text="Bram Stoker")


def _service(config: Path):
    settings = load(config).settings

    def begin(tracing) -> None:
        if settings.worker_arms:
            InlineAnswers(app.state.router, arms=inline_arms(settings)).start(tracing)

    app = create_app(lambda: Router.open(config, jobs=MemoryJobs()), begin=begin)
    return app


def question(number: int) -> str:
    return f"Who wrote book {number}?"


def answered(client: TestClient, text: str, *, dollars: Mapping[str, float] = DOLLARS, **body):
    """A decision whose caller reports the outcome. Returns (id, arm)."""
    reply = client.post("/v1/route", json={"question": text} | body).raise_for_status().json()
    key, drawn = reply["decision_id"], reply["arm"]
    cost = {"dollars": dollars[drawn]} if drawn in dollars else {}
    client.app.state.router.outcome(key, answer="Bram Stoker", steps=1, cost=cost)
    return key, drawn


def is_right(arm: str, number: int) -> bool:
    """`cheap` is right on one question of four."""
    return arm != "cheap" or number % 4 == 0


def callers(numbers: range, *, rated: int = 1, learn: int = 20, **more) -> Part:
    """Questions whose callers answer. rated: each such question is rated"""

    def send(client: TestClient) -> Iterator[str]:
        router = client.app.state.router
        for number in numbers:
            key, arm = answered(client, question(number), **more)
            if number % rated == 0:
                router.feedback(key, rating=is_right(arm, number))
            if number % learn == learn - 1:
                router.learn()
            yield key
        router.learn()

    return send


def models(numbers: range, *, rated: int = 1) -> Part:
    """Questions that the service answers."""

    def send(client: TestClient) -> Iterator[str]:
        router = client.app.state.router
        for number in numbers:
            reply = client.post("/v1/answer?wait_s=30", json={"question": question(number)}).raise_for_status().json()
            if number % rated == 0 and reply["answer"] is not None:
                router.feedback(reply["decision_id"], rating=is_right(reply["arm"], number))
            router.refresh()
            yield reply["decision_id"]
        router.learn()

    return send


def late(client: TestClient) -> Iterator[str]:
    """Half of the answers is rated in time, a quarter late; two ratings are taken back; costs come after learning."""
    router = client.app.state.router
    made = [answered(client, question(number)) for number in range(40)]
    for number, (key, arm) in enumerate(made[:22]):
        router.feedback(key, rating=is_right(arm, number), rater="ann")
    for key, _ in made[20:22]:
        router.feedback(key, retract="rating", rater="ann")
    turns = []
    for number in range(4):  # the last two are offered one arm, so that nothing is drawn
        session, offered = f"s-{number}", {"arms": ["dear"]} if number > 1 else {}
        first, drawn = answered(client, question(100 + number), session_id=session, **offered)
        second = client.post("/v1/route", json={"question": "And when?", "session_id": session}).json()["decision_id"]
        router.feedback(first, rating=True)
        router.end_session(session)
        turns.append((second, drawn))
        yield first
    router.learn()
    time.sleep(1.1)  # longer than learning.expire_s
    router.learn()
    for key, _ in made[30:40]:
        router.feedback(key, rating=True)
    for second, drawn in turns:
        router.outcome(second, answer="1897", steps=1, cost={"dollars": 10.0 * DOLLARS[drawn]})
    router.learn()
    yield from (key for key, _ in made)


def limited(client: TestClient) -> Iterator[str]:
    """Twelve tasks of one to three turns, of which two turns are within the limit."""
    router = client.app.state.router
    for number in range(12):
        turns = [answered(client, question(number), session_id=f"s-{number}") for _ in range(number % 3 + 1)]
        key, arm = turns[0]
        router.feedback(key, rating=is_right(arm, number))
        router.end_session(f"s-{number}")
        yield key
    router.learn()


def kinds(client: TestClient) -> Iterator[str]:
    """Each arm is right on one kind of question: `cheap` if the question begins with "who"."""
    router = client.app.state.router
    for number in range(180):
        text = f"Who wrote book {number}?" if number % 3 else f"How many pages has book {number}?"
        key, arm = answered(client, text)
        router.feedback(key, rating=(arm == "cheap") == bool(number % 3))
        if number % 20 == 19:
            router.learn()
        yield key


STORES: Final = {
    "outage": MadeStore(
        (models(range(70)),),
        more="policy: {name: uniform}\nhealth: {failures: 3, cool_down_s: 3600.0}",
        arms=(MODELS,),
        fails=lambda asked: any(question(number) in asked for number in range(16, 70)),
    ),
    "late": MadeStore((late,), more="policy: {name: uniform}\nlearning: {expire_s: 1.0}\nconversation: {unit: task}"),
    "no price": MadeStore(
        (models(range(40)),), more="policy: {name: uniform}", arms=(MODELS,), fails=lambda _: False, prices=""
    ),
    "some dollars": MadeStore((callers(range(40), dollars={"cheap": 0.002}),), more="policy: {name: uniform}"),
    # the compared arm is the cheaper one, so that routing spends more
    "cheap holdback": MadeStore(
        (callers(range(60), rated=2),), more="policy: {name: uniform, holdback: {arm: cheap, share: 0.3}}"
    ),
    "new arm": MadeStore(
        (callers(range(60)), callers(range(60, 120))),
        more="policy: {name: uniform}",
        arms=(CALLER, f"{CALLER}, third: {{run_by: caller}}"),
    ),
    "cheaper": MadeStore(
        (callers(range(80)), callers(range(80, 160), dollars=DOLLARS | {"dear": 0.004})),
        more="policy: {name: uniform, holdback: {arm: dear, share: 0.3}}",
    ),
    "task limit": MadeStore(
        (limited,),
        more="conversation: {unit: task, task_limit: {turns: 2}, at_limit: cheapest}\npolicy: {name: uniform}",
    ),
    "kinds": MadeStore((kinds,), more="policy: {name: mba}"),
}
#: name of a store -> what its report says
SAID: Final = {
    "outage": ("outage: ", "decided by a failover", "decided by the circuit breaker"),
    "late": ("came after the decision was closed", "ratings that were retracted"),
    "no price": ("answers without a price",),
    "some dollars": ("compared outcomes report no dollars",),
    "new arm": ("third is new",),
    "cheaper": ("an answer of dear costs $0.004 instead of $0.02",),
    "task limit": ("tasks that have reached a limit",),
    "cheap holdback": ("more cost",),
    "kinds": ('begins with "who"', "asks how many, how much or how long"),
}
