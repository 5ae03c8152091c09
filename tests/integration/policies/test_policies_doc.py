"""The pages on policies name every policy with all its params, and what they show works."""

import re
import sys
import tomllib
from dataclasses import MISSING, fields, replace
from pathlib import Path

import pytest
import yaml

from ragbandit.router.config.loading import load
from ragbandit.router.policies import GROUP, make_policy
from ragbandit.router.policies.context import PARAM
from ragbandit.router.policies.finetuned.reading import load_reader
from ragbandit.router.policies.settings_check import check_policy
from ragbandit.testing.policies import POLICY_CHECKS
from tests.support.installed_packages import install  # noqa: F401 - a fixture
from tests.support.pages import pages_of
from tests.support.policies import POLICIES, maker
from tests.support.tiny_models import tiny_counts, tiny_encoder, tiny_threshold, tiny_trained

ROOT = Path(__file__).parents[3]
FILE = ROOT / "docs" / "policies.md"
PAGES = [FILE, *(FILE.with_name(f"{name}.md") for name in ("training", "policy-settings")), *pages_of("policies")]
OWN = (
    FILE.with_name("extend.md")
    .read_text(encoding="utf-8")
    .partition("\n## A policy of your own\n")[2]
    .partition("\n## ")[0]
)
#: all pages; the heading between two ends the last section of the first one
DOC = "\n## \n".join([*(page.read_text(encoding="utf-8") for page in PAGES), OWN])
SNIPPETS = [
    text
    for text in re.findall(r"```yaml\n(.*?)```", DOC, flags=re.S)
    if yaml.safe_load(text).get("policy", {}).get("name", "mba") in POLICIES  # a tree may lack additions
]
PYTHON = re.findall(r"```python\n(.*?)```", DOC, flags=re.S)
NEEDED = "needed"


def section(name):
    """The text under the heading that holds a policy's name, and all the names in that heading."""
    parts = [part.partition("\n") for part in DOC.split("\n## ")[1:]]
    ((heading, _, body),) = (part for part in parts if f"`{name}`" in part[0])
    return body, re.findall(r"`(\w+)`", heading)


def rows(text):
    """The cells of a table's rows, without the head."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| p")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def documented(name):
    """Param -> default as the policy's section has it, NEEDED where there is none."""
    body, names = section(name)
    shared = len(names) > 1
    own = [cells for cells in rows(body) if not shared or cells[2] in ("all", "both", f"`{name}`")]
    return {cells[0].strip("`"): cells[1] if cells[1] == NEEDED else yaml.safe_load(cells[1]) for cells in own}


def params_of(name):
    """The fields of the params dataclass of a policy, without the schema, which `context:` sets."""
    return [each for each in fields(type(maker(name)()._params)) if each.name != PARAM]


@pytest.fixture
def setting(tmp_path, monkeypatch):
    """A function from a snippet to its Settings, in a folder with the files that the snippets name.

    The fine-tuned policies read with a model of two layers.
    """

    def small(reading):
        model = reading.model if Path(reading.model).is_dir() else tiny_encoder()
        return load_reader(replace(reading, model=model, max_tokens=16, device="cpu"))

    for kind in POLICIES.values():
        if hasattr(sys.modules[kind.__module__], "load_reader"):
            monkeypatch.setattr(f"{kind.__module__}.load_reader", small)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "adaptive").symlink_to(tiny_trained("adaptive_rag"))
    (tmp_path / "trained" / "multi").symlink_to(tiny_trained("multi_label"))
    (tmp_path / "trained" / "popularity").symlink_to(tiny_threshold())
    (tmp_path / "counts.json").symlink_to(tiny_counts())

    def read(snippet):
        (tmp_path / "config.yaml").write_text(snippet)
        return load(environ={}).settings

    return read


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_param_stands_there_with_its_default(name):
    """A policy's section names exactly its constructor's parameters, each with its default."""
    assert documented(name) == {
        each.name: NEEDED if each.default is MISSING else each.default for each in params_of(name)
    }


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda text: " ".join(text.split())[:40])
def test_snippets_can_decide(snippet, setting):
    """Every YAML in the document is a configuration with which the service would start, params as they were given."""
    settings = setting(snippet)
    check_policy(settings)
    policy = make_policy(settings.policy.name, params=settings.policy.params)
    given = {key: value for key, value in settings.policy.params.items() if not isinstance(value, dict)}
    assert given.items() <= dict(policy.params).items()


CODE = next(code for code in PYTHON if "class MeanReward(" in code)


@pytest.fixture
def my_policies(tmp_path, monkeypatch):
    """The code of the page as my_policies.py, in a folder on the path."""
    (tmp_path / "my_policies.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_policies", raising=False)
    yield "my_policies:MeanReward"
    sys.modules.pop("my_policies", None)


@pytest.mark.parametrize("check", POLICY_CHECKS, ids=lambda check: check.__name__)
def test_the_policy_of_your_own_keeps_the_contract(check, my_policies):
    """The class on the page passes every check, by the page's own test."""
    names = {}
    exec(next(code for code in PYTHON if "POLICY_CHECKS" in code), names)
    names["test_mean_reward"](check)


@pytest.mark.parametrize("way", ["class path", "entry point"])
def test_the_policy_of_your_own_serves(way, my_policies, install, make_world):  # noqa: F811 - the fixture
    """By its import path and by the page's entry point it decides, learns, is restored and verifies."""
    name = my_policies
    if way == "entry point":
        (project,) = re.findall(r"```toml\n(.*?)```", DOC, flags=re.S)
        offered = tomllib.loads(project)["project"]["entry-points"][GROUP]
        install("my-policies", offered, code=CODE, group=GROUP)
        (name,) = offered
    world = make_world(policy={"name": name, "params": {"epsilon": 0.2}})
    world.judged(12)
    assert world.learn() == 12
    serving = world.router.service.serving
    assert (serving.policy.algorithm, serving.last_seq, sum(serving.policy.seen.values())) == (name, 12, 12)
    assert world.router.verify(deep=True).ok
    assert world.ledger.policy_row()["algorithm"] == name
