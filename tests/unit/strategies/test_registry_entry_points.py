"""Arms that installed packages bring, by entry points."""

import subprocess
import sys
from typing import get_args

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.plugins import installed_entry_points
from ragbandit.strategies.arms.basic import SingleStep
from ragbandit.strategies.base import Need
from ragbandit.strategies.registry import GROUP, built_in_arms, known_arms, make_arms
from ragbandit.workers.setup.chosen_arms import parse_arms
from ragbandit.workers.setup.generators import make_strategies
from tests.support.installed_packages import install  # noqa: F401 - a fixture

EVERYTHING = frozenset(get_args(Need))
CODE = """
from ragbandit.strategies import Answer

class Shout:
    needs = frozenset({"completion"})

    def __init__(self, *, name, loud=1):
        self.name, self.params = name, {"loud": loud}

    async def answer(self, question, *, run):
        return Answer(text=question.upper(), stop_reason="shouted")
"""


@pytest.fixture
def shout(install):  # noqa: F811 - the fixture
    install("shouting-arms", {"shout": "shouting:Shout"}, code=CODE)


def refused(config):
    with pytest.raises(ConfigError) as caught:
        make_arms(config, capabilities=EVERYTHING)
    return caught.value


def test_an_installed_arm_is_configured_by_its_name(shout):
    """It is made with its params, under its own name, without `class`, and errors list it among the known."""
    arm = make_arms({"shout": {"loud": 3}}, capabilities=EVERYTHING)["shout"]
    assert (type(arm).__module__, arm.name, arm.params) == ("shouting", "shout", {"loud": 3})
    assert set(known_arms()) == {*built_in_arms(), "shout"}
    assert ", shout, single_step" in str(refused({"shuot": {}}))
    assert ", shout, single_step" in str(refused({}))


def test_evaluate_all_runs_installed_arms(shout):
    """The word "all" means installed arms too, with their defaults; a single one can be named."""
    settings = Settings.model_validate({"generator": {"name": "scripted"}})
    arms, _ = parse_arms(["all"], settings=settings)
    assert make_strategies(settings, arms)["shout"][1].params == {"loud": 1}
    assert list(parse_arms(["shout"], settings=settings)[0]) == ["shout"]


def test_two_packages_with_one_name_are_refused_where_it_is_used(shout, install):  # noqa: F811 - the fixture
    """Both are named; other arms are made as ever, and `class` says which is meant."""
    install("other-arms", {"shout": "other:Shout"}, code=CODE)
    assert list(make_arms({"single_step": {}}, capabilities=EVERYTHING)) == ["single_step"]
    error = refused({"shout": {}})
    assert error.field == "arms.shout"
    assert "other-arms, shouting-arms" in error.message
    meant = make_arms({"shout": {"class": "other:Shout"}}, capabilities=EVERYTHING)["shout"]
    assert type(meant).__module__ == "other"


def test_a_name_of_ours_is_not_taken_over(install):  # noqa: F811 - the fixture
    """A package that claims one of our names is refused with ours where the name is used, and nowhere else."""
    install("bold-arms", {"single_step": "bold:Shout"}, code=CODE)
    assert list(make_arms({"no_retrieval": {}}, capabilities=EVERYTHING)) == ["no_retrieval"]
    assert "ragbandit, bold-arms" in refused({"single_step": {}}).message
    ours = {"single_step": {"class": "single_step"}}
    assert isinstance(make_arms(ours, capabilities=EVERYTHING)["single_step"], SingleStep)


def test_evaluate_all_leaves_a_clash_out_with_the_reason(install):  # noqa: F811 - the fixture
    """The others run."""
    install("bold-arms", {"single_step": "bold:Shout"}, code=CODE)
    arms, lacking = parse_arms(["all"], settings=Settings.model_validate({"generator": {"name": "scripted"}}))
    assert "no_retrieval" in arms
    assert "ragbandit, bold-arms" in lacking["single_step"]


@pytest.mark.parametrize(
    ("code", "path", "reason"),
    [
        (None, "nowhere_to_be_found:Shout", "No module named 'nowhere_to_be_found'"),
        (CODE, "present_module:Whisper", "Whisper"),
        ("raise RuntimeError('no licence')", "broken_module:Shout", "RuntimeError: no licence"),
        ("def (", "unread_module:Shout", "SyntaxError"),
    ],
)
def test_what_cannot_be_imported_names_package_and_reason(install, code, path, reason):  # noqa: F811 - the fixture
    """A package whose class is not there, or whose code fails, is an error of the configuration."""
    install("sad-arms", {"sad": path}, code=code)
    error = refused({"sad": {}})
    assert error.field == "arms.sad"
    assert "the package sad-arms" in error.message
    assert reason in error.message


def test_packages_are_looked_up_once(shout):
    """The list is made once per process. The import of strategies looks up only additions, whose dialects it needs."""
    assert installed_entry_points(GROUP) is installed_entry_points(GROUP)
    code = "import ragbandit.strategies, ragbandit.shared.plugins as p\n"
    code += "print(p.installed_entry_points.cache_info().misses)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"
