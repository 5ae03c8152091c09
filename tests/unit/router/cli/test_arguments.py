"""Arguments of the command line as values."""

from ragbandit.router.cli.store import parse_policies
from ragbandit.router.config.settings import Settings


def test_params_of_a_class_path():
    """NAME.KEY=VALUE takes the longest policy that was asked for, since a class path has dots of its own."""
    names = ["mba,my.policies:Mine"]
    given = ["my.policies:Mine.epsilon=0.3", "mba.ridge=3", "my.policies:Mine.inner.rate=2"]
    found = parse_policies(names, params=given, settings=Settings())
    assert found == {"mba": {"ridge": 3}, "my.policies:Mine": {"epsilon": 0.3, "inner.rate": 2}}
