"""A guard of one's own: the step of docs/extend.md decides, stores its fact and explains it."""

import re
from pathlib import Path

import pytest

from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.serving.deciding import service
from ragbandit.router.serving.deciding.steps import STEPS
from ragbandit.router.serving.explanations import explain
from ragbandit.shared.types import Query

PAGE = Path(__file__).parents[3] / "docs" / "extend.md"


def guard():
    """The step of the page."""
    section = PAGE.read_text(encoding="utf-8").partition("## A guard of your own")[2]
    names: dict[str, object] = {"__name__": __name__}
    exec(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0], names)
    return names["Hurry"]


@pytest.mark.parametrize("place", range(len(STEPS) + 1))
def test_a_step_of_ones_own(make_world, monkeypatch, place):
    """One more line anywhere in STEPS excludes arms from the draw, and its sentence is among the reasons."""
    steps = (*STEPS[:place], guard(), *STEPS[place:])
    monkeypatch.setattr(service, "STEPS", steps)
    monkeypatch.setattr(explain, "STEPS", steps)
    world = make_world(arms={"fast": {"run_by": "caller"}, "slow": {"run_by": "caller", "facts": {"slow": True}}})
    decision = world.router.route(Query(text="Who?", context={"hurry": True}))
    assert (decision.arms, decision.facts["slow_arms"]) == (("fast",), ["slow"])
    assert world.route().arms == ("fast", "slow")
    explained = explain.explain(world.store, decision.id, rule=closing_rule(world.settings.learning))
    assert "Left out, since the caller was in a hurry: slow." in explained.reasons
