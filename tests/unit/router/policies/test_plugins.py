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
    assert ", even, fixed" in refused("evn").remedy
    check_policy(Settings.model_validate({"policy": {"name": "even"}}))


def test_a_class_path_is_made_and_recorded_as_such(even):
    """The path is the name that ledgers and snapshots record; ours keep their own."""
    assert make_policy("even_policies:Even", params={}).algorithm == "even_policies:Even"
    assert make_policy("uniform", params={}).algorithm == "uniform"


def test_two_packages_with_one_name_are_refused(even, install):  # noqa: F811 - the fixture
    """Both are named, other policies are made as ever, and a class path says which is meant."""
    install("other-policies", {"even": "other_policies:Even"}, code=CODE, group=GROUP)
    error = refused("even")
    assert error.field == "policy.name"
    assert "even-policies, other-policies" in error.message
    assert "package.module:Class" in error.remedy
    assert make_policy("other_policies:Even", params={}).algorithm == "other_policies:Even"
    make_policy("uniform", params={})


def test_a_name_of_ours_is_not_taken_over(install):  # noqa: F811 - the fixture
    """A package that claims one of our names is refused with ours where the name is used."""
    install("bold-policies", {"uniform": "bold:Even"}, code=CODE, group=GROUP)
    assert "ragbandit, bold-policies" in refused("uniform").message
    make_policy("fixed", params={"arm": "a"})


@pytest.mark.parametrize(
    ("code", "path", "reason"),
    [(None, "nowhere_to_be_found:Even", "No module named 'nowhere_to_be_found'"), (CODE, "present_module:Odd", "Odd")],
)
def test_what_cannot_be_imported_is_a_configuration_error(install, code, path, reason):  # noqa: F811 - the fixture
    """By entry point package and reason are named, by class path the reason."""
    install("sad-policies", {"sad": path}, code=code, group=GROUP)
    error = refused("sad")
    assert error.field == "policy.name"
    assert "the package sad-policies" in error.message
    assert reason in error.message
    assert reason in refused(path).message


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
