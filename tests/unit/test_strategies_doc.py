"""docs/strategies.md is held to the code: every arm is in its table, and its example runs."""

import asyncio
import re
import tomllib
from pathlib import Path

import pytest

from router.types import Budget, DecisionId, Query
from strategies import ARMS, make_arms
from strategies.base import Passage
from strategies.entry_points import GROUP
from strategies.runner import run_strategy
from strategies.scripted import MemoryRetriever, ScriptedGenerator
from tests.installed_packages import install  # noqa: F401 - a fixture

PAGE = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text(encoding="utf-8")


def test_every_arm_is_in_the_table():
    """The table names every registered arm, and no other."""
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(ARMS)


def test_needs_are_those_of_the_arms():
    """Beyond plain text, an arm needs what its line says."""
    for line in PAGE.splitlines():
        if not line.startswith("| `") or "`rq_rag`" in line or "`http`" in line:
            continue
        names, said = line.split("|")[1], line.split("|")[4]
        for name in re.findall(r"`(\w+)`", names):
            module, _, kind = ARMS[name].partition(":")
            needs = getattr(__import__(module, fromlist=[kind]), kind).needs
            assert needs - {"completion", "stop"} == set(re.findall(r"`(\w+)`", said)), name


@pytest.mark.parametrize("way", ["class", "entry point"])
def test_the_example_is_an_arm(way, tmp_path, monkeypatch, install):  # noqa: F811 - the fixture
    """The class on the page is short, comes in by its import path and by the page's entry point, and answers."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    (project,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(code.strip().splitlines()) < 25
    if way == "class":
        (tmp_path / "my_arms.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)
        params = {"class": "my_arms:Curt", "words": 2}
    else:
        install("my-arms", tomllib.loads(project)["project"]["entry-points"][GROUP], code=code)
        params = {"words": 2}
    arm = make_arms({"curt": params}, capabilities=frozenset({"completion"}))["curt"]
    outcome = asyncio.run(
        run_strategy(
            arm,
            query=Query(id=DecisionId("d1"), text="Who wrote Dracula?"),
            budget=Budget(),
            retriever=MemoryRetriever([Passage(id="p", title="Dracula", text="Dracula is by Bram Stoker.")]),
            generator=ScriptedGenerator({"2 words": "Bram Stoker"}),
        )
    )
    assert (outcome.status, outcome.answer, outcome.steps) == ("answered", "Bram Stoker", 1)
