"""What a plan of `report --decide` expects of prices: as the arm's answers to such questions cost."""

from dataclasses import replace

import pytest

from ragbandit.router.config.settings import GeneratorSettings
from ragbandit.shared.types import Query
from ragbandit.workers.pairs.setup import prepared as prepare
from tests.conftest import on_sqlite
from tests.integration.reporting.test_decide import ACTOR, Arms, run, scope
from tests.support.examples import made_decision

#: kind of question -> dollars of `large`, probability that the policy gives it to `large`
KINDS = {"easy": (0.002, 0.1), "hard": (0.02, 0.9)}


class ByKind(Arms):
    """`large` costs more on hard questions, `small` a tenth of a cent."""

    def large(self, question):
        return "yes", {"dollars": KINDS[question[:4]][0]}


@pytest.fixture
def routed(make_world, database_url, tmp_path, monkeypatch):
    """200 questions of a policy that sends nine of ten hard ones to `large`, and one of ten easy ones."""
    (tmp_path / "own_judge.py").write_text("def right(answer, question, sources):\n    return answer == 'yes'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    world = make_world(
        database_url=database_url,
        arms={name: {"run_by": "caller"} for name in ("small", "large")},
        policy={"name": "uniform"},
        reward={"weight": 0.1, "cost": {"dollars": 1.0}},
    )
    for kind, (dollars, chance) in KINDS.items():
        for number in range(100):
            arm = "large" if number < 100 * chance else "small"
            draw = {"arm": arm, "propensity": chance if arm == "large" else 1.0 - chance}
            one = made_decision(f"{kind}-{number}", arms=("small", "large"), pmf=(1.0 - chance, chance), **draw)
            one = replace(one, query=Query(id=one.id, text=f"{kind} {number}"), made_at=world.now, floor=0.0)
            world.store.add_decisions([one])
            world.outcome(one, answer="old", cost={"dollars": dollars if arm == "large" else 0.001})
    return world


@on_sqlite
def test_an_arm_is_priced_for_the_questions_that_are_asked(routed):
    """If the policy sends an arm the expensive questions, the plan prices it for those that went to other arms."""
    done = run(routed, ByKind(), budget=10.0)
    assert done.facts["asked"] > 20
    assert done.plan.dollars_each == pytest.approx(done.facts["dollars"] / done.facts["asked"], rel=0.2)


@on_sqlite
def test_earlier_runs_price_the_next_one(routed):
    """If the present definition of an arm costs ten times as much, the plan after a first run knows it."""

    class Expensive(ByKind):
        def large(self, question):
            return "yes", {"dollars": 10.0 * KINDS[question[:4]][0]}

    first = run(routed, Expensive(), budget=0.4)
    second = run(routed, Expensive(), budget=10.0)
    assert first.facts["asked"] >= 5
    paid = (first.facts["dollars"] + second.facts["dollars"]) / (first.facts["asked"] + second.facts["asked"])
    assert second.plan.dollars_each == pytest.approx(first.facts["dollars"] / first.facts["asked"])
    assert abs(second.plan.dollars_each - paid) < abs(first.plan.dollars_each - paid)


@on_sqlite
def test_a_price_that_nobody_has_paid_is_called_assumed(routed):
    """A plan with a judge that has scored nothing here names the tokens that it assumes."""
    generator = GeneratorSettings.model_validate(
        {"name": "openai", "model": "m", "context_tokens": 8000, "token_prices": {"input": 1.0, "output": 4.0}}
        | {"openai": {"base_url": "http://127.0.0.1:9/v1"}}
    )
    judge = routed.settings.judge.model_copy(update={"generator": generator})
    common = {"settings": routed.settings.model_copy(update={"judge": judge}), "actor": ACTOR, "judge": "judge"}
    decision = prepare(routed.ledger, scope(routed), against="large", pipelines=ByKind().pipelines, **common)
    plan = decision.plan(budget=None)
    decision.close()
    assert plan.dollars_each == pytest.approx(0.0038 + 0.001 + 2 * 0.004)
    tokens = "2,000 tokens of a prompt and 500 of a reply"
    assert f"the dollars of the judge are assumed, from {tokens}, since none are known yet" in plan.sentences
