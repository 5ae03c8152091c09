"""What a plan of `report --decide` expects of prices: as the arm's answers to such questions cost."""

from dataclasses import replace

import pytest

from ragbandit.router.config.sections import GeneratorSettings
from ragbandit.shared.types import Query
from tests.conftest import on_sqlite
from tests.integration.reporting.test_decide import Arms, prepared, run
from tests.support.examples import made_decision

#: kind of question -> dollars of `large`, probability that the policy gives it to `large`
KINDS = {"easy": (0.002, 0.1), "hard": (0.02, 0.9)}


class ByKind(Arms):
    """`large` costs more on hard questions, `small` a tenth of a cent."""

    def large(self, question):
        return "yes", {"dollars": KINDS[question[:4]][0]}


@pytest.fixture
def empty(make_world, database_url, tmp_path, monkeypatch):
    """A world without questions, and a judge that finds "yes" right."""
    (tmp_path / "own_judge.py").write_text("def right(answer, question, sources):\n    return answer == 'yes'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return make_world(
        database_url=database_url,
        arms={name: {"run_by": "caller"} for name in ("small", "large")},
        policy={"name": "uniform"},
        reward={"weight": 0.1, "cost": {"dollars": 1.0}},
    )


@pytest.fixture
def routed(empty):
    """200 questions of a policy that sends nine of ten hard ones to `large`, and one of ten easy ones."""
    for kind, (dollars, chance) in KINDS.items():
        for number in range(100):
            arm = "large" if number < 100 * chance else "small"
            keep(empty, f"{kind} {number}", arm=arm, chance=chance, dollars=dollars if arm == "large" else 0.001)
    return empty


def keep(world, text, *, arm, chance, dollars):
    """Store a question with its answer. chance: probability of `large`."""
    draw = {"arm": arm, "propensity": chance if arm == "large" else 1.0 - chance}
    one = made_decision(text.replace(" ", "-")[:40], arms=("small", "large"), pmf=(1.0 - chance, chance), **draw)
    one = replace(one, query=Query(id=one.id, text=text), made_at=world.now, floor=0.0)
    world.store.add_decisions([one])
    world.outcome(one, answer="old", cost={"dollars": dollars})


@on_sqlite
def test_an_arm_with_few_such_draws_is_priced_by_length(empty):
    """If the policy almost never sent an arm the short questions, the plan follows the length of those it prices."""

    class ByLength(Arms):
        def large(self, question):
            return "yes", {"dollars": 1e-4 * len(question)}

    for number in range(110):
        text, chance = (f"long {number} " + "word " * 40, 0.98) if number < 50 else (f"short {number}", 0.02)
        arm = "large" if number < 53 else "small"
        keep(empty, text, arm=arm, chance=chance, dollars=1e-4 * len(text) if arm == "large" else 0.001)
    done = run(empty, ByLength(), budget=10.0)
    assert done.done.asked >= 5
    assert done.before.each == pytest.approx(done.done.dollars / done.done.asked, rel=0.2)


@on_sqlite
def test_an_arm_is_priced_for_the_questions_that_are_asked(routed):
    """If the policy sends an arm the expensive questions, the plan prices it for those that went to other arms."""
    done = run(routed, ByKind(), budget=10.0)
    assert done.done.asked > 20
    assert done.before.each == pytest.approx(done.done.dollars / done.done.asked, rel=0.2)


@on_sqlite
def test_earlier_runs_price_the_next_one(routed):
    """If the present definition of an arm costs ten times as much, the plan after a first run knows it."""

    class Expensive(ByKind):
        def large(self, question):
            return "yes", {"dollars": 10.0 * KINDS[question[:4]][0]}

    first = run(routed, Expensive(), budget=0.4)
    second = run(routed, Expensive(), budget=10.0)
    assert first.done.asked >= 5
    paid = 0.001 + 10.0 * (0.9 * KINDS["easy"][0] + 0.1 * KINDS["hard"][0])
    assert first.before.each < 0.2 * paid
    assert 0.5 * paid < second.before.each < 1.5 * paid


@on_sqlite
def test_a_price_that_nobody_has_paid_is_called_assumed(routed):
    """A plan names a judge that has scored nothing here, and prices it by the tokens of its prompts."""
    generator = GeneratorSettings.model_validate(
        {"name": "openai", "model": "m", "context_tokens": 8000, "token_prices": {"input": 1.0, "output": 4.0}}
        | {"openai": {"base_url": "http://127.0.0.1:9/v1"}}
    )
    judge = routed.settings.judge.model_copy(update={"generator": generator})
    decision = prepared(routed, ByKind(), settings=routed.settings.model_copy(update={"judge": judge}), judge="judge")
    each, plan = decision.dollars_each(), decision.plan(budget=None)
    decision.close()
    assert 0.0038 + 0.001 + 2 * 0.0004 < each < 0.0038 + 0.001 + 2 * 0.0014
    line = "some dollars are assumed, since none are known yet: the judge: its prompts, 100 tokens of a reply"
    assert line in plan
