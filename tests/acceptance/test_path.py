"""A new user's path: a verdict, a warm start, the first decisions, learning, a report; and `status` of each set-up."""

import json
import shutil
from statistics import fmean

import pytest

from ragbandit import Router
from ragbandit.router.comparison.holdback_size import SHARES
from ragbandit.testing.openai_server import ScriptedServer
from tests.support import command, two_pipelines as world
from tests.support.additions import needs
from tests.support.cases import every_case
from tests.support.logs.log_rows import write_json
from tests.support.servers.faulty_models import two_models

from .conftest import running_systems

CODE = "from tests.support.two_pipelines import pipelines\n\narms = pipelines()\n"


def findings(*arguments):
    """What `status` prints as findings, except those about this machine's disk; its exit code must be 0."""
    said = json.loads(command.run("status", "--json", *arguments, code=0).stdout)
    return [finding for finding in said["findings"] if finding["about"] != "disk"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory of a user with two pipelines and labelled questions."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(world.CONFIG)
    (tmp_path / "own_two.py").write_text(CODE)
    rows = ({"question": text, "answers": gold} for text, gold in world.questions(200, seed=4).items())
    write_json(tmp_path / "q.jsonl", rows)
    return tmp_path


def ask(router, questions):
    """Route, run and judge each question. Returns (decisions, their expected rewards)."""
    pipelines, decisions = world.pipelines(), []
    for question, gold in questions.items():
        decisions.append(router.route(question))
        answer, steps = pipelines[decisions[-1].arm](question)
        router.outcome(decisions[-1].id, answer=answer, steps=steps)
        router.feedback(decisions[-1].id, label=gold)
        router.learn()
    return decisions, [world.expected_reward(d.arm, question) for d, question in zip(decisions, questions, strict=True)]


def is_best_by_its_score(decision):
    """Whether the policy scores the arm higher that is better for this question."""
    best = max(world.STEPS, key=lambda arm: world.expected_reward(arm, decision.query.text))
    return decision.arms[decision.scores.index(max(decision.scores))] == best


@needs("advice")
def test_the_path_of_a_new_user(folder, monkeypatch, empty_postgres_url):
    """From the first verdict to PostgreSQL every step knows what the step before has learned, and `status` is ok."""
    words = ("advise", "q.jsonl", "--module", "own_two:arms", "--apply", "--json")
    applied = json.loads(command.run(*words, code=0).stdout)
    assert (applied["verdict"], findings()) == ("route", [])
    with Router.open() as router:
        decisions, rewards = ask(router, world.questions(60, seed=5))
        assert decisions[0].version.startswith(f"main-{applied['last_seq']}-")
        (share,) = {decision.facts["holdback"]["share"] for decision in decisions}
        assert share in SHARES
        assert fmean(rewards) > 0.55  # always the worse pipeline earns 0.485; the incumbent, the better one, 0.60
        assert fmean(map(is_best_by_its_score, decisions)) > 0.9
        assert router.status().counters.learned == applied["last_seq"] + 60
        assert router.verify(deep=True).ok
    assert findings() == []
    assert "routing" in command.run("report", code=0).stdout.splitlines()[0]
    command.run("data", "export", "log.jsonl", code=0)
    command.run("data", "import", "log.jsonl", code=0)
    assert findings() == findings("--label", "imported") == []
    shutil.rmtree(folder / "data" / "snapshots")
    with Router.open() as router:
        assert [finding["about"] for finding in findings()] == ["policy"]  # it is being learned again
        router.learn()
        assert router.route("Who wrote the law?").version == router.status().snapshot
        before = router.status()
    assert findings() == []
    monkeypatch.setenv("DATABASE_URL", empty_postgres_url)
    command.run("migrate", "--from", "data/ragbandit.db", code=0)
    assert [finding["about"] for finding in findings()] == ["redis_url"]  # none is set
    with Router.open() as router:
        assert router.route("Who wrote the river?").version == before.snapshot
        assert router.status().counters.learned == before.counters.learned
        assert router.verify(deep=True).ok


@pytest.mark.usefixtures("redis_client")  # an empty Redis: earlier tests may have left processes in it
def test_status_of_each_set_up_is_ok(tmp_path, postgres_url, redis_server):
    """`status` finds nothing in a healthy service with workers, a gateway without workers, with callers' arms only, and
    in two services on PostgreSQL.
    """
    callers = {"arms": {arm: {"run_by": "caller"} for arm in world.STEPS}}
    with ScriptedServer({"": "Paris"}) as server, every_case() as case:
        # Arms of models take no steps, so a reward that charges only steps would be a finding.
        gateway = {"queues": ("learn",), **two_models(server.url), "reward": {"cost": {"seconds_total": 1.0}}}
        for name, given in {
            "workers": {},
            "gateway": gateway,
            "gateway, workers.answer 0": {**gateway, "workers": {"answer": 0}},
            "callers": {"queues": ("learn",), **callers},
            "PostgreSQL": {
                "queues": ("learn",),
                "apis": 2,
                "database_url": postgres_url,
                "redis_url": redis_server,
                **callers,
            },
        }.items():
            with case(name), running_systems(tmp_path / name) as make:
                (tmp_path / name).mkdir()
                system = make(**given)
                for api in system.ports:
                    with system.client(api) as client:
                        if "arms" in given and given["arms"] == callers["arms"]:
                            decision = client.route("Who?")["decision_id"]
                            client.outcome(decision, answer="Paris", steps=1)
                        else:
                            decision = client.answer("Who?")["decision_id"]
                        client.feedback(decision, label=["Paris"])
                system.wait_until(lambda found: found.counters.waiting == 0 < found.counters.learned)
                assert findings("--config", str(system.config)) == []
