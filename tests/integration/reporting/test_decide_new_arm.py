"""`report --decide` with an arm that no stored question was offered: it is asked before it serves anybody."""

import json
import sys
from types import SimpleNamespace

import pytest

from ragbandit.router.config.rules import Rule
from ragbandit.router.reporting.reading import ReportScope
from ragbandit.router.reporting.report import report
from ragbandit.shared.errors import NotFound
from ragbandit.shared.types import Query
from ragbandit.workers.pairs.setup import prepare_verdict
from tests.conftest import on_sqlite
from tests.support import command

DOLLARS = {"today": 0.01, "candidate": 0.001}
TODAY = {"today": {"run_by": "caller"}}
BOTH = {**TODAY, "candidate": {"run_by": "caller"}}
CODE = """
def today(question):
    return "yes", {"dollars": 0.01}

def candidate(question):
    return ("no" if question.startswith("hard") else "yes"), {"dollars": 0.001}

arms = {"today": today, "candidate": candidate}

def right(answer, question, sources):
    return answer == "yes"
"""
REWARD = {"weight": 10.0, "cost": {"dollars": 1.0}}


@pytest.fixture
def code(tmp_path, monkeypatch):
    """The module `own_code` with functions of both arms and a judge."""
    (tmp_path / "own_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("own_code", None)  # another file of tests has a module of this name, too
    import own_code

    yield own_code
    sys.modules.pop("own_code", None)


def asked_by(made, query: Query) -> None:
    made.outcome(made.router.route(query), answer="yes", cost={"dollars": DOLLARS["today"]})


@pytest.fixture
def service(make_world, database_url, code):
    """A service that only one arm has answered, with its settings of now, which have a second arm."""
    world = make_world(database_url=database_url, arms=TODAY, reward=REWARD)
    for number in range(40):
        asked_by(world, Query(text=f"{'hard' if number % 4 else 'easy'} {number}", id=f"q-{number}"))
    asked_by(world, Query(text="easy named", id="named", arms=("today",)))
    now = world.settings.model_copy(update={"arms": type(world.settings).model_validate({"arms": BOTH}).arms})
    return SimpleNamespace(world=world, settings=now, pipelines=code.arms)


def scope(service) -> ReportScope:
    settings, now = service.settings, service.world.now
    which = {"reward": settings.reward, "rules": settings.rule_book, "configured": frozenset(settings.arms)}
    return ReportScope(label="main", since=now - 10.0, until=now + 10.0, **which)


def bought(service, *, budget: float, judge: str = "own_code:right"):
    """Plan and run a verdict on `candidate`; returns the verdict, and the report then."""
    terms = {"against": "candidate", "judge": judge, "actor": "cli:ann@host", "pipelines": service.pipelines}
    verdict = prepare_verdict(service.world.ledger, scope(service), settings=service.settings, **terms)
    verdict.plan(budget=budget)
    verdict.run(budget=budget, progress=lambda *_: None, warn=lambda _: None)
    return verdict, reported(service)


def reported(service):
    return report(service.world.database, scope(service), policy=service.settings.policy, against="candidate")


@on_sqlite
def test_an_arm_that_never_served_gets_a_verdict(service):
    """Questions that only one arm could answer are asked again for an arm that was configured later; the report has the
    verdict, the bill is that of both, and a deep audit accepts the answers, also of an earlier judge.
    """
    before = reported(service)
    assert (before.compared_arm, before.total.questions, before.total.verdict) == ("candidate", 0, "not known yet")
    assert before.sentence.endswith("no question was offered candidate.")
    verdict, after = bought(service, budget=5.0)
    compared = verdict.compared
    assert (compared.routed, len(compared.askable), compared.obstacles) == (40, 40, {})
    assert verdict.spent == pytest.approx(verdict.asked_now * sum(DOLLARS.values()))
    assert after.asked.comparison.verdict == "better"
    assert after.asked.comparison.second == "always candidate"
    bought(service, budget=1.0, judge="labels")
    assert service.world.router.verify(deep=True).ok


@on_sqlite
def test_rules_and_names_of_callers_still_hold_for_a_new_arm(service):
    """A question whose caller named its arms, or that a rule keeps from the new arm, is not asked again with it."""
    asked_by(service.world, Query(text="easy bank", id="bank", tenant="bank"))
    rule = Rule.model_validate({"when": {"tenant": "bank"}, "arms": ["today"]})
    service.settings = service.settings.model_copy(update={"rules": [rule]})
    compared = bought(service, budget=0.0)[0].compared
    assert compared.routed == 41
    assert compared.obstacles == {"the rules do not let candidate answer it now": 1}


@on_sqlite
def test_an_arm_that_is_not_configured_is_not_found(service):
    """Only an arm of the configuration is compared before it has served."""
    with pytest.raises(NotFound, match="no question of this period was offered 'nobody'"):
        report(service.world.database, scope(service), policy=service.settings.policy, against="nobody")


def test_the_command_buys_a_verdict_on_a_new_arm(tmp_path, monkeypatch, code, sqlite_template):
    """The command names the new arm, plans without a budget, and decides with one."""
    from ragbandit import Router

    monkeypatch.chdir(tmp_path)
    text = "data_dir: data\nencoder: {model: hashing, dimension: 8}\nreward: {weight: 10, cost: {dollars: 1}}\n"
    (tmp_path / "config.yaml").write_text(f"{text}arms: {json.dumps(TODAY)}\n")
    with Router.open("config.yaml") as router:
        for number in range(30):
            made = router.route(f"hard {number}")
            router.outcome(made.id, answer="yes", cost={"dollars": DOLLARS["today"]})
    (tmp_path / "config.yaml").write_text(f"{text}arms: {json.dumps(BOTH)}\n")
    options = ["--module", "own_code:arms", "--judge", "own_code:right"]
    refused = command.run("report", "--decide", *options).output
    assert "--against" in refused
    against = ["--against", "candidate", "--decide", *options]
    printed = command.run("report", "--against", "candidate", code=0).stdout
    assert "report --since 7d --against candidate --decide --module MODULE:NAME --judge labels" in " ".join(
        printed.split()
    )
    assert "30 routed questions of the period: 0 went to candidate anyway" in command.run("report", *against).stderr
    done = json.loads(command.run("report", *against, "--budget", "5", "--json", code=0).stdout)
    assert (done["asked"]["comparison"]["verdict"], done["total"]["questions"]) == ("better", 0)
