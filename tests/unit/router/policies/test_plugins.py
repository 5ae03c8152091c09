"""Policies of others: by class path, by entry point, and what is refused."""

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.policies import GROUP, built_in_policies, known_policies, make_policy
from ragbandit.router.policies.settings_check import check_policy
from ragbandit.shared.errors import ConfigError
from tests.support.installed_packages import install  # noqa: F401 - a fixture

CODE = """
from ragbandit.router.policies.algorithms.fixed import Uniform

class Even(Uniform):
    pass

class Whole:
    def __init__(self, *, rate=1):
        self.rate = rate

    pmf = learn = state = restore = None
"""


@pytest.fixture
def even(install):  # noqa: F811 - the fixture
    install("even-policies", {"even": "even_policies:Even"}, code=CODE, group=GROUP)


def refused(name, **params):
    with pytest.raises(ConfigError) as caught:
        make_policy(name, params=params)
    return caught.value


def test_an_installed_policy_is_made_by_its_name(even):
    """It is recorded under that name, its params are checked, and it is among the known."""
    assert make_policy("even", params={}).algorithm == "even"
    assert refused("even", rate=1).field == "policy.params.rate"
    assert set(known_policies()) == {*built_in_policies(), "even"}
    assert ", even, " in refused("evn").remedy
    check_policy(Settings.model_validate({"policy": {"name": "even"}}))


def test_a_class_path_is_made_and_recorded_as_such(even):
    """The path is the name that ledgers and snapshots record; ours keep their own."""
    assert make_policy("even_policies:Even", params={}).algorithm == "even_policies:Even"
    assert make_policy("uniform", params={}).algorithm == "uniform"


def test_a_class_that_is_no_policy_is_refused(even):
    """What it lacks is named; a param that its constructor does not take is an error of the params."""
    assert "has no needs, deterministic" in refused("even_policies:Whole").message
    error = refused("even_policies:Whole", speed=1)
    assert (error.field, "speed" in error.message) == ("policy.params", True)


def test_a_class_without_the_methods_of_a_policy_is_not_called(tmp_path):
    """The name and the params may come from a database or a backup: they run no program and write no file."""
    file = tmp_path / "created"
    error = refused("subprocess:Popen", args=["touch", str(file)])
    assert "has no pmf, learn, state, restore" in error.message
    refused("logging:FileHandler", filename=str(file))
    assert not file.exists()


def test_a_name_that_cannot_be_recorded_is_refused(install):  # noqa: F811 - the fixture
    """Ledgers record 40 characters of it; an entry point gives a shorter name."""
    module = "a_module_with_quite_a_long_name_of_its_own"
    install("long-policies", {"short": f"{module}:Even"}, code=CODE, group=GROUP)
    error = refused(f"{module}:Even")
    assert (error.field, GROUP in error.remedy) == ("policy.name", True)
    assert make_policy("short", params={}).algorithm == "short"
