"""The errors that several rooms raise in the same words."""

import pytest

from ragbandit.shared.errors import ConfigError, missing_package, required_module


def test_a_missing_package_is_named_with_its_extra():
    """The message names the package and the setting, the remedy is the command that installs it."""
    with pytest.raises(ConfigError, match=r"^index: the package no_such_package is missing") as caught:
        required_module("no_such_package.part", extra="documents", field="index")
    assert caught.value.remedy == "pip install '.[documents]' in a clone of the repository"
    assert isinstance(caught.value.__cause__, ImportError)


def test_a_module_that_is_there_is_returned():
    """A module that can be imported is returned itself, not its package."""
    assert required_module("json.decoder", extra="documents").__name__ == "json.decoder"


def test_a_note_is_added_to_the_remedy():
    """More than the command can be said."""
    assert missing_package("a", extra="b", note="not on Sundays").remedy.endswith(
        "'.[b]' in a clone of the repository; not on Sundays"
    )
