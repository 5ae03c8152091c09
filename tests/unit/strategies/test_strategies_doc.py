"""The pages on arms are held to the code: every arm is in the table, and the examples run."""

import asyncio
import re
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import get_args

import pytest
import yaml

from ragbandit.router.config.settings import Settings
from ragbandit.shared.types import Budget, DecisionId, Query
from ragbandit.strategies.arms.http import Http
from ragbandit.strategies.base import Need, Passage
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.outcome import run_strategy
from ragbandit.strategies.prompting.prompts import load_templates
from ragbandit.strategies.registry import GROUP, built_in_arms, make_arms
from ragbandit.strategies.retrievers.without_index import MemoryRetriever
from ragbandit.testing.arms import ARM_CHECKS
from ragbandit.workers.setup.generators import check_worker_arms, hints, worker_arms
from ragbandit.workers.setup.loading import check_generators
from tests.support.additions import needs
from tests.support.installed_packages import install  # noqa: F401 - a fixture
from tests.support.pages import names_without, pages_of, table_lines

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "strategies.md").read_text(encoding="utf-8")
GENERATORS = (DOCS / "generators.md").read_text(encoding="utf-8")
OWN = (DOCS / "extend.md").read_text(encoding="utf-8").partition("\n## A policy of your own\n")[0]


#: (arm, cells of its line) of the table of the page, or of an addition's own page, for the arms that this tree has
TABLE = [
    (name, line.split("|"))
    for text in (PAGE, *(page.read_text(encoding="utf-8") for page in pages_of("arms")))
    for line in table_lines(text, first="arm")
    for name in re.findall(r"`(\w+)`", line.split("|")[1])
    if name not in names_without()
]


def test_every_arm_is_in_the_table():
    """A table of arms, on the page of arms or on that of an addition, names every registered arm once, and no other."""
    assert sorted(name for name, _ in TABLE) == sorted(built_in_arms())


def test_needs_are_those_of_the_arms():
    """Beyond plain text, an arm needs what its line says."""
    for name, cells in TABLE:
        if "only for" not in cells[4]:
            needs = getattr(built_in_arms()[name], "needs", frozenset())
            assert needs - {"completion", "stop"} == set(re.findall(r"`(\w+)`", cells[4])), name


def test_presets_are_those_of_the_arms():
    """The line of an arm names all of its presets except the defaults."""
    for name, cells in TABLE:
        presets = getattr(built_in_arms()[name], "presets", {})
        assert set(re.findall(r"`(\w+)`", cells[5])) == set(presets), name
        for preset in presets:
            arms = make_arms({name: {"preset": preset}}, capabilities=frozenset(get_args(Need)))
            assert arms[name].params["preset"] == preset


@needs("elasticsearch")
def test_the_recipes_are_configurations(monkeypatch):
    """Routing between two models and between two indexes: the settings hold, and every arm has what it names."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    recipes = re.findall(r"```yaml\n(.*?)```", GENERATORS.partition("## Several models")[2], flags=re.S)
    models, indexes = (Settings.model_validate(yaml.safe_load(each)) for each in recipes[:2])
    check_worker_arms(models)
    check_generators(models, fetch=False)
    assert hints(models) == ()
    assert {name: arm.generator for name, arm in worker_arms(models).items()} == {
        "quick": "small",
        "good": "large",
        "deep": "large",
        "deep.rounds-4": "large",
    }
    assert {name: arm.retriever for name, arm in worker_arms(indexes).items()} == {
        "wiki": "wiki",
        "tickets": "tickets",
        "memory": "default",
    }


def test_the_template_is_one():
    """The page's template can stand in for ours, and every section that the page names is in it."""
    text = textwrap.dedent(re.search(r"\n\n((?: {4}.*\n)+ {4}\[prefix\]\n.*\n)", PAGE)[1])
    template = load_templates(["read_direct"], overrides={"read_direct": text})["read_direct"]
    assert template.demonstrations == ("Question: Who painted Guernica?\nAnswer: Pablo Picasso",)
    assert template.passage == "{number}. {title}: {text}"
    assert (template.instructions, template.prefix) == ("Answer with the name alone.", "Answer:")


def test_params_of_http_that_the_page_names_are_there():
    """Limits, tries and headers are called as the page calls them."""
    (line,) = [each for each in PAGE.split("\n\n") if each.startswith("`http` posts")]
    named = {"timeout_s", "max_bytes", "retries", "headers_env"}
    assert {each for each in named if f"`{each}" in line} == named <= set(Http(name="x", url="http://x").params)


@pytest.mark.parametrize("check", ARM_CHECKS, ids=lambda check: check.__name__)
def test_the_example_keeps_the_contract(check, tmp_path, monkeypatch):
    """The page's own test passes with the page's own class, check by check."""
    (code,) = re.findall(r"```python\n(.*?)```", OWN, flags=re.DOTALL)
    (tmp_path / "my_arms.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_arms", raising=False)
    found = {}
    exec(textwrap.dedent(re.search(r"\n\n( {4}import pytest\n.*?\n)\n\S", OWN, flags=re.DOTALL)[1]), found)
    assert found["ARM_CHECKS"] is ARM_CHECKS
    found["test_curt"](check)
    del sys.modules["my_arms"]


@pytest.mark.parametrize("way", ["class", "entry point"])
def test_the_example_is_an_arm(way, tmp_path, monkeypatch, install):  # noqa: F811 - the fixture
    """The class on the page is short, comes in by its import path and by the page's entry point, and answers."""
    (code,) = re.findall(r"```python\n(.*?)```", OWN, flags=re.DOTALL)
    (project,) = re.findall(r"```toml\n(.*?)```", OWN, flags=re.DOTALL)
    assert len(code.strip().splitlines()) < 25
    if way == "class":
        (tmp_path / "my_arms.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)
        params = {"class": "my_arms:Curt", "words": 2}
    else:
        install("my-arms", tomllib.loads(project)["project"]["entry-points"][GROUP], code=code)
        params = {"words": 2}
    arm = make_arms({"curt": params}, capabilities=frozenset({"completion", "stop"}))["curt"]
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
