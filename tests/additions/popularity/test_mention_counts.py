"""Counts of mentions: the names that a passage mentions, and the names in the file."""

import json

import pytest

from ragbandit.additions.popularity.mention_counts import LEAST, count_mentions, write_counts
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.strategies.base import Passage

PASSAGES = [
    Passage(id="1", title="Vistula", text="The Vistula is a river. Warsaw stands on the Vistula, in Poland."),
    Passage(id="2", title="Warsaw (film)", text="A film by Jane Q. Public about the city of Warsaw, shot in New York."),
    Passage(id="3", title="The Lord of the Rings", text="Tolkien's novel. It was read by Jane Q. Public in 1970."),
    Passage(id="4", title="", text="Rivers run to the sea. Rings and a city; the film “New York” of Apollo 11."),
    Passage(
        id="5", title="What Maisie Knew", text="When Tolkien wrote, what he knew was vast: O\u2019Brien\u2019s cité."
    ),
    Passage(id="6", title="", text="All rivers flow, and some film it in 1970."),
]


@pytest.mark.parametrize(
    ("key", "passages"),
    [
        ("vistula", 1),  # twice in one passage
        ("warsaw", 2),  # in a title without its bracket, and in a text
        ("new york", 2),  # in quotes too
        ("york", 2),
        ("jane q public", 2),  # a full stop after an initial ends nothing
        ("lord of the rings", 1),  # a title, without its article
        ("tolkien", 2),  # without the possessive
        ("o'brien", 1),  # apostrophes inside stay
        ("apollo 11", 1),
        ("what maisie knew", 1),
        ("cité", 0),  # a small letter
        ("the lord of the rings", 0),
        ("the", 0),
        ("rivers", 0),  # it begins a sentence, and is written small elsewhere
        ("what", 0),
        ("when tolkien", 0),
        ("1970", 0),
        ("q", 0),
        ("warsaw film", 0),
        ("vistula in poland", 0),  # with a comma in between
    ],
)
def test_passages_that_mention_a_name(key, passages):
    """A name counts the passages that mention it, each once; other words are no names."""
    once, twice = (count_mentions(PASSAGES * times)["mentions"] for times in (1, 2))
    assert twice.get(key, 0) == 2 * passages
    assert once.get(key, 0) == (passages if passages >= LEAST else 0)


def test_a_title_of_common_words_is_a_name():
    """A title of several common words is a name; a title of one common word is not."""
    text = "You ask for annual leave, and the leave is annual."
    passages = [Passage(id="1", title="Annual leave", text=text), Passage(id="2", title="Leave", text=text)]
    assert count_mentions(passages * 2)["mentions"] == {"annual leave": 2}


def test_titles_count_in_scripts_without_capitals():
    """A title that no letter case marks is a name, in the NFC form."""
    passages = [Passage(id="1", title="부산", text="항구 도시"), Passage(id="2", title="Cafe\u0301", text="")]
    assert count_mentions(passages * 2)["mentions"] == {"café": 2, "부산": 2}


def test_a_corpus_without_passages_is_refused(tmp_path):
    """Without passages nothing can be counted, and a file that cannot be written is an error with its field."""
    with pytest.raises(InvalidInput, match="has no passages"):
        count_mentions([])
    with pytest.raises(ConfigError, match="cannot be written") as caught:
        write_counts(count_mentions(PASSAGES), tmp_path / "missing" / "counts.json")
    assert caught.value.field == "out"


def test_the_file_has_what_was_counted(tmp_path):
    """The file holds format, number of passages, and the names in order."""
    write_counts(count_mentions(PASSAGES), tmp_path / "counts.json")
    assert [file.name for file in tmp_path.iterdir()] == ["counts.json"]
    written = json.loads((tmp_path / "counts.json").read_text(encoding="utf-8"))
    assert (written["format"], written["passages"]) == (1, len(PASSAGES))
    assert list(written["mentions"]) == sorted(written["mentions"])
    assert min(written["mentions"].values()) >= LEAST
