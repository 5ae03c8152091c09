"""Steps of additions: the guard of docs/extend.md decides, and what a step asks before the draw."""

import re
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.serving.deciding import steps
from ragbandit.router.serving.deciding.steps import STEPS, all_steps
from ragbandit.router.serving.deciding.steps.step import Step
from ragbandit.router.serving.explanations import explain
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import Query
from ragbandit.testing.steps import check_step

PAGE = Path(__file__).parents[3] / "docs" / "extend.md"


def guard():
    """The step of the page."""
    section = PAGE.read_text(encoding="utf-8").partition("## A guard of your own")[2]
    names: dict[str, object] = {"__name__": __name__}
    exec(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0], names)
    return names["Hurry"]


@pytest.fixture
def offer(monkeypatch):
    """A function that makes these classes the steps of additions, by their names."""
    return lambda **added: monkeypatch.setattr(steps, "load_offered", lambda hook: added)


@pytest.mark.parametrize("place", ["", *(step.__name__ for step in STEPS)])
def test_a_step_of_ones_own(make_world, offer, place):
    """A step of an addition at any place excludes arms from the draw, and its sentence is among the reasons."""
    offer(hurry=type("Hurry", (guard(),), {"follows": place}))
    world = make_world(arms={"fast": {"run_by": "caller"}, "slow": {"run_by": "caller", "facts": {"slow": True}}})
    decision = world.router.route(Query(text="Who?", context={"hurry": True}))
    assert (decision.arms, decision.facts["slow_arms"]) == (("fast",), ["slow"])
    assert world.route().arms == ("fast", "slow")
    explained = explain.explain(world.store, decision.id, rule=closing_rule(world.settings.learning))
    assert "Left out, since the caller was in a hurry: slow." in explained.reasons


def test_the_guard_of_the_page_follows_the_contract():
    """The step of docs/extend.md passes the check that the page names, with the question and the arms of the page."""
    section = PAGE.read_text(encoding="utf-8").partition("## A guard of your own")[2]
    [test] = re.findall(r"    def test_hurry\(\):\n(?: {8}.*\n)+", section)
    names = {"Hurry": guard(), "check_step": check_step, "Query": Query}
    exec(f"{textwrap.dedent(test)}\ntest_hurry()", names)


def test_steps_of_additions_stand_where_they_say(offer):
    """A step stands after the one that it names, two with one place by their names; an unknown place is refused."""
    places = {"a": "Tasks", "b": "Tasks", "c": ""}
    added = {name: type(name, (Step,), {"follows": place}) for name, place in places.items()}
    offer(**added)
    names = [step.__name__ for step in all_steps()]
    at = names.index("Tasks")
    assert (names[0], names[at : at + 3]) == ("c", ["Tasks", "a", "b"])
    assert [name for name in names if name not in added] == [step.__name__ for step in STEPS]
    offer(lost=type("Lost", (Step,), {"follows": "Task"}))
    with pytest.raises(ConfigError, match=r"'lost' of an addition follows 'Task'.*did you mean Tasks\?"):
        all_steps()


class Asking(Step):
    """Asks a service for each question that is drawn."""

    asked = 0

    def asks(self, question, *, live):
        return question.query.text == "Who?"

    async def prepare(self, question, *, live):
        type(self).asked += 1
        sent = replace(question.query.sent, others={"told": self.asked})
        question.query = replace(question.query, sent=sent)


def test_a_step_asks_before_the_draw(make_world, offer):
    """`prepare` changes the query of a question that was admitted, once for an id, and not for a preview."""
    offer(asking=Asking)
    world = make_world()
    query = Query(text="Who?", id="d-1")
    assert [world.router.route(query).query.sent.others["told"] for _ in range(2)] == [1, 1]
    both = world.router.submit_many(["Who?", "When?"])
    assert [one.result(9).query.sent.others.get("told") for one in both] == [2, None]
    assert not world.router.preview("Who?").result(9).query.sent.others
    assert Asking.asked == 2
