"""Sections of the settings to which additions add keys."""

from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from ragbandit.router.config import section as module
from ragbandit.router.config.section import Section, extended
from ragbandit.router.config.settings import Settings
from ragbandit.shared.additions import additions, section_parts
from ragbandit.shared.errors import ConfigError

PARTS = [(name, key) for name, what in additions().items() for key in what.sections]


class Colour(Section):
    #: a colour
    colour: str = "red"


class Size(Section):
    size: int = 3


class Plain(Section):
    name: str = "a"


class Other(Section):
    name: str = "b"


def extended_by(monkeypatch, *parts):
    monkeypatch.setattr(module, "section_parts", lambda section: parts if section == "plain" else ())
    return extended("plain")(Plain)


def test_keys_of_parts_stand_in_the_section(monkeypatch):
    """Keys of the parts come after the core's, are dumped with them, and `of` reads them with their types."""
    kind = extended_by(monkeypatch, Colour, Size)
    assert [*kind.model_fields] == ["name", "colour", "size"]
    made = kind.model_validate({"colour": "blue"})
    assert made.model_dump() == {"name": "a", "colour": "blue", "size": 3}
    assert (made.of(Colour).colour, made.of(Size).size) == ("blue", 3)
    assert made == kind(colour="blue") != kind(size=4)
    assert made.model_copy(update={"size": 5}).of(Size).size == 5


@pytest.mark.parametrize("tree", [{"color": "blue"}, {"size": "3"}, {"colour": None}], ids=str)
def test_keys_of_parts_are_checked(monkeypatch, tree):
    """Unknown keys and values of another type are refused at their key, as for the core's own."""
    with pytest.raises(ValidationError) as caught:
        extended_by(monkeypatch, Colour, Size).model_validate(tree)
    assert [error["loc"] for error in caught.value.errors()] == [(*tree,)]


def test_a_section_without_additions_is_the_core(monkeypatch):
    """Without parts, the section is the class of the core, and reading another part is an error that names it."""
    assert extended_by(monkeypatch) is Plain
    with pytest.raises(ConfigError, match=r"\.Colour has no settings in Plain"):
        Plain().of(Colour)


def test_a_key_belongs_to_one_part(monkeypatch):
    """A part with a key of the core or of another part is left out, and its addition has a fault that names both."""
    found = {}
    monkeypatch.setattr(module, "add_fault", found.__setitem__)
    assert extended_by(monkeypatch, Other) is Plain
    twice = SimpleNamespace(model_fields=Size.model_fields, __module__="m", __name__="Twice")
    assert [*extended_by(monkeypatch, Size, twice).model_fields] == ["name", "size"]
    assert found == {
        Other.__module__: "Other: Plain has a setting 'name' already",
        "m": "Twice: Size has a setting 'size' already",
    }


@pytest.mark.parametrize(("name", "key"), PARTS)
def test_settings_of_additions_stand_in_their_sections(name, key):
    """Each key of an addition's settings is one of the section that it declares."""
    value = Settings()
    for part in filter(None, key.split(".")):
        value = getattr(value, part)
    parts = [part for part in section_parts(key) if part.__module__.split(".")[2] == name]
    assert parts
    assert all(part.model_fields.keys() <= value.of(part).model_dump().keys() for part in parts)


def test_a_name_that_may_be_a_secret_is_not_shown():
    """A text that is like no known name and has no form of a name may be a misplaced key, and is not shown."""
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({"retriever": {"name": "sk-Pr0j3ct-42"}})
    (error,) = caught.value.errors()
    assert error["msg"].startswith("Value error, unknown name; known: bm25, dense")
